"""A run that is stopped or killed and resumed ends in the same bits; a dead rank ends all.

Kills: tests/faults; cuts between any two steps of RL: test_rl_resume.py, on two processes test_deepspeed.py.
"""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from mathrl.core.exit_status import EXIT_KILLED
from mathrl.models.base import make_base
from mathrl.params import load_params

Make = Callable[..., "Workspace"]  # noqa: F821


def test_stopped_run_ends_soon_with_status_75_and_resumes(make_workspace: Make) -> None:
    whole, stopped = (make_workspace("run.processes=2") for _ in range(2))
    for each in (whole, stopped):
        model = load_params(each.folder / "params").model
        make_base(model, each.folder / "models" / "sft", 0)
    whole.run("rl")
    process = stopped.interrupt("rl", 4, signal.SIGTERM)
    _, errors = process.communicate(timeout=60)  # tests/learners/test_preemption.py has its seconds
    assert process.returncode == 75, errors
    assert not (stopped.folder / "models" / "rl").exists()
    stopped.run("rl")
    assert stopped.output("rl") == whole.output("rl")
    assert not list((stopped.folder / "home" / "state").glob("rl-*/")), "state is removed on success"
    # The runs have something to differ in: weights that moved, rewards that vary.
    weights, rows = whole.output("rl")
    assert weights != (whole.folder / "models" / "sft" / "model.safetensors").read_bytes()
    assert max(row["grad_norm"] for row in rows) > 0 and max(row["reward/overall_std"] for row in rows) > 0


def test_fine_tuning_killed_while_its_model_is_exported_ends_as_if_it_was_not(make_workspace: Make) -> None:
    whole, killed = (make_workspace("sft.steps=3") for _ in range(2))
    whole.run("sft")
    killed.run("sft", status=EXIT_KILLED, fault="export:1")
    assert killed.steps_logged("sft") == 3 and not (killed.folder / "models" / "sft").exists()
    killed.run("sft")
    assert killed.output("sft") == whole.output("sft")
    assert (killed.folder / "models/sft/README.md").read_text() == (whole.folder / "models/sft/README.md").read_text()
    summary = killed.record("sft")["summary"]
    assert summary == whole.record("sft")["summary"] and set(summary) == {"loss", "dev/loss", "tokens"}
    assert all(value > 0 for value in summary.values())


def test_dead_rank_ends_the_stage_with_a_sentence(make_workspace: Make) -> None:
    workspace = make_workspace("run.processes=2", "sft.steps=5000")
    process = workspace.start_until("sft", 2)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 2
    sent = time.monotonic()
    os.kill(int(children[1]), signal.SIGKILL)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == EXIT_KILLED and time.monotonic() - sent < 12
    # Rank 0 may have told of its broken connection before.
    message = [line for line in errors.splitlines() if line.startswith("error: ")][-1]
    assert message.startswith("error: rank 1 of 2 ended with signal 9; its output is in ")
    assert Path(message.split()[-1]).exists()
    record = workspace.record("sft")
    assert record["status"] == "failed" and f"error: {record['error']}" == message


def test_ranks_die_with_their_launcher(make_workspace: Make) -> None:
    workspace = make_workspace("run.processes=2", "sft.steps=5000")
    process = workspace.start_until("sft", 2)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    process.communicate(timeout=60)
    files = [Path(f"/proc/{pid}/cmdline") for pid in children]
    deadline = time.monotonic() + 60
    while alive := [file for file in files if file.exists() and b"mathrl.stages" in file.read_bytes()]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.05)


def test_too_low_pass_rate_stops_rl_with_one_sentence(make_workspace: Make) -> None:
    workspace = make_workspace("run.processes=2", "rl.min_pass_at_8=0.9", "sft.steps=0")
    workspace.run("sft")
    errors = workspace.run("rl", status=2)
    said = [line for line in errors.splitlines() if line.startswith("error:")]
    assert len(said) == 1 and "rl.min_pass_at_8" in said[0]
    assert not (workspace.folder / "models" / "rl").exists()
