"""What ends a run: cancellation, a kill, a server that is down. Nothing lives on, nothing is lost."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mathrl.core.guard import is_alive
from tests.conftest import wait_for

Checkout = Any
RUN = "from mathrl.cli import main; main()"


def test_a_silent_trainer_that_ignores_signals_is_ended_with_its_flow(
    checkout: Checkout, warm_python: Path, tmp_path: Path
) -> None:
    """By the usual Python: what ignores signals is ended with its process group, in which no fork is."""
    pids = tmp_path / "pid"
    checkout.set_param("run.processes", 2)  # the trainer is a rank, below torchrun's agent
    checkout.use_python(Path(sys.executable).parent)
    env = checkout.env | {"STANDIN_SILENT": "sft", "STANDIN_PIDS": str(pids), "MATHRL_MIRROR": "none"}
    words, quiet = [sys.executable, "-c", RUN, "run", "sft"], subprocess.DEVNULL
    flow = subprocess.Popen(words, cwd=checkout.folder, env=env, stdout=quiet, stderr=quiet)
    try:
        wait_for(pids.exists, "the trainer", 600)
        trainer = int(pids.read_text())
        assert is_alive(trainer)
        flow.terminate()
        wait_for(lambda: not is_alive(trainer), "the trainer's end", 300)  # it would sleep for 600
        flow.wait(timeout=300)
    finally:
        flow.kill()
    (state,) = (checkout.home / "state").glob("sft-*/")
    assert (state / "checkpoint").read_text() == "step 7", "what it needs to go on is kept"
    checkout.restore_params()
    checkout.use_python(warm_python)


def test_what_a_guard_has_started_ends_with_whoever_started_the_guard(tmp_path: Path) -> None:
    pids = tmp_path / "pid"
    sleeper = f"import os, time; open({str(pids)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    guard = [sys.executable, "-m", "mathrl.core.guard", sys.executable, "-c", sleeper]
    starter = f"import subprocess; subprocess.Popen({guard!r}, stdin=subprocess.PIPE).wait()"
    flow = subprocess.Popen([sys.executable, "-c", starter], cwd=Path(__file__).parents[2])
    try:
        wait_for(lambda: pids.exists() and pids.read_text(), "what it starts", 600)
        assert is_alive(int(pids.read_text()))
    finally:
        flow.kill()
        flow.wait()
    wait_for(lambda: not is_alive(int(pids.read_text())), "its end", 300)


def test_ctrl_c_during_dvc_repro_ends_in_a_sentence(checkout: Checkout, tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.write_text("difficulty")
    env = checkout.env | {"STANDIN_HELD": f"@{held}", "MATHRL_MIRROR": "none"}
    repro = subprocess.Popen(
        ["dvc", "repro", "difficulty"],
        cwd=checkout.folder,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    wait_for(lambda: list((checkout.home / "state").glob("difficulty-*/checkpoint")), "its first step", 600)
    os.killpg(repro.pid, signal.SIGINT)  # as a terminal does
    output = repro.communicate(timeout=300)[0]
    assert "difficulty: stopped; start it again to resume" in output
    assert "Traceback" not in output
    records = list((checkout.home / "records").glob("difficulty-*/run.json"))
    assert '"status": "stopped"' in records[0].read_text()


def test_training_goes_on_when_the_tracking_server_is_down_and_is_uploaded_later(checkout: Checkout) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
    checkout.mathrl("runs", "sync")  # of difficulty, which the test above has stopped
    before = {run["id"] for run in checkout.mlflow_runs()}
    done = checkout.mathrl("run", "rl", MLFLOW_TRACKING_URI=nobody)
    assert f"{nobody} does not answer" in done.stderr, "the flow says it at once"
    assert (checkout.folder / "models" / "rl").is_dir()
    refused = checkout.mathrl("runs", "sync", ok=False, MLFLOW_TRACKING_URI=nobody)
    assert refused.returncode == 2 and "start it with `mathrl ui`" in refused.stderr
    checkout.mathrl("runs", "sync")
    after = {run["id"]: run for run in checkout.mlflow_runs()}
    new = [after[run]["tags"].get("dvc.stage", "parent") for run in after.keys() - before]
    assert sorted(stage for stage in new if stage != "parent") == ["mix", "rl"]
    ended = {run["tags"].get("dvc.stage"): run["status"] for run in after.values()}
    assert ended["difficulty"] == ended["mix"] == ended["rl"] == "FINISHED"
    checkout.mathrl("runs", "sync")
    assert {run["id"] for run in checkout.mlflow_runs()} == set(after), "a second upload adds nothing"


@pytest.fixture
def prefect_server(
    tmp_path: Path, checkout: Checkout, empty_prefect: Path, held_port: socket.socket
) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """A server of its own, with its address."""
    shutil.copytree(empty_prefect, tmp_path / "prefect")
    port = held_port.getsockname()[1]
    url = f"http://127.0.0.1:{port}/api"
    server = subprocess.Popen(
        [checkout.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)],
        env=checkout.env | {"PREFECT_HOME": str(tmp_path / "prefect"), "PREFECT_API_URL": url},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    def answers() -> bool:
        try:
            return bool(urllib.request.urlopen(f"{url}/health", timeout=20).status == 200)
        except OSError:
            return False

    try:
        wait_for(answers, "Prefect's server", 300)
        yield url, server
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@pytest.mark.timeout(900)
def test_prefects_server_dies_in_the_middle_and_the_stages_end_by_themselves(
    checkout: Checkout, prefect_server: tuple[str, "subprocess.Popen[bytes]"]
) -> None:
    url, server = prefect_server
    checkout.set_param("difficulty.samples", 9)
    env = checkout.env | {"STANDIN_SLOW": "difficulty", "PREFECT_API_URL": url, "PREFECT_CLIENT_MAX_RETRIES": "1"}
    env |= {"MATHRL_MIRROR": "none"}
    flow = subprocess.Popen(
        [checkout.executable, "-c", RUN, "run", "mix", "--allow-dirty"],
        cwd=checkout.folder,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        steps = checkout.home / "state"
        wait_for(lambda: [*steps.glob("difficulty-*/checkpoint")] or flow.poll() is not None, "its first step", 300)
        os.killpg(server.pid, signal.SIGKILL)
        output, _ = flow.communicate(timeout=500)
    finally:
        flow.kill()
    assert flow.returncode in (0, 2), output
    assert flow.returncode == 0 or "error: Prefect's server stopped answering" in output
    assert "Traceback" not in output, output
    assert "difficulty stands in" in output and "mix stands in" in output, output
    again = checkout.repro("mix", MATHRL_MIRROR="none")
    assert "stands in" not in again.stdout + again.stderr, "what they made is kept"


BESIDE = """
import sys
from pathlib import Path
from mathrl.tasks.repro import Repro, end_with_block, environment
def show(text):
    sys.stderr.write(text)
    if "difficulty stands in" in text:
        begun.set()
import threading
begun = threading.Event()
with end_with_block(Repro(Path.cwd(), "mix", environment(), show)):
    begun.wait(600)
    raise RuntimeError("a server that does not answer")
"""


def test_what_fails_beside_the_stages_does_not_end_them(checkout: Checkout) -> None:
    """Prefect's client says in many ways that its server is gone, not all of them errors of HTTP."""
    checkout.set_param("difficulty.samples", 10)
    done = checkout.run(checkout.executable, "-c", BESIDE, ok=False, STANDIN_SLOW="difficulty", MATHRL_MIRROR="none")
    assert done.returncode == 1 and "RuntimeError: a server that does not answer" in done.stderr
    assert "the stages run to their end" in done.stderr and "mix stands in" in done.stderr
