"""The health of a run, diagnosed from its metrics while it trains or afterwards.

A rule is a pure function of the rows so far, of the section `health` and of the run's `rl` settings; it returns a
diagnosis of the last row, or None. docs/how_to/health.md names the source of each threshold. The rules on length,
repetition, KL and accuracy raise no alarm while accuracy rises.

    rows = [{"step": 1, "reward/accuracy": 0.45, "actor_loss": 12.5, …}, …]
    examine(rows, Health(), Rl())  →  [Finding("loss", "red", 1, 1, "actor_loss is 12.5 …", cause, remedy)]
"""

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from tqdm import tqdm

from mathrl.core.errors import UserError
from mathrl.health.rules import ACCURACY, DEV, RULES, Diagnosis, Row, Rule, accuracy, gain, mean, now, then
from mathrl.health.slow_steps import SLOW_RULES
from mathrl.params.advantage import DrGrpo, Gdpo, Grpo, Rloo
from mathrl.params.curriculum import Shuffled
from mathrl.params.train import Rl
from mathrl.params.training import Health

# What the verifier takes for right, and what another grader says of the same responses.
GRADERS = (
    ("verifier/second_passed", "verifier/second_accuracy", "reward.second_grader"),
    ("verifier/exact_passed", "verifier/exact_accuracy", "an exact grader"),
    ("verifier/theirs_passed", "verifier/ours_accuracy", "mathrl's verifier"),  # of an imported run
)
CENTRED = (Grpo, DrGrpo, Rloo, Gdpo)
ROUNDING = 1e-3
FEW, RARE = 50, 0.1  # responses and shares that are too small to compare verdicts


def rises(
    rows: Sequence[Row], health: Health, paid: str, right: str, spread: float | None = None
) -> tuple[str, str] | None:
    """Evidence that what is paid rose in the run and that what is right did not rise with it, else None.

    Both rises are in standard deviations of one response, so that the scale of a reward does not matter; that of a
    share p is sqrt(p (1 - p)).
    """
    first = rows[: health.window]
    figures = mean(first, paid), now(rows, health, paid), mean(first, right), now(rows, health, right)
    if None in figures or len(rows) < 2 * health.window:
        return None
    paid_before, paid_now, right_before, right_now = (float(figure or 0.0) for figure in figures)
    paid_rise = (paid_now - paid_before) / (spread or _spread(paid_before))
    right_rise = (right_now - right_before) / _spread(right_before)
    if paid_rise - right_rise <= health.hacking or right_rise >= paid_rise / 2 or right_now >= health.solved:
        return None
    return f"from {paid_before:.3f} to {paid_now:.3f}", f"from {right_before:.3f} to {right_now:.3f}"


def _spread(share: float) -> float:
    return math.sqrt(max(0.01, share * (1 - share)))


