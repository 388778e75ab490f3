"""An audit of the grader: a stratified sample of its verdicts, a person's labels, error rates with intervals.

A response is (problem, text) with a verdict; a label says whether its final answer is right. Strata are verdict, tier,
rule, benchmark and, if Math-Verify was asked, its disagreement, so that rare rules are seen. Of two error rates

    false-positive rate  wrong responses that were accepted / wrong responses
    false-negative rate  right responses that were refused / right responses

the shares of wrong verdicts among the accepted and among the refused are stratified means with Clopper and Pearson's
bounds at the effective sample size (Korn and Graubard, Survey Methodology 24, 1998): as distributions, the Beta
distributions of which the bounds are quantiles. The rates' intervals are quantiles over draws of both shares.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mathrl.core.errors import UserError
from mathrl.core.hashing import derive_seed, digest
from mathrl.core.results import Interval

Label = Literal["y", "n", "unsure"]
LABELS: tuple[Label, ...] = ("y", "n", "unsure")
SMALLEST = 10  # responses; smaller strata of one verdict are one
DRAWS = 10_000
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Sampled:
    """A response to label.

    Example:
        Sampled(key="9f3c…", stratum="accepted / rule / boxed; structure / test", row={"response": "…", …})
    """

    key: str
    stratum: str
    row: Row

    @property
    def is_accepted(self) -> bool:
        return bool(self.row["correct"])


@dataclass(frozen=True)
class ErrorRates:
    """What an audit found.

    Example:
        ErrorRates(Interval(0.004, 0.0, 0.011), Interval(0.02, 0.008, 0.04), labelled=196, unsure=4, wrong=3)

    A rate is None without a label for an accepted and for a refused response.
    """

    false_positives: Interval | None
    false_negatives: Interval | None
    labelled: int
    unsure: int
    wrong: int

    def lines(self) -> list[str]:
        rates = {"false-positive rate": self.false_positives, "false-negative rate": self.false_negatives}
        shown = [f"{name} {rate or 'unknown: label accepted and refused responses'}" for name, rate in rates.items()]
        return [*shown, f"{self.wrong} of {self.labelled} labelled verdicts are wrong; {self.unsure} unsure"]


def stratum_of(row: Row, disagrees: Callable[[Row], bool] | None = None) -> str:
    """Such as "accepted / rule / boxed; structure / test"; the tier is the judge model's if the rule ends in model."""
    rule = str(row["rule"] or "none")
    parts = ["accepted" if row["correct"] else "refused", "model" if rule.endswith("; model") else "rule", rule]
    parts.append(str(row.get("benchmark") or row.get("source") or row.get("data_source") or "all"))
    if disagrees is not None:
        parts.append("disagreement" if disagrees(row) else "agreement")
    return " / ".join(parts)


def draw_sample(
    rows: Sequence[Row], size: int, seed: int, disagrees: Callable[[Row], bool] | None = None
) -> tuple[list[Sampled], dict[str, int]]:
    """About `size` responses in a random order, and the number of responses of each stratum.

    Half of the sample is shared equally by the strata, half in proportion to their sizes; at least two of each.

    Raises:
        UserError: no row, or a row without a field.
    """
    if not rows:
        raise UserError("there is no response to audit")
    for number, row in enumerate(rows, 1):
        missing = [name for name in ("response", "correct", "rule", "truths") if name not in row]
        if missing:
            raise UserError(f"response {number} has no field {missing[0]!r}; give a responses.jsonl or graded rows")
    strata: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        strata.setdefault(stratum_of(row, disagrees), []).append(number)
    for name in [name for name, members in strata.items() if len(members) < SMALLEST]:
        strata.setdefault(f"{name.split(' / ')[0]} / small strata", []).extend(strata.pop(name))
    rng, chosen = random.Random(derive_seed(seed, "audit")), []
    for name, members in sorted(strata.items()):
        count = max(2, round(size / 2 / len(strata) + size / 2 * len(members) / len(rows)))
        for number in rng.sample(members, min(count, len(members))):
            row = rows[number]
            chosen.append(Sampled(digest([number, row["response"], row["truths"]]), name, row))
    rng.shuffle(chosen)
    return chosen, {name: len(members) for name, members in strata.items()}


