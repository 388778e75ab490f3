"""What the metrics of a run say of its health: rules over the list of its records, live or afterwards.

A rule is a pure function of the records so far, of the section `health` and of the run's own `rl` settings;
it returns what it found at the last of them, or nothing. Thresholds are the field's (docs/health.md names
whose); those on length, repetition, KL and accuracy are conjunctive: no alarm while accuracy rises.

    rows = [{"step": 1, "reward/accuracy": 0.45, "actor_loss": 12.5, …}, …]
    examine(rows, Health(), Rl())  →  [Finding("loss", "red", 1, 1, "actor_loss is 12.5 …", cause, remedy)]
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tqdm import tqdm

from mathrl.core.errors import UserError
from mathrl.core.metrics import JsonlSink
from mathrl.health.rules import RULES, Row
from mathrl.params.health import Health
from mathrl.params.train import Rl


@dataclass(frozen=True)
class Finding:
    """What a rule found: from which step on, when it was last so, and in words what, why and what to do."""

    rule: str
    colour: str
    first: int
    last: int
    evidence: str
    cause: str
    remedy: str


class Watch:
    """Takes the records of a run one by one and keeps what was found."""

    def __init__(self, health: Health, rl: Rl | None) -> None:
        self.health, self.rl = health, rl
        self.rows: list[Row] = []
        self.findings: dict[str, Finding] = {}

    def add(self, row: Row) -> list[Finding]:
        """The findings that are new, or back after more than a window without them."""
        self.rows.append(row)
        step, new = int(row["step"]), []
        for rule in RULES:
            if rule.name in self.health.without or (rule.needs_rl and self.rl is None):
                continue
            found = rule.look(self.rows, self.health, self.rl)  # type: ignore[arg-type]
            if found is None:
                continue
            known = self.findings.get(rule.name)
            finding = Finding(rule.name, rule.colour, known.first if known else step, step, *found)
            if known is None or known.last < step - self.health.window:
                new.append(finding)
            self.findings[rule.name] = finding
        return new

    @property
    def colour(self) -> str:
        """red: a red finding within the last window; yellow: another, or an earlier one; green: none."""
        if not self.findings:
            return "green"
        now = int(self.rows[-1]["step"])
        return (
            "red"
            if any(each.colour == "red" and each.last > now - self.health.window for each in self.ordered)
            else "yellow"
        )

    @property
    def ordered(self) -> list[Finding]:
        """Red ones first, then by the step at which they began."""
        return sorted(self.findings.values(), key=lambda each: (each.colour != "red", each.first))

    def report(self) -> dict[str, Any]:
        """{"colour": "yellow", "steps": 50, "findings": [{"rule": "flat", …}]}, for JSON."""
        steps = int(self.rows[-1]["step"]) if self.rows else 0
        return {"colour": self.colour, "steps": steps, "findings": [asdict(each) for each in self.ordered]}


def examine(rows: Iterable[Row], health: Health, rl: Rl | None) -> Watch:
    """The watch after all the records of a run; `rl` is None for fine-tuning."""
    watch = Watch(health, rl)
    for row in rows:
        watch.add(row)
    return watch


def sentence(finding: Mapping[str, Any]) -> str:
    """One line of a finding (as in `Watch.report`)."""
    return (
        f"{finding['colour']}, {finding['rule']}, from step {finding['first']}: {finding['evidence']}. "
        f"Cause: {finding['cause']}. Remedy: {finding['remedy']}."
    )


class WatchedSink:
    """A metrics file whose rows are watched: new findings go to the log, all of them to `tell`."""

    def __init__(self, sink: JsonlSink, health: Health, rl: Rl | None, tell: Callable[[dict[str, Any]], None]) -> None:
        self.sink, self.tell, self.told = sink, tell, ""
        self.watch = examine(sink.rows(), health, rl)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Raises UserError: a red finding, where health.action is stop."""
        self.sink.log(step, metrics)
        new = self.watch.add({"step": step, **metrics})
        for finding in new:
            tqdm.write(f"health: {sentence(asdict(finding))}", file=sys.stderr)
        if new or self.told != self.watch.colour:
            self.told = self.watch.colour
            self.tell(self.watch.report())
        red = [each for each in new if each.colour == "red"]
        if red and self.watch.health.action == "stop":
            raise UserError(f"stopped at step {step} since health.action is stop: {red[0].evidence}; {red[0].remedy}")
