"""The log of events of an asynchronous run, events.jsonl, from which the run is repeated to the bit.

A first line has the settings that the events depend on. Then there is one line per update of the weights: for each rank
how many segments it had sampled until then, the groups that arrived (their number, their problem and the versions of
each response's tokens), the groups that were trained on and those that were dropped, in order, and the digest of the
tokens, log-probs and rewards that were trained on. The number of segments is all that depends on time.

    {"step": 3, "ranks": [{"segments": 9, "arrived": [[8, 5, [[[2, 4], [3, 2]], [[2, 3]]]], "trained": [6, 7],
                           "dropped": [], "digest": "9f1c..."}]}
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.metrics import JsonlSink, complete_rows

Event = dict[str, Any]


class EventLog:
    """Writes the events of a run, at rank 0, and holds those of the run that it repeats, if it repeats one."""

    def __init__(
        self, file: Path, settings: Mapping[str, Any], rank: int, resume_after: int | None, replay: str | None
    ) -> None:
        """Lines after the step `resume_after` are dropped; None starts a new log.

        Raises:
            UserError: `replay` is not a log of events, or one of a run with other settings.
        """
        self.rank, self.processes = rank, settings["run.processes"]
        self.recorded = _read(Path(replay), settings) if replay is not None else None
        self.sink = JsonlSink(file, resume_after=resume_after) if rank == 0 else None
        if self.sink is not None and not self.sink.rows():
            self.sink.append({"step": 0, "settings": dict(settings)})

    def segments(self, step: int) -> int | None:
        """How many segments this rank had sampled before the update of this step; None if no run is repeated."""
        return None if self.recorded is None else int(self._event(step)[self.rank]["segments"])

    def write(self, step: int, events: Sequence[Event]) -> None:
        """Write the events of every rank before the update of this step.

        Raises:
            UserError: the run that is repeated had others.
        """
        if self.recorded is not None:
            for rank, (event, recorded) in enumerate(zip(events, self._event(step), strict=True)):
                differing = [name for name in recorded if as_json(event[name]) != recorded[name]]
                if differing:
                    raise UserError(
                        f"rl.asynchronous.replay: step {step} departs from the log at rank {rank}: "
                        f"{', '.join(differing)} differ; a replay needs the same code, model, data, parameters, "
                        "machine and number of threads, and an engine whose samples are the same to the bit"
                    )
        if self.sink is not None:
            self.sink.append({"step": step, "ranks": list(events)})

    def _event(self, step: int) -> list[Event]:
        assert self.recorded is not None
        if step not in self.recorded:
            raise UserError(
                f"rl.asynchronous.replay: the log has no events of step {step}, the last is of step "
                f"{max(self.recorded, default=0)}: set rl.steps to that"
            )
        events = self.recorded[step]
        if len(events) != self.processes:
            raise UserError(
                f"rl.asynchronous.replay: the run was resumed with run.processes {len(events)} before step {step} of "
                f"the log, and cannot be repeated from there: set rl.steps to {step - 1}"
            )
        return events


def as_json(value: Any) -> Any:
    """The value as it comes back from JSON: tuples are lists."""
    return [as_json(entry) for entry in value] if isinstance(value, list | tuple) else value


def _read(file: Path, settings: Mapping[str, Any]) -> dict[int, list[Event]]:
    where = f"rl.asynchronous.replay: {file}"
    if not file.is_file():
        raise UserError(f"{where}: no such file; name the events.jsonl of a run's record or of reports/rl")
    rows = complete_rows(file)
    if not rows or "settings" not in rows[0]:
        raise UserError(f"{where}: not a log of events; name the events.jsonl of a run's record or of reports/rl")
    for name, value in settings.items():
        if rows[0]["settings"].get(name) != value:
            raise UserError(
                f"{where}: {name} is {rows[0]['settings'].get(name)} there and {value} here; set it as in the log"
            )
    return {int(row["step"]): row["ranks"] for row in rows[1:]}