def error_rates(
    sample: Sequence[Sampled],
    sizes: Mapping[str, int],
    labels: Mapping[str, Label],
    *,
    confidence: float = 0.95,
    annotator_error: float = 0.0,
    seed: int = 0,
) -> ErrorRates:
    """The grader's error rates from the labels so far (by `Sampled.key`).

    `annotator_error` is the known share of labels that are wrong, below 0.5; rates are corrected for it (Rogan and
    Gladen, American Journal of Epidemiology 107, 1978). Responses labelled unsure count as not drawn.
    """
    counts: dict[bool, dict[str, tuple[int, int]]] = {True: {}, False: {}}
    for item in sample:
        label = labels.get(item.key)
        if label in ("y", "n"):
            drawn, wrong = counts[item.is_accepted].get(item.stratum, (0, 0))
            counts[item.is_accepted][item.stratum] = drawn + 1, wrong + ((label == "y") != item.is_accepted)
    drawn = sum(n for side in counts.values() for n, _ in side.values())
    wrong = sum(x for side in counts.values() for _, x in side.values())
    unsure = sum(labels.get(item.key) == "unsure" for item in sample)
    totals = {side: sum(n for name, n in sizes.items() if name.startswith(_word(side))) for side in (True, False)}
    if any(totals[side] and not counts[side] for side in (True, False)) or not drawn:
        return ErrorRates(None, None, drawn, unsure, wrong)
    rng = np.random.default_rng(derive_seed(seed, "audit"))
    errors = {
        side: totals[side] * _correct_shares(_share_wrong(counts[side], sizes, rng), annotator_error)
        for side in (True, False)
    }
    wrong_responses = errors[True] + totals[False] - errors[False]
    right_responses = errors[False] + totals[True] - errors[True]
    return ErrorRates(
        _interval(errors[True], wrong_responses, confidence),
        _interval(errors[False], right_responses, confidence),
        drawn,
        unsure,
        wrong,
    )


def _word(accepted: bool) -> str:
    return "accepted" if accepted else "refused"


def _share_wrong(counts: Mapping[str, tuple[int, int]], sizes: Mapping[str, int], rng: np.random.Generator) -> Any:
    """The stratified share of wrong verdicts and draws for its bounds, the lower in row 0; shape (2, 1 + DRAWS).

    The estimate is column 0. The effective sample size is the smaller of those by the variance within strata and by
    the weights alone: the first says too much where a stratum has no wrong verdict by chance.
    """
    shares = np.zeros((2, 1 + DRAWS))
    if not counts:
        return shares
    sizes_H = np.array([sizes[name] for name in counts], float)
    drawn_H, wrong_H = np.array(list(counts.values()), float).T
    weights_H, shares_H = sizes_H / sizes_H.sum(), wrong_H / drawn_H
    left_H = weights_H**2 * (1 - drawn_H / sizes_H) / drawn_H  # with the correction for finite populations
    share = min(1.0, float(weights_H @ shares_H))  # the weights may add up to 1 + 2e-16
    effective = 1 / max(left_H.sum(), 1e-12)
    if variance := float(left_H @ (shares_H * (1 - shares_H))):
        effective = min(effective, share * (1 - share) / variance)
    wrong, right = effective * share, effective * (1 - share)
    shares[:, 0] = share
    shares[0, 1:] = rng.beta(wrong, right + 1, DRAWS) if wrong else 0.0
    shares[1, 1:] = rng.beta(wrong + 1, right, DRAWS) if right else 1.0
    return shares


def _correct_shares(shares: Any, annotator_error: float) -> Any:
    return np.clip((shares - annotator_error) / (1 - 2 * annotator_error), 0, 1)


def _interval(errors: Any, of: Any, confidence: float) -> Interval:
    rates = np.divide(errors, of, out=np.zeros_like(errors), where=of > 0)
    mean = float(rates[0, 0])
    low = float(np.quantile(rates[0, 1:], (1 - confidence) / 2))
    high = float(np.quantile(rates[1, 1:], (1 + confidence) / 2))
    return Interval(mean, min(low, mean), max(high, mean))
