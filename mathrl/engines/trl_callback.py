"""mathrl's part in a training of TRL: metrics, health, dev accuracy, checkpoints and stopping, at the end of each step.

A step is mathrl's: a rollout with all its updates; TRL counts the updates.
"""

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.progress import Progress
from mathrl.engines.trl_checkpoints import seal
from mathrl.engines.trl_packages import TrainerCallback
from mathrl.learners.distributed import Ranks
from mathrl.learners.preemption import StopRequest
from mathrl.trainers.training_run import TrainingLog

# TRL's names of a figure, and mathrl's.
NAMES = {
    "grad_norm": "grad_norm",
    "entropy": "entropy",
    "kl": "kl",
    "clip_ratio/region_mean": "clip_fraction",
    "cispo_clip_ratio": "clip_fraction",
}
# What the progress bar shows, and the figure it is.
SHOWN = {"accuracy": "reward/accuracy", "length": "response_length", "loss": "loss"}


class StepCallback(TrainerCallback):  # type: ignore[misc]
    """Called by TRL at every rank.

    `figures` gives mathrl's figures of a step that took so many seconds, `evaluate` those of a dev evaluation, `values`
    what a checkpoint keeps beside TRL's files. `latest` has the last value of every figure. `stopped` is set when a
    signal ended the training before its last step.
    """

    def __init__(
        self,
        *,
        steps: int,
        updates: int,
        checkpoint_every: int,
        lr: float,
        loss_name: str,
        log: TrainingLog,
        stop: StopRequest,
        bar: Progress,
        ranks: Ranks,
        figures: Callable[[int, float], dict[str, float]],
        evaluate: Callable[[int], dict[str, float]],
        values: Callable[[], dict[str, Any]],
    ) -> None:
        self.steps, self.updates, self.checkpoint_every = steps, updates, checkpoint_every
        self.lr, self.loss_name, self.log, self.stop, self.bar = lr, loss_name, log, stop, bar
        self.ranks, self.figures, self.evaluate, self.values = ranks, figures, evaluate, values
        self.stopped, self.row, self.start = False, dict[str, float](), time.perf_counter()
        self.latest = dict[str, float]()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self.updates == 0:
            self.start = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        step, update = divmod(state.global_step, self.updates)
        if update:
            return
        end = time.perf_counter()
        self.row = {**self.figures(step, end - self.start), "time/step": end - self.start}
        self.row |= self.evaluate(step)
        if "dev/accuracy" in self.row or "dev/loss" in self.row:
            self.row["time/eval"] = time.perf_counter() - end
        last = step == self.steps
        save, stopping = self.stop.boundary(last or step % self.checkpoint_every == 0)
        control.should_save = save
        self.stopped = stopping and not last
        control.should_training_stop = control.should_training_stop or self.stopped

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, float], **_: Any) -> None:
        """After `on_step_end`, with the means of TRL's figures over the step's updates; before the checkpoint."""
        if not self.row:
            return  # TRL's summary at the end
        step, row = state.global_step // self.updates, self.row
        self.row = {}
        row |= {self.loss_name: logs["loss"], "lr_factor": logs["learning_rate"] / self.lr}
        row |= {ours: logs[theirs] for theirs, ours in NAMES.items() if logs.get(theirs) is not None}
        self.latest |= row
        self.log.write(step, row)
        self.log.check_health(step, row)
        bad = [name for name in (self.loss_name, "grad_norm") if not math.isfinite(row.get(name, 0.0))]
        if bad:
            raise UserError(
                f"step {step}: {' and '.join(bad)} of TRL's update is not finite, and TRL has no means to skip it: "
                "lower the learning rate, set optimizer.clip_norm, look at the rewards"
            )
        self.bar.advance(1, **{name: row[key] for name, key in SHOWN.items() if key in row})

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        seal(Path(args.output_dir) / f"checkpoint-{state.global_step}", self.values(), self.ranks)
