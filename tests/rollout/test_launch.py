"""The ranks of a stage: how many this machine has a place for, what they exchange, and how their failures end it."""

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from mathrl.core import gpus as gpu_counting
from mathrl.core.errors import EXIT_KILLED, EXIT_STOPPED, UserError
from mathrl.params.run import Run
from mathrl.rollout import launch

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, signal, sys, threading, time
from pathlib import Path
import torch
from mathrl.core import errors
from mathrl.core.environment import rank
from mathrl.core.errors import UserError, exit_on_user_error
from mathrl.compose import load_params
from mathrl.rollout import launch
from mathrl.rollout.launch import listen_on_loopback, run_ranks
from mathrl.rollout.ranks import gather

CHECKS = ("is_available", "device_count", "init", "_lazy_init")

def listen():
    import psutil
    from mathrl.rollout.ranks import gather, neighbours
    gather(rank())
    neighbours(3)
    if rank() == 0:
        agent = psutil.Process().parent()
        listening = [
            connection.laddr.ip for process in (agent, *agent.children())
            for connection in process.net_connections() if connection.status == "LISTEN"
        ]
        print(len(listening), set(listening), flush=True)
    gather(rank())

def exchange():
    from mathrl.rollout.ranks import from_rank_0, gather
    chosen = from_rank_0(lambda: {"of": rank()})
    print(rank(), chosen, gather([rank()] * (rank() + 1)), flush=True)

def record_checks():
    asked = []  # of CUDA by this process; forks copy it
    for name in CHECKS:
        def ask(*args, name=name, check=getattr(torch.cuda, name)):
            asked.append(name)
            return check(*args)
        setattr(torch.cuda, name, ask)
    torch.cuda.asked = asked

def use_cuda():
    print(torch.cuda.asked, torch.cuda._is_in_bad_fork(), flush=True)
    if torch.cuda._is_compiled():
        try:
            torch.cuda.set_device(0)
        except RuntimeError as error:
            assert "forked" not in str(error), error  # without a GPU: "Found no NVIDIA driver"

def wrong_everywhere():
    errors.OTHER_RANKS_WAIT_SECONDS = 300  # on a busy machine rank 0 comes late
    exit_on_user_error(fail)

def fail():
    raise UserError("no such model")

def wrong_at_1():
    if rank() == 1:
        raise ValueError("odd")
    time.sleep(60)

def killed_at_1():
    import psutil
    agent, suspended = psutil.Process(os.getppid()), Path(sys.argv[1], "suspended")
    if rank() == 2:  # the agent finds the two others ended at one look
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        agent.suspend()
        suspended.touch()
        while sum(child.status() == "zombie" for child in agent.children()) < 2:
            time.sleep(0.01)
        agent.resume()
        time.sleep(600)
    while not suspended.exists():
        time.sleep(0.01)
    if rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError("connection closed by peer")

def stopped():
    gather(rank())
    if rank() == 0:
        os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(20)
    Path(sys.argv[1], "went on").touch()

def run(function, folder):
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / name, os.O_CREAT | os.O_WRONLY), number)
    if function == "use_cuda":
        record_checks()
    if function == "stopped":
        launch.STOP_SECONDS = 60
    listen_on_loopback("sft", load_params())
    run_ranks(3, globals()[function], folder / "logs")

if __name__ == "__main__":  # each function in a process of its own, which has imported torch
    assert threading.active_count() == 1, "a process with threads must not fork"
    for function in sys.argv[2:]:
        folder = Path(sys.argv[1], function)
        folder.mkdir()
        if (process := os.fork()) == 0:
            run(function, folder)
            break
        (folder / "status").write_text(str(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])))
"""


# A machine whose name is the address of its network, where gloo listens by default.
NETWORK = """
ip link set lo up && ip link add one type veth peer name other && ip addr add 10.9.9.1/24 dev one && ip link set one up
echo 10.9.9.1 > /proc/sys/kernel/hostname && exec "$@"
"""
IN_NETWORK = ["unshare", "-rnu", "sh", "-c", NETWORK, "sh"]


class Done(NamedTuple):
    status: int
    output: str
    errors: str
    logs: Path


def start(folder: Path, functions: Sequence[str], *within: str) -> dict[str, Done]:
    """What the ranks do that run each function: status, output and the folder with their logs."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    words = [*within, sys.executable, str(program), str(folder), *functions]
    subprocess.run(words, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)
    read = {name: [(folder / name / file).read_text() for file in ("status", "stdout", "stderr")] for name in functions}
    return {name: Done(int(read[name][0]), *read[name][1:], folder / name / "logs") for name in functions}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Done]:
    functions = ("exchange", "use_cuda", "wrong_everywhere", "wrong_at_1", "killed_at_1", "stopped")
    return start(tmp_path_factory.mktemp("ranks"), functions)


