"""A run that is killed and resumed ends in the same bits as one that was not."""

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Make = Callable[..., "Workspace"]  # noqa: F821


def test_killed_run_resumes_to_the_same_bits(make_workspace: Make, uninterrupted: Any) -> None:
    """Two processes; tests/faults kills one, test_rl_resume.py cuts between any two steps of PPO."""
    whole, broken = uninterrupted, make_workspace("run.processes=2")
    shutil.copytree(whole.folder / "models" / "sft", broken.folder / "models" / "sft")
    killed = broken.interrupt("rl", 5, signal.SIGKILL)
    killed.communicate(timeout=30)
    assert killed.returncode == -signal.SIGKILL
    assert not (broken.folder / "models" / "rl").exists() and broken.steps_logged("rl") >= 5
    broken.run("rl")
    assert broken.output("rl") == whole.output("rl")
    weights, rows = whole.output("rl")
    # The runs have something to differ in: weights that moved, rewards that vary.
    assert weights != whole.output("sft")[0]
    assert max(row["grad_norm"] for row in rows) > 0 and max(row["reward/overall_std"] for row in rows) > 0


def test_stopped_run_ends_soon_with_status_75_and_resumes(make_workspace: Make, uninterrupted: Any) -> None:
    stopped = make_workspace("run.processes=2")
    process = stopped.interrupt("sft", 3, signal.SIGTERM)
    sent = time.monotonic()
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 75, errors
    assert time.monotonic() - sent < 10
    stopped.run("sft")
    assert stopped.output("sft") == uninterrupted.output("sft")
    assert not list((stopped.folder / "home" / "state").glob("sft-*/")), "state is removed on success"


def test_dead_rank_ends_the_stage_with_a_sentence(make_workspace: Make) -> None:
    workspace = make_workspace("run.processes=2", "sft.steps=5000")
    process = workspace.start("sft")
    deadline = time.monotonic() + 100
    while workspace.steps_logged("sft") < 2:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    others = [pid for pid in children if b"mathrl.stages.sft" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(others) == 1
    os.kill(int(others[0]), signal.SIGKILL)
    _, errors = process.communicate(timeout=30)
    assert process.returncode not in (0, None)
    assert any(line.startswith("error: rank 1 of 2 ended with signal 9") for line in errors.splitlines())


def test_children_die_with_rank_0(make_workspace: Make) -> None:
    workspace = make_workspace("run.processes=2", "sft.steps=5000")
    process = workspace.start("sft")
    deadline = time.monotonic() + 100
    while workspace.steps_logged("sft") < 2:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    process.communicate(timeout=30)
    time.sleep(1.0)
    alive = [pid for pid in children if Path(f"/proc/{pid}/cmdline").exists()
             and b"mathrl.stages" in Path(f"/proc/{pid}/cmdline").read_bytes()]  # fmt: skip
    assert not alive


def test_too_low_pass_rate_stops_rl_with_one_sentence(make_workspace: Make) -> None:
    workspace = make_workspace("run.processes=2", "rl.min_pass_at_8=0.9", "sft.steps=0")
    workspace.run("sft")
    errors = workspace.run("rl", status=2)
    said = [line for line in errors.splitlines() if line.startswith("error:")]
    assert len(said) == 1 and "rl.min_pass_at_8" in said[0]
    assert not (workspace.folder / "models" / "rl").exists()
