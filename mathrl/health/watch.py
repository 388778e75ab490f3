"""The health of a run, diagnosed from its metrics while it trains or afterwards.

A rule is a pure function of the rows so far, of the section `health` and of the run's `rl` settings; it returns a
diagnosis of the last row, or None. docs/health.md names the source of each threshold. The rules on length, repetition,
KL and accuracy raise no alarm while accuracy rises.

    rows = [{"step": 1, "reward/accuracy": 0.45, "actor_loss": 12.5, …}, …]
    examine(rows, Health(), Rl())  →  [Finding("loss", "red", 1, 1, "actor_loss is 12.5 …", cause, remedy)]
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tqdm import tqdm

from mathrl.core.errors import UserError
from mathrl.health.comparison_rules import COMPARISON_RULES
from mathrl.health.rules import RULES, Row
from mathrl.health.tool_rules import TOOL_RULES
from mathrl.params.health import Health
from mathrl.params.train import Rl

ALL_RULES = (*RULES, *COMPARISON_RULES, *TOOL_RULES)


@dataclass(frozen=True)
class Finding:
    """A rule's diagnosis: the first and last step that it holds for, the evidence, its likely cause and a remedy."""

    rule: str
    colour: str
    first: int
    last: int
    evidence: str
    cause: str
    remedy: str


class Watch:
    """Takes the rows of a run one by one and keeps the findings."""

    def __init__(self, health: Health, rl: Rl | None) -> None:
        self.health, self.rl = health, rl
        self.rows: list[Row] = []
        self.findings: dict[str, Finding] = {}

    def add(self, row: Row) -> list[Finding]:
        """The findings that are new, or that return after more than a window."""
        self.rows.append(row)
        step, new = int(row["step"]), []
        for rule in ALL_RULES:
            if rule.name in self.health.without or (rule.needs_rl and self.rl is None):
                continue
            diagnosis = rule.diagnose(self.rows, self.health, self.rl)  # type: ignore[arg-type]
            if diagnosis is None:
                continue
            earlier = self.findings.get(rule.name)
            finding = Finding(rule.name, rule.colour, earlier.first if earlier else step, step, *diagnosis)
            if earlier is None or earlier.last < step - self.health.window:
                new.append(finding)
            self.findings[rule.name] = finding
        return new

    @property
    def colour(self) -> str:
        """red: a red finding within the last window; yellow: only other findings; green: no finding."""
        if not self.findings:
            return "green"
        recent = int(self.rows[-1]["step"]) - self.health.window
        red = any(finding.colour == "red" and finding.last > recent for finding in self.ordered)
        return "red" if red else "yellow"

    @property
    def ordered(self) -> list[Finding]:
        """Red findings first, then by first step."""
        return sorted(self.findings.values(), key=lambda finding: (finding.colour != "red", finding.first))

    def report(self) -> dict[str, Any]:
        """{"colour": "yellow", "steps": 50, "findings": [{"rule": "flat", …}]}, for JSON."""
        steps = int(self.rows[-1]["step"]) if self.rows else 0
        return {"colour": self.colour, "steps": steps, "findings": [asdict(finding) for finding in self.ordered]}


class _LookedAt(dict[str, float]):
    """A row that notes which metrics a rule looks up, and which of them it has."""

    def __init__(self, row: Row, found: set[str]) -> None:
        super().__init__(row)
        self.found = found

    def __contains__(self, name: object) -> bool:
        if has := super().__contains__(name):
            self.found.add(str(name))
        return has

    def __getitem__(self, name: str) -> float:
        self.found.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.found |= {name} & self.keys()
        return super().get(name, default)


def judging_rules(rows: Sequence[Row], health: Health, rl: Rl | None) -> tuple[list[str], list[str]]:
    """The rules that found a metric to judge by, and all rules that apply to such a run."""
    applying = [rule for rule in ALL_RULES if rule.name not in health.without and (rl is not None or not rule.needs_rl)]
    judging = []
    for rule in applying if rows else ():
        found: set[str] = set()
        rule.diagnose([_LookedAt(row, found) for row in rows], health, rl)  # type: ignore[arg-type]
        if found - {"step"}:
            judging.append(rule.name)
    return judging, [rule.name for rule in applying]


def examine(rows: Iterable[Row], health: Health, rl: Rl | None) -> Watch:
    """The watch after all the rows of a run; `rl` is None for fine-tuning."""
    watch = Watch(health, rl)
    for row in rows:
        watch.add(row)
    return watch


def sentence(finding: Mapping[str, Any]) -> str:
    """A finding of `Watch.report` as one line."""
    return (
        f"{finding['colour']}, {finding['rule']}, from step {finding['first']}: {finding['evidence']}. "
        f"Cause: {finding['cause']}. Remedy: {finding['remedy']}."
    )


class HealthMonitor:
    """Judges the metrics of a run as they come: new findings go to the log, all of them to `report`."""

    def __init__(self, health: Health, rl: Rl | None, report: Callable[[dict[str, Any]], None]) -> None:
        self.report, self.reported = report, ""
        self.watch = Watch(health, rl)

    def resume(self, rows: Iterable[Row]) -> None:
        """Take over the rows that the run has logged so far, without logging their findings again."""
        self.watch = examine(rows, self.watch.health, self.watch.rl)

    def check(self, step: int, metrics: Mapping[str, float]) -> None:
        """Raises UserError: a new red finding, where health.action is stop."""
        new = self.watch.add({"step": step, **metrics})
        for finding in new:
            tqdm.write(f"health: {sentence(asdict(finding))}", file=sys.stderr)
        if new or self.reported != self.watch.colour:
            self.reported = self.watch.colour
            self.report(self.watch.report())
        red = [finding for finding in new if finding.colour == "red"]
        if red and self.watch.health.action == "stop":
            raise UserError(f"stopped at step {step} since health.action is stop: {red[0].evidence}; {red[0].remedy}")