def outputs(logs: Path) -> list[str]:
    return [file.read_text() for file in sorted(logs.glob("**/stdout.log"))]


def test_ranks_exchange_values_and_the_terminal_shows_rank_0(done: dict[str, Done]) -> None:
    status, output, errors, logs = done["exchange"]
    assert (status, output) == (0, "0 {'of': 0} [[0], [1, 1], [2, 2, 2]]\n"), errors
    assert outputs(logs) == ["1 {'of': 0} None\n", "2 {'of': 0} None\n"]


def test_a_rank_can_use_cuda_because_its_parent_has_not(done: dict[str, Done]) -> None:
    """With a CUDA build of torch, a GPU or none, this asks CUDA itself: `make cuda-ranks`."""
    status, output, errors, logs = done["use_cuda"]
    assert (status, output) == (0, "[] False\n"), errors
    assert outputs(logs) == ["[] False\n", "[] False\n"]


def test_ranks_and_their_store_listen_on_loopback_alone(tmp_path: Path) -> None:
    allowed = all(map(shutil.which, ("unshare", "ip"))) and not subprocess.call([*IN_NETWORK, "true"])
    status, output, errors, _ = start(tmp_path, ["listen"], *(IN_NETWORK if allowed else ()))["listen"]
    assert status == 0, errors
    count, hosts = output.split(maxsplit=1)
    assert int(count) >= 4 and hosts == "{'127.0.0.1'}\n", "three ranks and the store"


def test_an_error_of_all_ranks_is_shown_once(done: dict[str, Done]) -> None:
    assert (done["wrong_everywhere"].status, done["wrong_everywhere"].errors) == (2, "error: no such model\n")


def test_an_error_of_one_rank_is_shown_with_the_end_of_its_output(done: dict[str, Done]) -> None:
    status, _, errors, logs = done["wrong_at_1"]
    (log,) = logs.glob("**/1/stderr.log")
    *traceback, message = errors.splitlines()
    assert traceback[-1] == "ValueError: odd"
    assert message == f"error: rank 1 of 3 ended with exit status 1; its output is in {log}" and status == 1


def test_when_rank_0_was_stopped_the_others_do_not_go_on(done: dict[str, Done]) -> None:
    status, _, errors, logs = done["stopped"]
    assert (status, errors) == (EXIT_STOPPED, "") and not (logs.parents[1] / "went on").exists()


def test_a_rank_that_was_killed_is_named_and_not_the_one_that_missed_it(done: dict[str, Done]) -> None:
    status, _, errors, _ = done["killed_at_1"]
    assert status == EXIT_KILLED, errors
    assert errors.splitlines()[-1].startswith("error: rank 1 of 3 ended with signal 9; its output is in ")


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that lists four."""
    listing = "".join(f"GPU {number}: H100 (UUID: GPU-4{number:x})\n" for number in (0, 1, 2, 3))
    monkeypatch.setattr(gpu_counting, "installed_gpus", lambda: listing)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(
    ("device", "visible", "slots"),
    [("auto", None, 4), ("cuda", "1,3", 2), ("auto", "GPU-40,GPU-43", 2), ("auto", "", None), ("cpu", None, None)],
)
def test_a_gpu_or_a_quarter_of_a_core_is_a_slot(
    gpus: None, monkeypatch: pytest.MonkeyPatch, device: str, visible: str | None, slots: int | None
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    expected = 4 * len(os.sched_getaffinity(0)) if slots is None else slots
    assert launch.local_slots(device)[0] == expected


def test_processes_for_several_machines_are_refused_on_one_unless_a_stage_only_samples(
    gpus: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert launch.process_count(Run(processes=4), fewer=False) == 4 and not capsys.readouterr().err
    assert launch.process_count(Run(processes=8), fewer=False) == 4, "as the demo's two on one GPU"
    assert launch.process_count(Run(processes=128), fewer=True) == 4
    assert "run.processes=128 but this machine has 4 GPUs; using 4 processes" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"128 but this machine has 4 GPUs: .* torchrun"):
        launch.process_count(Run(processes=128), fewer=False)
    monkeypatch.setenv("WORLD_SIZE", "128")
    assert launch.process_count(Run(processes=128), fewer=False) == 1, "torchrun has started them"


def test_ranks_start_where_output_is_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook's is none; and a fork of a process that has used CUDA cannot use it."""
    with Path(os.devnull).open("w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        monkeypatch.setattr(sys, "stderr", file)
        assert launch.can_fork_ranks()
        monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
        assert not launch.can_fork_ranks()
        monkeypatch.undo()
        monkeypatch.setattr(sys, "stdout", io.StringIO())
        assert not launch.can_fork_ranks()
