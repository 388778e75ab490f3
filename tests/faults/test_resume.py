"""A run that is stopped or killed and resumed ends in the same bits; a dead rank ends all.

Kills at random moments: test_kills.py; cuts between any two steps of RL: tests/trainers/test_rl_resume.py, on two
processes tests/engines/test_deepspeed.py.
"""

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mathrl.core.errors import EXIT_KILLED
from mathrl.core.guard import is_alive

Make = Callable[..., Any]


def finish(broken: Any, stage: str) -> None:
    status, errors = broken.run(stage)
    assert status == 0, errors


def test_stopped_run_ends_soon_with_status_75_and_resumes(breakable: Make) -> None:
    whole, stopped = (breakable("run.processes=2", server=server) for server in (0, 1))
    finish(whole, "rl")
    shutil.rmtree(stopped.workspace.folder / "models" / "rl")
    process = stopped.start_held("rl", 4)
    process.send_signal(signal.SIGTERM)
    stopped.let_go()
    _, errors = process.communicate()  # tests/learners/test_preemption.py has its seconds
    assert process.returncode == 75, errors
    assert not (stopped.workspace.folder / "models" / "rl").exists()
    finish(stopped, "rl")
    assert stopped.output("rl") == whole.output("rl")
    assert not list((stopped.workspace.folder / "home" / "state").glob("rl-*/")), "state is removed on success"
    # The runs have something to differ in: weights that moved, rewards that vary.
    weights, rows = whole.output("rl")
    assert weights != (whole.workspace.folder / "models" / "sft" / "model.safetensors").read_bytes()
    assert max(row["grad_norm"] for row in rows) > 0 and max(row["reward/overall_std"] for row in rows) > 0


def test_dead_rank_ends_the_stage_with_a_sentence(breakable: Make) -> None:
    broken = breakable("run.processes=2", "sft.steps=5000")
    process = broken.start_until("sft", 2)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 2
    os.kill(int(children[1]), signal.SIGKILL)
    _, errors = process.communicate()
    assert process.returncode == EXIT_KILLED, errors
    # Rank 0 may have told of its broken connection before.
    message = [line for line in errors.splitlines() if line.startswith("error: ")][-1]
    assert message.startswith("error: rank 1 of 2 ended with signal 9; its output is in ")
    assert Path(message.split()[-1]).exists()
    record = broken.workspace.record("sft")
    assert record["status"] == "failed" and f"error: {record['error']}" == message
    assert record["health"]["colour"] == "green", "what rank 0 has recorded stays"


def test_ranks_die_with_their_launcher(breakable: Make) -> None:
    broken = breakable("run.processes=2", "sft.steps=5000")
    process = broken.start_until("sft", 2)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 2 and all(is_alive(int(pid)) for pid in children)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 300
    while alive := [pid for pid in children if is_alive(int(pid))]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.05)
