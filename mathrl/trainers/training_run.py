"""What every trainer is given beside its model and data: ranks, seed, state folder, metrics, health."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mathrl.core.metrics import JsonlSink
from mathrl.core.records import EVENTS
from mathrl.health.mismatch import check_mismatch
from mathrl.health.watch import HealthMonitor
from mathrl.learners.distributed import Ranks
from mathrl.params.rollout import Rollout


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
