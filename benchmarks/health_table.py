"""What the health rules find in the runs of `health_detector.py`, and the tables of it."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from health_runs import KINDS, RL

from mathrl.core.statistics import wilson
from mathrl.health.watch import ALL_RULES, Finding, examine
from mathrl.params.train import Rl
from mathrl.params.training import Health

HEALTH = Health(patience=28, lr=0.1, kl=1.0)  # of runs of 32 steps from random weights; chosen on the even seeds
BEHIND = 0.1  # true accuracy below that of plain runs at the same step
SHUFFLES, DRAWS = 500, 4000
# The values that a rule's own threshold may take; rules without one are kept as they are, or left out.
GRIDS: dict[str, tuple[str, tuple[float, ...]]] = {
    "loss": ("loss", (3.0, 10.0, 30.0)),
    "collapse": ("drop", (0.1, 0.15, 0.2, 0.3)),
    "kl": ("kl", (0.1, 0.2, 0.5, 1.0, 2.0)),
    "mismatch": ("alignment", (1.02, 1.05, 1.1)),
    "stale_sampler": ("alignment", (1.02, 1.05, 1.1)),
    "importance": ("importance", (0.05, 0.1, 0.2)),
    "entropy": ("entropy", (0.005, 0.01, 0.02, 0.05)),
    "length": ("right_correlation", (0.0, 0.1, 0.2, 0.3)),
    "repetition": ("repetition", (0.05, 0.1, 0.2)),
    "truncated": ("truncated", (0.02, 0.05, 0.1, 0.2)),
    "zero_variance": ("zero_variance", (0.8, 0.9, 0.95)),
    "flat": ("patience", (16, 20, 24, 28)),
    "reward_hacking": ("hacking", (0.1, 0.2, 0.3, 0.5)),
    "reward_alone": ("hacking", (0.1, 0.2, 0.3, 0.5)),
    "agreement": ("agreement", (0.2, 0.3, 0.5, 0.7)),
    "dev_gap": ("dev_gap", (0.1, 0.15, 0.2, 0.3, 0.4)),
    "entropy_rise": ("entropy_rise", (1.5, 2.0, 3.0, 5.0)),
    "empty": ("empty", (0.02, 0.05, 0.1, 0.2)),
    "sampling_share": ("sampling_share", (0.8, 0.85, 0.9, 0.95)),
    "long_tail": ("long_tail", (4.0, 8.0, 16.0)),
    "idle_trainer": ("idle", (0.3, 0.4, 0.5, 0.6)),
    "idle_sampler": ("idle", (0.3, 0.4, 0.5, 0.6)),
    "slow_rank": ("slow_rank", (1.2, 1.5, 2.0)),
}
Setting = tuple[str, float | None]  # a rule and the value of its threshold


@dataclass(frozen=True)
class Run:
    """A finished run; `first` is the step of each rule's first finding under each setting of its threshold.

    `shown` are the findings with the defaults, as `mathrl runs health` shows them.
    """

    kind: str
    seed: int
    first: Mapping[Setting, int]
    shown: Sequence[Finding]
    behind: int | None
    seconds: float

    @property
    def sabotaged(self) -> bool:
        return KINDS[self.kind].sabotaged

    def findings(self, chosen: Sequence[Setting]) -> dict[str, int]:
        return {setting[0]: self.first[setting] for setting in chosen if setting in self.first}


def settings() -> list[Setting]:
    return [(rule.name, value) for rule in ALL_RULES for value in GRIDS.get(rule.name, ("", (None,)))[1]]


def shipped() -> list[Setting]:
    """Every rule with the default of its threshold."""
    return [(rule.name, getattr(HEALTH, GRIDS[rule.name][0]) if rule.name in GRIDS else None) for rule in ALL_RULES]


def read_runs(results: Sequence[Mapping[str, Any]]) -> list[Run]:
    plain: dict[int, list[float]] = {}
    for result in results:
        if result["kind"] in ("plain", "long"):  # the same run, for steps that plain ones do not reach
            for step, accuracy in result["true"]:
                plain.setdefault(step, []).append(accuracy)
    runs = []
    for result in results:
        behind = [step for step, value in result["true"] if value < statistics.mean(plain.get(step, [0])) - BEHIND]
        rows, rl = result["rows"], Rl.model_validate(RL | dict(KINDS[result["kind"]].rl))
        shown = examine(rows, HEALTH, rl).sorted_findings
        first = first_findings(rows, rl)
        runs.append(Run(result["kind"], result["seed"], first, shown, min(behind, default=None), result["seconds"]))
    return runs


def first_findings(rows: Sequence[Mapping[str, float]], rl: Rl) -> dict[Setting, int]:
    first: dict[Setting, int] = {}
    names = [rule.name for rule in ALL_RULES]
    for rule, value in settings():
        changes: dict[str, Any] = {"without": tuple(name for name in names if name != rule)}
        if value is not None:
            changes[GRIDS[rule][0]] = value
        finding = examine(rows, HEALTH.model_copy(update=changes), rl).findings.get(rule)  # type: ignore[call-overload]
        if finding is not None:
            first[(rule, value)] = finding.first
    return first


def choose(runs: Sequence[Run], sabotaged: Sequence[bool]) -> list[Setting]:
    """Per rule the value with most sabotaged less healthy runs found, the default among equals; none below 0."""
    chosen = []
    defaults = shipped()
    for rule in ALL_RULES:
        options = [setting for setting in settings() if setting[0] == rule.name]
        gains = {
            setting: sum((1 if ill else -1) for run, ill in zip(runs, sabotaged, strict=True) if setting in run.first)
            for setting in options
        }
        best = max(options, key=lambda setting: (gains[setting], setting in defaults))
        if gains[best] >= 0:
            chosen.append(best)
    return chosen


def auc(runs: Sequence[Run], sabotaged: Sequence[bool], chosen: Sequence[Setting]) -> float:
    """How often a sabotaged run has more findings than a healthy one; equal numbers count half."""
    scores = np.array([len(run.findings(chosen)) for run in runs])
    ill = np.array(sabotaged)
    gaps = scores[ill][:, None] - scores[~ill][None, :]
    return float(((gaps > 0) + 0.5 * (gaps == 0)).mean())


def interval(values: Sequence[Any], of: Callable[[Sequence[Any]], float], seed: int = 0) -> str:
    """The figure with the 95 % bootstrap interval over runs."""
    if not values:
        return "none"
    rng, count = np.random.default_rng(seed), len(values)
    draws = [of([values[i] for i in rng.integers(0, count, count)]) for _ in range(DRAWS)]
    low, high = np.quantile(draws, (0.025, 0.975))
    return f"{of(values):.2f} [{low:.2f}, {high:.2f}]"


def share(found: int, of: int) -> str:
    low, high = wilson(found, of)
    return f"{found} of {of} ({found / of:.2f} [{low:.2f}, {high:.2f}])"


def by_kind(runs: Sequence[Run], chosen: Sequence[Setting]) -> None:
    print("| sabotage | found by a rule that names it | rules | first finding at step | accuracy behind | lead |")
    print("|---|---|---|---|---|---|")
    for name, kind in KINDS.items():
        some = [run for run in runs if run.kind == name]
        if not kind.sabotaged or not some:
            continue
        found = [findings for run in some if (findings := run.findings(chosen))]
        named = sum(any(rule in findings for rule in kind.rules) for findings in found)
        steps = [min(findings.values()) for findings in found]
        behind = [run.behind for run in some if run.behind is not None]
        ahead = leads(some, chosen)
        rules = Counter(rule for findings in found for rule in findings)
        cells = [
            share(named, len(some)),
            ", ".join(f"{rule} {count}" for rule, count in rules.most_common()),
            f"{statistics.median(steps):g}" if steps else "never",
            f"{len(behind)} of {len(some)}" + (f", from step {statistics.median(behind):g}" if behind else ""),
            f"{statistics.median(ahead):g}" if ahead else "",
        ]
        print(f"| {name} | {' | '.join(cells)} |")
    print("\n| healthy, but | runs with a finding | findings |\n|---|---|---|")
    for name, kind in KINDS.items():
        some = [run for run in runs if run.kind == name]
        if kind.sabotaged or not some:
            continue
        alarms = Counter(rule for run in some for rule in run.findings(chosen))
        text = ", ".join(f"{rule} {count}" for rule, count in sorted(alarms.items()))
        print(f"| {name} | {sum(bool(run.findings(chosen)) for run in some)} of {len(some)} | {text} |")


def leads(runs: Sequence[Run], chosen: Sequence[Setting]) -> list[int]:
    """Steps from the first finding until the true accuracy is behind, of the runs that have both."""
    pairs = [(run.behind, run.findings(chosen)) for run in runs]
    return [behind - min(findings.values()) for behind, findings in pairs if behind is not None and findings]


def totals(runs: Sequence[Run], chosen: Sequence[Setting]) -> None:
    ill, well = ([run for run in runs if run.sabotaged == wanted] for wanted in (True, False))
    named = [any(rule in KINDS[run.kind].rules for rule in run.findings(chosen)) for run in ill]
    print(f"- sabotaged runs found: {share(sum(bool(run.findings(chosen)) for run in ill), len(ill))}")
    print(f"- sabotaged runs found by a rule that names the sabotage: {share(sum(named), len(ill))}")
    print(f"- healthy runs with a finding: {share(sum(bool(run.findings(chosen)) for run in well), len(well))}")
    counts = [len(run.findings(chosen)) for run in well]
    # A bootstrap of zeros has no width: the exact bound of a rate at which nothing was seen.
    alarms = interval(counts, statistics.mean) if any(counts) else f"0.00 [0.00, {-math.log(0.025) / len(well):.2f}]"
    print(f"- false alarms per healthy run: {alarms}")
    ahead = leads(ill, chosen)
    print(f"- steps from the first finding until the accuracy is behind, mean of {len(ahead)} runs: ", end="")
    print(interval(ahead, statistics.mean))
    area = interval(
        [(run, run.sabotaged) for run in runs],
        lambda pairs: auc([run for run, _ in pairs], [ill for _, ill in pairs], chosen),
    )
    print(f"- AUC of the number of findings: {area}")


def one_by_one(runs: Sequence[Run]) -> None:
    """Every sabotaged run that no rule names and every false alarm of both halves, to be looked at one by one."""
    print("\nSabotaged runs that no rule names, and what was found in them:\n")
    for run in runs:
        if run.sabotaged and not {finding.rule for finding in run.shown} & set(KINDS[run.kind].rules):
            print(f"- {run.kind}, seed {run.seed}: {', '.join(finding.rule for finding in run.shown) or 'nothing'}")
    print("\nFalse alarms:\n")
    for run in runs:
        for finding in () if run.sabotaged else run.shown:
            steps = f"steps {finding.first} to {finding.last}"
            print(f"- {run.kind}, seed {run.seed}, {finding.rule} ({finding.colour}), {steps}: {finding.evidence}")


def shuffled_labels(choosing: Sequence[Run], reporting: Sequence[Run]) -> None:
    """The control that must fail: thresholds chosen for labels that mean nothing find nothing in other runs."""
    rng, seen, unseen = np.random.default_rng(0), [], []
    labels = np.array([run.sabotaged for run in [*choosing, *reporting]])
    for _ in range(SHUFFLES):
        shuffled = rng.permutation(labels).tolist()
        first, second = shuffled[: len(choosing)], shuffled[len(choosing) :]
        chosen = choose(choosing, first)
        seen.append(auc(choosing, first, chosen))
        unseen.append(auc(reporting, second, chosen))
    low, high = np.quantile(unseen, (0.025, 0.975))
    print(
        f"- the same with shuffled labels, {SHUFFLES} times: AUC {statistics.mean(unseen):.2f} "
        f"[{low:.2f}, {high:.2f}] on the half reported, {statistics.mean(seen):.2f} on the half chosen on"
    )
