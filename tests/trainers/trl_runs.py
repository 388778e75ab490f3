"""Stages trained by TRL, one after the other in one process, since TRL's imports take seconds.

`python trl_runs.py WHOLE KILLED STOPPED` runs the stage rl in the workspace WHOLE without an interruption. In KILLED it
runs it three times: the first is cut off after the metrics of step 4, the second after step 7. For the overrides on
stdin it has TRL's GRPOConfig take the arguments. It prints all of that as JSON. At last it runs the stage in STOPPED,
where a SIGTERM at step 4 ends the program.
"""

import json
import os
import runpy
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mathrl.engines.trl_rl
from mathrl.core.metrics import JsonlSink
from mathrl.engines.trl_arguments import grpo_arguments
from mathrl.engines.trl_packages import GRPOConfig
from mathrl.models.base import make_base
from mathrl.params import load_params

assert mathrl.engines.trl_rl
ROOT = Path(__file__).parents[2]
LOG = JsonlSink.log


class Killed(BaseException):
    """What cuts a run off as a kill does: no checkpoint is written after it."""


def kill() -> None:
    raise Killed


def run(folder: Path, step: int = 0, end: Callable[[], None] = kill) -> str:
    """Run the stage rl in the folder, and call `end` once the metrics of `step` are logged: how it ended."""

    def log(self: JsonlSink, logged: int, metrics: Any) -> None:
        LOG(self, logged, metrics)
        if logged == step:
            end()

    JsonlSink.log = log  # type: ignore[method-assign]
    os.chdir(folder)
    os.environ["MATHRL_HOME"] = str(folder / "home")
    try:
        runpy.run_module("mathrl.stages.rl", run_name="__main__")
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
    whole, killed, stopped = (Path(word) for word in sys.argv[1:])
    for folder in (whole, killed, stopped):
        make_base(load_params(folder / "params").model, folder / "models/sft", 0)
    configured = [shapes(overrides) for overrides in json.load(sys.stdin)]
    ends = [run(whole), run(killed, 4), run(killed, 7), run(killed)]
    print(json.dumps({"ends": ends, "configured": configured}), flush=True)
    run(stopped, 4, lambda: os.kill(os.getpid(), signal.SIGTERM))
