"""How many problems, responses and runs an evaluation needs for an interval of a wanted width, or to show a difference.

The variance of a mean over P problems with k responses each is (between + within / k) / P: `between` is that of the
problems' own pass rates (or of their differences), `within` that of a single response. More responses shrink the
second part alone, so that beyond some k only more problems help.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mathrl.core.errors import UserError
from mathrl.core.types import EvalRow
from mathrl.evaluation.paired import FURTHER, four_outcomes
from mathrl.evaluation.spread import VariancePart, detectable, half_width

MOST_PROBLEMS = 1_000_000
SAMPLES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Spread:
    """Variances of one problem: `between` problems, and `within` one response to it; `account` says where from."""

    between: float
    within: float
    account: str

    def of_problem(self, samples: int) -> float:
        return self.between + self.within / samples


# Pass rates spread evenly from 0 to 1 (variance 1/12, and 1/6 within); differences of 0.2, more or less, by problem.
ANY_MODEL = Spread(1 / 12, 1 / 6, "assumed: pass rates spread evenly from 0 to 1")
ANY_PAIR = Spread(0.04, 1 / 3, "assumed: pass rates spread evenly from 0 to 1, differences of about 0.2 by problem")


def spread_of_model(rows: Sequence[EvalRow]) -> Spread:
    """The spread of one model's pass rates, from pilot responses: two or more per problem.

    Raises:
        UserError: one response per problem, or a single problem.
    """
    rates_P, within_P = _rates(rows)
    between = float(rates_P.var(ddof=1) - (within_P / _samples(rows)).mean())
    return Spread(max(0.0, between), float(within_P.mean()), _account(rows))


def spread_of_pair(before: Sequence[EvalRow], after: Sequence[EvalRow]) -> Spread:
    """The spread of the differences of two models on the same problems, from pilot responses.

    Raises:
        UserError: as `spread_of_model`, or fewer than two problems in common.
    """
    by_id = {row.problem_id: row for row in after}
    first = [row for row in before if row.problem_id in by_id]
    second = [by_id[row.problem_id] for row in first]
    (rates_P, within_P), (others_P, other_within_P) = _rates(first), _rates(second)
    noise_P = within_P / _samples(first) + other_within_P / _samples(second)
    between = float((others_P - rates_P).var(ddof=1) - noise_P.mean())
    return Spread(max(0.0, between), float((within_P + other_within_P).mean()), _account(first))


def _rates(rows: Sequence[EvalRow]) -> tuple[np.ndarray, np.ndarray]:
    """Pass rates, and the unbiased variance of one response, by problem."""
    if len(rows) < 2 or _samples(rows) < 2:
        raise UserError(
            f"a pilot of {len(rows)} problems with {_samples(rows)} responses each does not show how responses vary; "
            "give one with two or more problems and two or more responses per problem"
        )
    samples, rates_P = _samples(rows), np.array([sum(row.correct) / len(row.correct) for row in rows])
    return rates_P, rates_P * (1 - rates_P) * samples / (samples - 1)


def _samples(rows: Sequence[EvalRow]) -> int:
    return len(rows[0].correct) if rows else 0


def _account(rows: Sequence[EvalRow]) -> str:
    return f"measured on {len(rows):,} problems with {_samples(rows)} responses each"


@dataclass(frozen=True)
class Runs:
    """Training runs per recipe, and the standard deviation of their true accuracies."""

    count: int = 1
    spread: float = 0.0

    def parts(self, sides: int) -> list[VariancePart]:
        part = VariancePart(self.spread**2 / self.count, self.count - 1)
        return [part] * sides if self.count > 1 else []


def smallest_difference(problems: int, samples: int, spread: Spread, runs: Runs, confidence: float) -> float:
    """What a comparison of two models with so many problems and responses shows with a power of 0.8."""
    # As `paired.paired_test`: half a problem of each of four outcomes is added.
    added = sum(outcome**2 for outcome in four_outcomes(samples * runs.count)) / 2
    count = problems + FURTHER
    variance = ((problems - 1) * spread.of_problem(samples) + added) / (count - 1) / count
    return detectable([VariancePart(variance, problems - 1), *runs.parts(2)], confidence) * count / problems


def width(problems: int, samples: int, spread: Spread, runs: Runs, confidence: float) -> float:
    """The width of the interval of one model's accuracy, where it is about a half."""
    variance = ((problems - 1) * spread.of_problem(samples) + 0.25) / problems / (problems + 1)
    return 2 * half_width([VariancePart(variance, problems - 1), *runs.parts(1)], confidence)


Figure = Callable[[int, int, Spread, Runs, float], float]


def problems_needed(
    figure: Figure, wanted: float, samples: int, spread: Spread, runs: Runs, confidence: float
) -> int | None:
    """The smallest number of problems at which `figure` is at most `wanted`; None where no number is enough."""

    def enough(problems: int) -> bool:
        return figure(problems, samples, spread, runs, confidence) <= wanted

    if not enough(MOST_PROBLEMS):
        return None
    low, high = 1, MOST_PROBLEMS  # `high` is enough, `low` is not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
