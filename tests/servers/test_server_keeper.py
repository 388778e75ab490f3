"""The keeper of a stage's servers, with real processes: HTTP servers, each of which has started another process."""

import json
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from mathrl.core.errors import UserError
from mathrl.core.guard import is_alive
from mathrl.params.rollout import Rollout, Servers, Vllm
from mathrl.servers import server_keeper
from mathrl.servers.serve import StartedServers, hold_port, server_environments
from mathrl.servers.server_keeper import Keeper, ServerCommand
from tests.conftest import wait_for

ROOT = Path(__file__).parents[2]
# As vLLM: the process that listens has started another one, whose id it answers with.
SERVER = """
import http.server, os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        self.wfile.write(f"{os.getpid()} {child.pid} {os.environ['WHO']}".encode())
    def log_message(self, *words): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def servers(folder: Path, count: int, script: str = SERVER) -> StartedServers:
    ports = [hold_port() for _ in range(count)]
    commands = [
        ServerCommand(
            [sys.executable, "-c", script, str(port.getsockname()[1])],
            dict(os.environ) | {"WHO": str(number)},
            port.getsockname()[1],
            str(folder / f"{number}.log"),
        )
        for number, port in enumerate(ports)
    ]
    return StartedServers("key", commands, ports, folder / "kept.json")


def answer(url: str) -> list[int] | None:
    """The ids of the processes behind an address, and the server's number."""
    try:
        return [int(word) for word in urllib.request.urlopen(url, timeout=5).read().split()]
    except OSError:
        return None


@pytest.fixture
def started(tmp_path: Path) -> Iterator[StartedServers]:
    made = servers(tmp_path, 2)
    yield made
    made.close()


def test_servers_run_are_started_again_and_end_with_all_that_they_started(started: StartedServers) -> None:
    first, second = (wait_for(lambda url=url: answer(url)) for url in started.urls)
    assert [first[2], second[2]] == [0, 1]
    started.check()
    os.kill(first[0], signal.SIGKILL)
    again = wait_for(lambda: answer(started.urls[0]))
    assert again[0] != first[0] and again[2] == 0 and wait_for(lambda: answer(started.urls[1])) == second
    wait_for(lambda: not is_alive(first[1]))
    wait_for(lambda: [each["failures"] for each in json.loads(started.file.read_text())] == [0, 0])
    kept = json.loads(started.file.read_text())
    assert [each["starts"] for each in kept] == [2, 1] and kept[0]["pid"] == again[0]
    started.close()
    wait_for(lambda: not any(is_alive(process) for process in (*again[:2], *second[:2])))


def stage(folder: Path) -> int:
    """A process that starts two servers, writes what they are to a file, and waits to be killed."""
    process = os.fork()
    if process == 0:
        try:
            started = servers(folder, 2)
            (folder / "new").write_text(json.dumps([started.keeper.pid, *started.urls]))
            (folder / "new").rename(folder / "stage")
            time.sleep(600)
        finally:
            os._exit(1)
    return process


@pytest.mark.parametrize("victim", ["stage", "keeper"])
def test_no_server_outlives_a_stage_or_a_keeper_that_is_killed(tmp_path: Path, victim: str) -> None:
    process = stage(tmp_path)
    try:
        wait_for((tmp_path / "stage").exists)
        keeper, *urls = json.loads((tmp_path / "stage").read_text())
        found = [wait_for(lambda url=url: answer(url)) for url in urls]
        os.kill(process if victim == "stage" else keeper, signal.SIGKILL)
        wait_for(lambda: not any(is_alive(server) for server, _, _ in found))
        if victim == "stage":  # the keeper ends what they had started too; vLLM's engine has die_with_parent itself
            wait_for(lambda: not any(is_alive(child) for _, child, _ in found))
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    for _, child, _ in found:
        if is_alive(child):
            os.kill(child, signal.SIGKILL)


def test_a_server_that_cannot_start_is_given_up_with_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_keeper, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(server_keeper, "LOOK_SECONDS", 0.01)
    command = ServerCommand(
        [sys.executable, "-S", "-c", "raise SystemExit('no such model')"], {}, 1, str(tmp_path / "0.log")
    )
    keeper = Keeper([command], tmp_path / "kept.json")
    thread = Thread(target=keeper.run)
    thread.start()
    wait_for(lambda: keeper.servers[0].given_up)
    keeper.ended.set()
    thread.join()
    assert keeper.servers[0].starts == server_keeper.MOST_FAILURES == 3
    assert (tmp_path / "0.log").read_text().splitlines() == ["no such model"] * 3
    started = StartedServers("key", [], [], tmp_path / "kept.json")  # a keeper that has nothing to keep
    try:
        with pytest.raises(UserError, match=r"started 3 times, they ended before they listened; .*0\.log ends with\n"):
            started.check()
    finally:
        started.close()


def rollout(start: int, parallel: int = 1, **servers: Any) -> Rollout:
    return Rollout(engine="vllm_server", servers=Servers(start=start, **servers), vllm=Vllm(tensor_parallel=parallel))


def test_each_server_has_the_gpus_after_those_of_the_ranks() -> None:
    def gpus(start: int, parallel: int, ranks: int, seen: int, **environment: str) -> list[str]:
        made = server_environments(rollout(start, parallel), environment, seen, ranks)
        return [each["CUDA_VISIBLE_DEVICES"] for each in made]

    assert gpus(4, 1, 4, 8) == ["4", "5", "6", "7"]
    assert gpus(3, 2, 2, 8) == ["2,3", "4,5", "6,7"]
    assert gpus(1, 2, 1, 3, CUDA_VISIBLE_DEVICES="GPU-a,GPU-b,GPU-c") == ["GPU-b,GPU-c"]
    with pytest.raises(UserError, match=r"start=2 with rollout\.vllm\.tensor_parallel=2 needs 4 GPU\(s\) beside the 1"):
        gpus(2, 2, 1, 4)


def test_with_ipc_servers_share_the_ranks_gpus() -> None:
    def gpus(count: int, parallel: int, ranks: int, seen: int) -> list[str]:
        shared = rollout(count, parallel, weights="ipc")
        return [each["CUDA_VISIBLE_DEVICES"] for each in server_environments(shared, {}, seen, ranks)]

    assert gpus(1, 1, 1, 1) == ["0"]
    assert gpus(2, 2, 4, 4) == ["0,1", "2,3"]
    with pytest.raises(UserError, match=r"needs 2, and run\.processes is 1: .* set rollout\.servers\.weights to nccl"):
        gpus(2, 1, 1, 8)


def test_the_environment_of_a_server_has_nothing_of_the_rank_that_starts_it() -> None:
    kept = {"PATH": "/bin", "MATHRL_SERVE_KEY": "k"}
    rank = {
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "ranks",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "MATHRL_RECORD": "/r",
    }  # fmt: skip
    (made,) = server_environments(rollout(1), rank | kept, 0, 2)
    assert made.items() >= {**kept, "OMP_NUM_THREADS": "1"}.items()
    assert not made.keys() & {*rank, "CUDA_VISIBLE_DEVICES"}
    with pytest.raises(UserError, match=r"the ranks are on several: let `mathrl launch --sampler-nodes`"):
        server_environments(rollout(1), {"LOCAL_WORLD_SIZE": "1"}, 0, 2)


@pytest.mark.parametrize(
    ("servers", "message"),
    [({}, "needs servers.start, the number"), ({"start": 1, "urls": ("http://a:1",)}, "set one of them")],
)
def test_servers_are_either_started_or_named(servers: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rollout(engine="vllm_server", servers=Servers(**servers))