def reward_hacking(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    for passed, right, grader in GRADERS:
        if evidence := rises(rows, health, passed, right):
            return (
                f"the share that the verifier accepts rose {evidence[0]}, accuracy of the same responses by {grader} "
                f"went {evidence[1]}",
                "the policy found a hole in the verifier: answers that it accepts and that are not right",
                "read `mathrl runs rollouts`, label some with `mathrl runs audit`, mend the verifier, train again",
            )
    return None


def reward_alone(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    spread = mean(rows[: health.window], "reward/overall_std")
    evidence = rises(rows, health, "reward/overall", ACCURACY, spread) if spread else None
    if evidence is None:
        return None
    return (
        f"the reward rose {evidence[0]}, accuracy went {evidence[1]}",
        "the policy earns what is paid beside right answers: form, length, a score, or a hole in a function",
        "read responses with `mathrl runs rollouts`, lower the weight of the part that rose in reward.parts",
    )


def agreement(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    """Cohen's kappa of the verdicts that the trainer is told and the exact grader's, on the same responses."""
    names = ("verifier/exact_agreement", "verifier/exact_passed", "verifier/exact_accuracy")
    agreed, passed, right = (now(rows, health, name) for name in names)
    graded = sum(row.get("verifier/exact_graded", 0.0) for row in rows[-health.window :])
    if agreed is None or passed is None or right is None or graded < FEW:
        return None
    # A grader that finds hardly any response right is too coarse for these answers, and says nothing.
    if not RARE < passed < 1 - RARE or not max(RARE, passed / 2) < right < 1 - RARE:
        return None
    chance = passed * right + (1 - passed) * (1 - right)
    if (agreed - chance) / (1 - chance) >= health.agreement:
        return None
    return (
        f"on {graded:.0f} responses the verdicts agree with an exact grader's in {agreed:.0%}, by chance {chance:.0%}",
        "rewards reach other responses than they are for, or the verifier judges something else than the answer",
        "look at verdicts with `mathrl runs rollouts`, check the order of what the reward function returns",
    )


def dev_gap(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    if not isinstance(rl.curriculum, Shuffled) or DEV not in rows[-1] or len(rows) < health.window:
        return None
    dev, rollouts = rows[-1][DEV], accuracy(rows, health)
    problems = max(1.0, rows[-1].get("dev/problems", 1.0))
    chance = 2 * math.sqrt(max(0.01, rollouts * (1 - rollouts)) / problems)
    if rollouts - dev <= health.dev_gap + chance:
        return None
    return (
        f"accuracy of the rollouts is {rollouts:.3f}, on dev {dev:.3f} ({problems:.0f} problems)",
        "the training prompts give answers away, dev problems are asked in another form, or they are harder",
        "compare a training prompt with a dev prompt (prompt.template, prompt.routes), check both splits' levels",
    )


def advantages_off_centre(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    value = rows[-1].get("advantage/mean")
    if value is None or not isinstance(rl.advantage, CENTRED) or abs(value) <= ROUNDING:
        return None
    return (
        f"the advantages of a step have the mean {value:.3g}, where {rl.advantage.type} makes it 0",
        "no baseline was subtracted, or responses are compared with those of other groups",
        "look at the function that makes advantages, and at how responses are put into groups",
    )


def entropy_rise(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    # A step that trains no group measures none.
    measured = list(islice((row for row in rows if "entropy" in row), 2 * health.window))
    value, first = now(rows, health, "entropy"), mean(measured[: health.window], "entropy")
    if value is None or first is None or len(measured) < 2 * health.window or accuracy(rows, health) >= health.solved:
        return None
    if value <= health.entropy_rise * first or gain(rows, health) >= health.progress:
        return None
    return (
        f"entropy of the trained groups rose from {first:.3f} to {value:.3f} per token, "
        f"accuracy by {gain(rows, health):+.3f}",
        "the entropy bonus outweighs the reward"
        if rl.loss.entropy_coef
        else "updates without a signal blur the policy",
        "lower rl.loss.entropy_coef" if rl.loss.entropy_coef else "look at the rewards, lower the learning rate",
    )


def empty(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    value = now(rows, health, "rollout/empty_groups")
    if value is None or len(rows) < health.window or value <= health.empty:
        return None
    return (
        f"to {value:.0%} of the prompts every response is empty",
        "a rank or a server of the sampler answers nothing, or the policy learned to end at once",
        "look at the log of each rank and at the servers, read responses with `mathrl runs rollouts`",
    )


COMPARISON_RULES = (
    Rule("reward_hacking", "red", reward_hacking),
    Rule("centring", "red", advantages_off_centre),
    Rule("agreement", "red", agreement),
    Rule("reward_alone", "yellow", reward_alone),
    Rule("dev_gap", "yellow", dev_gap),
    Rule("entropy_rise", "yellow", entropy_rise),
    Rule("empty", "yellow", empty),
)


def tool_down(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    value = now(rows, health, "tool/unavailable_rate")
    if value is None or value <= health.tool_unavailable:
        return None
    return (
        f"the tool itself failed in {value:.0%} of the calls",
        "the sandbox or its server is down or overloaded: responses that call are marked wrong for no fault of theirs",
        "look at `mathrl doctor` and the statuses in `mathrl runs rollouts`; raise rollout.tool's limits",
    )


def tool_calls(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    value, before = now(rows, health, "tool/calls"), then(rows, health, "tool/calls")
    if value is None or not before or value < 1 or value < health.tool_rise * before:
        return None
    if gain(rows, health) >= health.progress:
        return None
    return (
        f"calls per response grew from {before:.2f} to {value:.2f}, accuracy by {gain(rows, health):+.3f}",
        "the policy calls for the sake of calling, or repeats calls that fail",
        "read responses with `mathrl runs rollouts`, lower rollout.turns.max_calls, look at tool/error_rate",
    )


def told_answers(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    value, calls = now(rows, health, "tool/echo_rate"), now(rows, health, "tool/calls") or 0.0
    if value is None or len(rows) < health.window or calls < 0.1 or value <= health.tool_echo:
        return None
    return (
        f"in {value:.0%} of the calls the output stands in the code, at accuracy {accuracy(rows, health):.3f}",
        "the code prints an answer that it was told instead of computing one",
        "read `mathrl runs rollouts`; take demonstrations whose code computes, and no reward for calling",
    )


TOOL_RULES = (
    Rule("tool_down", "red", tool_down),
    Rule("tool_calls", "yellow", tool_calls),
    Rule("told_answers", "yellow", told_answers),
)


ALL_RULES = (*RULES, *COMPARISON_RULES, *TOOL_RULES, *SLOW_RULES)


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
        for rule in _rules(self.health, self.rl):
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
        red = any(finding.colour == "red" and finding.last > recent for finding in self.sorted_findings)
        return "red" if red else "yellow"

    @property
    def sorted_findings(self) -> list[Finding]:
        """Red findings first, then by first step."""
        return sorted(self.findings.values(), key=lambda finding: (finding.colour != "red", finding.first))

    def report(self) -> dict[str, Any]:
        """{"colour": "yellow", "steps": 50, "findings": [{"rule": "flat", …}]}, for JSON."""
        steps = int(self.rows[-1]["step"]) if self.rows else 0
        return {
            "colour": self.colour,
            "steps": steps,
            "findings": [asdict(finding) for finding in self.sorted_findings],
        }


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


def judging_rules(
    rows: Sequence[Row], health: Health, rl: Rl | None, blind: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """The rules that found a metric to judge by, and all rules that apply to such a run; `blind` ones do not judge."""
    applying, judging = _rules(health, rl), []
    # Rules look at the last row, where what is measured every few steps alone may be missing: it gets the last values.
    latest = {name: value for row in rows for name, value in row.items()}
    for rule in applying if rows else ():
        if rule.name in blind:
            continue
        found: set[str] = set()
        looked_at = [_LookedAt(row, found) for row in (*rows[:-1], latest)]
        rule.diagnose(looked_at, health, rl)  # type: ignore[arg-type]
        if found - {"step"}:
            judging.append(rule.name)
    return judging, [rule.name for rule in applying]


def _rules(health: Health, rl: Rl | None) -> list[Rule]:
    """The rules that apply to a run; `rl` is None for fine-tuning."""
    return [rule for rule in ALL_RULES if rule.name not in health.without and (rl is not None or not rule.needs_rl)]


# They compare with the accuracy of the rollouts, and would take a run of another trainer that has none for one of 0.
BY_ACCURACY = ("kl", "entropy", "length", "repetition", "no_success", "flat", "zero_variance", "reward_parts",
               "entropy_rise", "tool_calls", "told_answers")  # fmt: skip


def blind_rules(rows: Sequence[Row]) -> tuple[str, ...]:
    """The rules that cannot judge these rows, since no row has an accuracy."""
    return () if any(ACCURACY in row for row in rows) else BY_ACCURACY


def examine(rows: Iterable[Row], health: Health, rl: Rl | None, blind: Sequence[str] = ()) -> Watch:
    """The watch after all the rows of a run, without `blind` rules; `rl` is None for fine-tuning."""
    watch = Watch(health.model_copy(update={"without": (*health.without, *blind)}) if blind else health, rl)
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
