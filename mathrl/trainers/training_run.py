"""What every trainer is given beside its model and data: ranks, seed, state folder, metrics, health."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mathrl.core.metrics import JsonlSink
from mathrl.core.records import EVENTS
from mathrl.core.types import Problem
from mathrl.health.mismatch import check_mismatch
from mathrl.health.watch import HealthMonitor
from mathrl.learners.distributed import Ranks
from mathrl.params import Params
from mathrl.params.rollout import Rollout
from mathrl.params.train import Rl


@dataclass(frozen=True)
class TrainingRun:
    """Where a trainer runs; `state` holds its checkpoints, from which it resumes.

    `open_metrics` is called at rank 0 with the step that the run resumes after, or None at a new run;
    `health`, if there is one, judges every row of the metrics. `rollouts` is the folder of kept rollouts, `events` the
    file of an asynchronous run's events (state/events.jsonl if unset).

    Example:
        TrainingRun(Ranks(torch.device("cpu")), Path("state"), 0, lambda after: JsonlSink(file, resume_after=after))
    """

    ranks: Ranks
    state: Path
    seed: int
    open_metrics: Callable[[int | None], JsonlSink]
    health: HealthMonitor | None = None
    rollouts: Path | None = None
    events: Path | None = None

    @property
    def events_file(self) -> Path:
        return self.events or self.state / EVENTS

    def open_log(self, resume_after: int | None) -> "TrainingLog":
        return TrainingLog(self, resume_after)


class TrainingLog:
    """The metrics file and the health of a run, at rank 0; the other ranks write and judge nothing."""

    def __init__(self, run: TrainingRun, resume_after: int | None) -> None:
        self.sink = run.open_metrics(resume_after) if run.ranks.rank == 0 else None
        self.health = run.health if self.sink is not None else None
        self.warned_mismatch = 1.0
        if self.sink is not None and self.health is not None:
            self.health.resume(self.sink.rows())

    def write(self, step: int, row: Mapping[str, float]) -> None:
        if self.sink is not None:
            self.sink.log(step, row)

    def check_health(self, step: int, row: Mapping[str, float]) -> None:
        """Raises UserError: a rule finds the run red, and health.action is stop."""
        if self.health is not None:
            self.health.check(step, row)

    def check_mismatch(self, step: int, row: Mapping[str, float], rollout: Rollout) -> None:
        """At every rank. Raises UserError: sampler and trainer are too far apart, and rollout.on_mismatch is stop."""
        self.warned_mismatch = check_mismatch(row, rollout, step, self.warned_mismatch)


@dataclass(frozen=True)
class RlInputs:
    """What an engine trains with, by RL.

    `start` is the folder of the model; `few_shot` are the examples of every prompt; `others` are the folders of other
    models: reward_model, process_reward_model, critic, reference, teacher (see `mathrl.trainers.open_rl.Helpers`).
    `resolved` is told what the engine chose for this machine; `folder` takes the engine's own output.
    `benchmarks` are the problems of rl.eval_benchmarks by their names.
    """

    params: Params
    run: TrainingRun
    start: Path
    problems: Sequence[Problem]
    dev: Sequence[Problem]
    few_shot: Sequence[Problem]
    others: Mapping[str, Path]
    resolved: Callable[[Rollout, Rl], None]
    folder: Path
    benchmarks: Mapping[str, Sequence[Problem]] = field(default_factory=dict)


@dataclass(frozen=True)
class RlResult:
    """Steps done, tokens sampled and tokens trained on (packed, prompts once per group).

    `dev_accuracy` is that of the weights the model ends with, those after `exported_step` steps; None if it
    was not measured.
    """

    steps: int
    sampled_tokens: int
    trained_tokens: int
    dev_accuracy: float | None
    exported_step: int


@dataclass(frozen=True)
class TrainedModel:
    """The model that an engine has trained, its tokenizer, and the figures of the run."""

    network: Any
    tokenizer: Any
    result: RlResult
