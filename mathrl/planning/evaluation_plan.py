"""How many problems, responses and runs an evaluation needs for an interval of a wanted width, or to show a difference.

The variance of a mean over P problems with k responses each is (between + within / k) / P: `between` is that of the
problems' own pass rates (or of their differences), `within` that of a single response. More responses shrink the
second part alone, so that beyond some k only more problems help. R runs per recipe have k R responses to a problem.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.special import ndtr, stdtrit

from mathrl.core.errors import UserError
from mathrl.core.types import EvalRow
from mathrl.evaluation.paired import FURTHER
from mathrl.evaluation.spread import POWER, VariancePart, detectable, half_width

MOST_PROBLEMS = 1_000_000
DRAWS = 4000  # of the variances that few runs show: 0.003 of power
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
    """Training runs per recipe, and the standard deviation of their true accuracies.

    `correlation` is that of two runs with one seed and start; None: the runs of two recipes are not paired.
    """

    count: int = 1
    spread: float = 0.0
    correlation: float | None = None

    def part(self) -> list[VariancePart]:
        return [VariancePart(self.spread**2 / self.count, self.count - 1)] if self.count > 1 else []


def smallest_difference(problems: int, samples: int, spread: Spread, runs: Runs, confidence: float) -> float:
    """What a comparison of two models with so many problems and responses shows with a power of 0.8."""
    part = _problems_part(problems, samples, spread, runs)
    grown = (problems + FURTHER) / problems
    if runs.count == 1:
        return detectable([part], confidence) * grown
    from scipy.optimize import brentq  # 0.3 s, and --help needs the module

    error, half_N = _draw_halves(part, problems, samples, spread, runs, confidence)

    def missing(difference: float) -> float:
        return POWER - float((ndtr((difference - half_N) / error) + ndtr((-difference - half_N) / error)).mean())

    most = 20 * max(error, float(half_N.max()))
    return grown * float(brentq(missing, 0.0, most, xtol=1e-7 * most))


def _problems_part(problems: int, samples: int, spread: Spread, runs: Runs) -> VariancePart:
    """The part of the problems as `paired.paired_test` finds it, with its further outcomes."""
    responses = samples * runs.count
    square = spread.of_problem(responses)
    added = min(square, 1 / responses) / 2
    count = problems + FURTHER
    return VariancePart(((problems - 1) * square + added) / (count - 1) / count, problems - 1)


def _draw_halves(
    part: VariancePart, problems: int, samples: int, spread: Spread, runs: Runs, confidence: float
) -> tuple[float, np.ndarray]:
    """The standard error of a difference of recipes, and half of the interval in each of DRAWS evaluations.

    What few runs show of their spread differs from one evaluation to the next, so that no formula has the power of
    `runs.compare_runs`; the variances are drawn as it finds them, always from the same random numbers.
    """
    shared_NR, own_N2R, noise_N2R, problems_N = _normals(runs.count)
    correlation = runs.correlation or 0.0
    skill_N2R = np.sqrt(correlation) * shared_NR[:, None] + np.sqrt(1 - correlation) * own_N2R
    rest = spread.within / 2 / samples / problems  # of a run's mean; both recipes' responses are alike
    means_N2R = runs.spread * skill_N2R + np.sqrt(rest) * noise_N2R

    def quantile(freedom: np.ndarray | float) -> np.ndarray:
        return np.asarray(stdtrit(freedom, 0.5 + confidence / 2)) ** 2

    spreads_N2, freedom = means_N2R.var(axis=2, ddof=1), runs.count - 1
    parts_N2 = np.maximum(0.0, spreads_N2 - rest) / runs.count
    excess_N = np.maximum(0.0, spreads_N2.sum(axis=1) - 2 * rest) / runs.count
    if runs.correlation is not None:
        pairs_N = (means_N2R[:, 1] - means_N2R[:, 0]).var(axis=1, ddof=1)
        least_N = np.minimum(pairs_N, spreads_N2.sum(axis=1)) - 2 * rest * (1 - 1 / freedom)
        squares_N = quantile(freedom) * np.maximum(0.0, least_N) / runs.count
    elif freedom < 2:
        squares_N = quantile(freedom) * parts_N2.sum(axis=1)
    else:
        weights_N = (parts_N2**2).sum(axis=1) / freedom
        welch_N = parts_N2.sum(axis=1) ** 2 / np.where(weights_N > 0, weights_N, 1.0)
        squares_N = quantile(np.where(weights_N > 0, welch_N, 2 * freedom)) * excess_N
    # Wilson and Hilferty's chi-square, smooth in the number of problems.
    shown_N = (1 - 2 / 9 / part.freedom + problems_N * np.sqrt(2 / 9 / part.freedom)) ** 3
    variance = part.variance + 2 * runs.spread**2 * (1 - correlation) / runs.count
    return float(np.sqrt(variance)), np.sqrt(quantile(part.freedom) * part.variance * shown_N + squares_N)


@cache
def _normals(runs: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    sides = (DRAWS, 2, runs)
    return rng.normal(size=(DRAWS, runs)), rng.normal(size=sides), rng.normal(size=sides), rng.normal(size=DRAWS)


def width(problems: int, samples: int, spread: Spread, runs: Runs, confidence: float) -> float:
    """The width of the interval of one model's accuracy, where it is about a half."""
    variance = ((problems - 1) * spread.of_problem(samples * runs.count) + 0.25) / problems / (problems + 1)
    return 2 * half_width([VariancePart(variance, problems - 1), *runs.part()], confidence)


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
