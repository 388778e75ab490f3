"""What the trainers of TRL have in common: the model that they train, mathrl's schedule of the learning rate, and
mathrl's part in each step: metrics, health, dev accuracy, checkpoints and signals."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from mathrl.core.errors import UserError
from mathrl.core.metrics import Progress, progress
from mathrl.engines.trl_checkpoints import SealedCheckpoint, seal
from mathrl.engines.trl_packages import GRPOTrainer, SFTTrainer, TrainerCallback
from mathrl.learners.distributed import Ranks
from mathrl.learners.optimizer import schedule
from mathrl.learners.preemption import Stopped, StopRequest
from mathrl.models.load import resolve_folder, while_loading
from mathrl.models.tool_messages import end_tokens
from mathrl.models.transformers_import import AutoModelForCausalLM
from mathrl.params.engines import TRL_METRICS
from mathrl.params.optimizer import Optimizer
from mathrl.params.run import Model
from mathrl.trainers.training_run import TrainingLog, TrainingRun


class _Scheduled:
    """mathrl's schedule of the learning rate, and no card per checkpoint."""

    schedule: Optimizer
    lr_scheduler: Any
    optimizer: Any

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        if self.lr_scheduler is None:
            factor = partial(_factor, self.schedule, num_training_steps)
            self.lr_scheduler = LambdaLR(optimizer or self.optimizer, factor)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def create_model_card(self, *arguments: Any, **named: Any) -> None:
        pass


class ScheduledGRPOTrainer(_Scheduled, GRPOTrainer):  # type: ignore[misc]
    """TRL's GRPOTrainer with mathrl's schedule."""


class ScheduledSFTTrainer(_Scheduled, SFTTrainer):  # type: ignore[misc]
    """TRL's SFTTrainer with mathrl's schedule."""


def _factor(optimizer: Optimizer, steps: int, step: int) -> float:
    return schedule(optimizer, step, steps)


def load_for_trl(folder: Path, model: Model, tokenizer: Any) -> Any:
    """The folder's model with float32 weights and its own layers, ending responses where mathrl's sampler does."""
    path, options = resolve_folder(folder, model)
    with while_loading(folder, "a causal language model", "a Hugging Face folder with config.json and *.safetensors"):
        network = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, use_safetensors=True, **options)
    network.generation_config.eos_token_id = end_tokens(tokenizer, network.generation_config)
    return network


# What the progress bar shows, and the figure it is.
SHOWN = {"accuracy": "reward/accuracy", "length": "response_length", "loss": "loss"}


@dataclass(frozen=True)
class StepEnds:
    """What a stage does at the end of its steps, each a rollout with all its `updates` optimizer steps, as TRL counts.

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
