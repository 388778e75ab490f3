"""The ranks of a stage: how many this machine has a place for, what they exchange, and how their failures end it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mathrl.core import gpus as gpu_counting
from mathrl.core.errors import UserError
from mathrl.params.run import Run
from mathrl.stages import launch

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, sys, time
from pathlib import Path
from mathrl.core.environment import rank
from mathrl.core.errors import UserError, exit_on_user_error
from mathrl.stages.launch import run_ranks

FORKED = []

def exchange():
    from mathrl.rollout.ranks import from_rank_0, gather
    chosen = from_rank_0(lambda: {"of": rank()})
    print(rank(), chosen, gather([rank()] * (rank() + 1)), flush=True)

def use_cuda():
    import torch
    print(FORKED, torch.cuda._is_in_bad_fork(), flush=True)
    if torch.cuda._is_compiled():
        try:
            torch.cuda.set_device(0)
        except RuntimeError as error:
            assert "forked" not in str(error), error  # without a GPU: "Found no NVIDIA driver"

def wrong_everywhere():
    exit_on_user_error(fail)

def fail():
    raise UserError("no such model")

def wrong_at_1():
    if rank() == 1:
        raise ValueError("odd")
    time.sleep(60)

if __name__ == "__main__":
    os.register_at_fork(after_in_child=lambda: FORKED.append("a fork of a process that has asked CUDA cannot use it"))
    run_ranks(3, globals()[sys.argv[1]], Path(sys.argv[2]))
"""


def run(function: str, logs: Path) -> "subprocess.CompletedProcess[str]":
    program = logs.with_name("program.py")
    program.write_text(PROGRAM)
    return subprocess.run(
        [sys.executable, str(program), function, str(logs)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_ranks_exchange_values_and_the_terminal_shows_rank_0(tmp_path: Path) -> None:
    done = run("exchange", tmp_path / "logs")
    assert (done.returncode, done.stdout) == (0, "0 {'of': 0} [[0], [1, 1], [2, 2, 2]]\n"), done.stderr
    logs = [file.read_text() for file in sorted(tmp_path.glob("**/stdout.log"))]
    assert logs == ["1 {'of': 0} None\n", "2 {'of': 0} None\n"]


def test_a_rank_can_use_cuda_although_the_agent_has_asked_it_for_the_gpus(tmp_path: Path) -> None:
    """With a CUDA build of torch, a GPU or none, this asks CUDA itself: `make cuda-ranks`."""
    done = run("use_cuda", tmp_path / "logs")
    assert (done.returncode, done.stdout) == (0, "[] False\n"), done.stderr
    logs = [file.read_text() for file in sorted(tmp_path.glob("**/stdout.log"))]
    assert logs == ["[] False\n", "[] False\n"]


def test_an_error_of_all_ranks_is_shown_once(tmp_path: Path) -> None:
    done = run("wrong_everywhere", tmp_path / "logs")
    assert (done.returncode, done.stderr) == (2, "error: no such model\n")


def test_an_error_of_one_rank_is_shown_with_the_end_of_its_output(tmp_path: Path) -> None:
    done = run("wrong_at_1", tmp_path / "logs")
    (log,) = tmp_path.glob("**/1/stderr.log")
    *traceback, message = done.stderr.splitlines()
    assert traceback[-1] == "ValueError: odd"
    assert message == f"error: rank 1 of 3 ended with exit status 1; its output is in {log}" and done.returncode == 1


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
