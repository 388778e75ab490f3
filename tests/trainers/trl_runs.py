"""Stages trained by TRL, one after the other in one process, since TRL's imports take seconds.

`python trl_runs.py WHOLE KILLED STOPPED OWN` runs the stage sft in the workspaces WHOLE and OWN without interruption,
and in KILLED twice, cut off after the metrics of step 7; STOPPED has the model of WHOLE. It runs the stage rl in WHOLE
without an interruption, and in KILLED twice, cut off after the metrics of step 4. For the overrides on stdin it has
TRL's GRPOConfig take the arguments. It prints all of that as JSON. At last it runs rl in STOPPED, where a SIGTERM at
step 4 ends the program.
"""

import json
import os
import runpy
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mathrl.engines.trl_sft
from mathrl.compose import load_params
from mathrl.core.metrics import JsonlSink
from mathrl.engines.trl_arguments import grpo_arguments
from mathrl.engines.trl_packages import GRPOConfig
from mathrl.learners import preemption

assert mathrl.engines.trl_sft, "imported first, as the stage does; transformers must find accelerate"
ROOT = Path(__file__).parents[2]
LOG = JsonlSink.log


class Killed(BaseException):
    """What cuts a run off as a kill does: no checkpoint is written after it."""


def kill() -> None:
    raise Killed


def run(stage: str, folder: Path, step: int = 0, end: Callable[[], None] = kill) -> str:
    """Run the stage in the folder, and call `end` once the metrics of `step` are logged: how it ended."""

    def log(self: JsonlSink, logged: int, metrics: Any) -> None:
        LOG(self, logged, metrics)
        if logged == step:
            end()

    JsonlSink.log = log  # type: ignore[method-assign]
    os.chdir(folder)
    os.environ["MATHRL_HOME"] = str(folder / "home")
    sys.argv = [stage]
    try:
        runpy.run_module(f"mathrl.stages.{stage}", run_name="__main__")
    except Killed:
        return "killed"
    return "finished"


def shapes(overrides: list[str]) -> dict[str, Any]:
    """What TRL's own configuration derives from the arguments."""
    params = load_params(ROOT / "params", overrides=overrides)
    arguments = grpo_arguments(params, world=1, on_cpu=True, longest=128)
    config = GRPOConfig(output_dir="unused", **arguments)
    assert all(getattr(config, name) == value for name, value in arguments.items() if value)
    return {
        name: getattr(config, name)
        for name in ("generation_batch_size", "steps_per_generation", "gradient_accumulation_steps", "max_steps")
    }


if __name__ == "__main__":
    whole, killed, stopped, own = (Path(word) for word in sys.argv[1:])
    sft = [run("sft", whole), run("sft", killed, 7), run("sft", killed), run("sft", own)]
    shutil.copytree(whole / "models", stopped / "models")
    configured = [shapes(overrides) for overrides in json.load(sys.stdin)]
    rl = [run("rl", whole), run("rl", killed, 4), run("rl", killed)]
    print(json.dumps({"sft": sft, "rl": rl, "configured": configured}), flush=True)
    preemption.SAVE_SECONDS, preemption.GRACE_SECONDS = 600.0, 600.0  # until the step ends, however slow the machine
    run("rl", stopped, 4, lambda: os.kill(os.getpid(), signal.SIGTERM))
