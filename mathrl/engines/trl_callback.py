"""mathrl's part in a training of TRL: metrics, health, dev accuracy, checkpoints and stopping, at the end of each step.

A step is mathrl's: a rollout with all its updates; TRL counts the updates.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.progress import Progress, progress
from mathrl.engines.trl_checkpoints import SealedCheckpoint, seal
from mathrl.engines.trl_packages import TrainerCallback
from mathrl.learners.distributed import Ranks
from mathrl.learners.preemption import Stopped, StopRequest
from mathrl.params.engines import TRL_METRICS
from mathrl.trainers.training_run import TrainingLog, TrainingRun

# What the progress bar shows, and the figure it is.
SHOWN = {"accuracy": "reward/accuracy", "length": "response_length", "loss": "loss"}


@dataclass(frozen=True)
class StepEnds:
    """What a stage does at the end of its steps, each of `updates` optimizer steps.

    `figures` gives mathrl's figures of a step that took so many seconds, `evaluate` those of a dev evaluation, and
    `values` what a checkpoint keeps beside TRL's files, from the last value of every figure.

    Example: StepEnds("sft", count=600, updates=1, checkpoint_every=100, lr=0.003, loss_name="loss", figures=…, …)
    """

    name: str
    count: int
    updates: int
    checkpoint_every: int
    lr: float
    loss_name: str
    figures: Callable[[int, float], dict[str, float]]
    evaluate: Callable[[int], dict[str, float]]
    values: Callable[[dict[str, float]], dict[str, Any]]


def train_steps(
    trainer: Any, steps: StepEnds, saved: SealedCheckpoint | None, latest: dict[str, float], run: TrainingRun
) -> dict[str, float]:
    """Train to the end, from the checkpoint if there is one, whose figures are `latest`; the last figures.

    Raises:
        UserError: an update is not finite, or health ends the run.
        Stopped: after a signal, once the checkpoint is written.
    """
    done = saved.step // steps.updates if saved else 0
    log = run.open_log(done if saved else None)
    with StopRequest(run.ranks) as stop, progress(steps.name, steps.count, done) as bar:
        callback = StepCallback(steps, latest, log, stop, bar, run.ranks)
        trainer.add_callback(callback)
        trainer.train(resume_from_checkpoint=str(saved.folder) if saved else None)
        if callback.stopped:
            raise Stopped
    return callback.latest


class StepCallback(TrainerCallback):  # type: ignore[misc]
    """Called by TRL at every rank. `stopped` is set when a signal ended the training before its last step."""

    def __init__(
        self,
        steps: StepEnds,
        latest: dict[str, float],
        log: TrainingLog,
        stop: StopRequest,
        bar: Progress,
        ranks: Ranks,
    ) -> None:
        self.steps, self.latest, self.log, self.stop, self.bar, self.ranks = steps, {**latest}, log, stop, bar, ranks
        self.stopped, self.row, self.start = False, dict[str, float](), time.perf_counter()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self.steps.updates == 0:
            self.start = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        step, update = divmod(state.global_step, self.steps.updates)
        if update:
            return
        end = time.perf_counter()
        self.row = {**self.steps.figures(step, end - self.start), "time/step": end - self.start}
        self.row |= self.steps.evaluate(step)
        if "dev/accuracy" in self.row or "dev/loss" in self.row:
            self.row["time/eval"] = time.perf_counter() - end
        last = step == self.steps.count
        save, stopping = self.stop.boundary(last or step % self.steps.checkpoint_every == 0)
        control.should_save = save
        self.stopped = stopping and not last
        control.should_training_stop = control.should_training_stop or self.stopped

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, float], **_: Any) -> None:
        """After `on_step_end`, with the means of TRL's figures over the step's updates; before the checkpoint."""
        if not self.row:
            return  # TRL's summary at the end
        step, row = state.global_step // self.steps.updates, self.row
        self.row = {}
        row[self.steps.loss_name] = logs["loss"]
        if self.steps.lr:
            row["lr_factor"] = logs["learning_rate"] / self.steps.lr
        row |= {ours: logs[theirs] for theirs, ours in TRL_METRICS.items() if logs.get(theirs) is not None}
        self.latest |= row
        self.log.write(step, row)
        self.log.check_health(step, row)
        bad = [name for name in (self.steps.loss_name, "grad_norm") if not math.isfinite(row.get(name, 0.0))]
        if bad:
            raise UserError(
                f"step {step}: {' and '.join(bad)} of TRL's update is not finite, and TRL has no means to skip it: "
                "lower the learning rate, set optimizer.clip_norm, look at the rewards"
            )
        self.bar.advance(1, **{name: row[key] for name, key in SHOWN.items() if key in row})

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        seal(Path(args.output_dir) / f"checkpoint-{state.global_step}", self.steps.values(self.latest), self.ranks)
