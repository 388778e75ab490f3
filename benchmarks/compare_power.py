"""Level and power of `mathrl compare` beside other tests, over problems, responses, seeds and shapes of difficulty.

`python benchmarks/compare_power.py` simulates comparisons of two models, or of two recipes with several runs (seeds)
each, without and with a true difference, and counts how often each test shows one. A test keeps its level where it
claims at most `MOST` of the differences that are not there, whatever the shape; power is compared among those.

A problem's pass rate p has one of `SHAPES`. A run's rate of it is p + p (1 - p) u, where u, between -1 and 1, adds what
the model's training did to this problem, the run's own skill (its seed), and the run's own skill at this problem. u is
symmetric, so both recipes have the same accuracy over all problems unless a gain is added, which raises a rate r by a
share of 1 - r.

Shapes of arrays: T comparisons, R runs, P problems, B resamples.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from scipy import stats
from scipy.special import stdtr, stdtrit

from mathrl.evaluation.runs import compare_runs

MOST, LEAST, NEAR = 0.06, 0.04, 0.03  # the level's bounds, and the power that may be lost
PROBLEMS, SAMPLES, RUNS = (30, 100, 500, 1319), (1, 4, 16, 32), (1, 3, 5)
RESAMPLES = 400
BLOCKS = 20  # of trials that share the resamples
Array = np.ndarray


def hard(rng: np.random.Generator, size: tuple[int, ...]) -> Array:
    return rng.beta(0.5, 5.0, size)


def u_shaped(rng: np.random.Generator, size: tuple[int, ...]) -> Array:
    return rng.beta(0.3, 0.3, size)


def bimodal(rng: np.random.Generator, size: tuple[int, ...]) -> Array:
    return np.where(rng.random(size) < 0.5, rng.beta(4.0, 16.0, size), rng.beta(16.0, 4.0, size))


SHAPES: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
    "hard": hard,
    "U-shaped": u_shaped,
    "uniform": lambda rng, size: rng.random(size),
    "bimodal": bimodal,
}


@dataclass(frozen=True)
class Effects:
    """Standard deviations of u: what training does to a problem, a run's skill, and its skill at a problem.

    `ratio` is that of the second recipe's runs to the first's, `shared` the correlation of two runs with one seed.
    """

    problem: float = 0.3
    run: float = 0.0
    run_problem: float = 0.0
    ratio: float = 1.0
    shared: float = 0.0


MODELS = Effects()
SEEDS = {
    "runs alike": Effects(run_problem=0.2),
    "runs differ": Effects(run=0.15, run_problem=0.2),
    "runs differ much": Effects(run=0.4, run_problem=0.2),
    "one recipe's differ more": Effects(run=0.12, run_problem=0.2, ratio=3.0),
    "one start, correlation 0.5": Effects(run=0.4, run_problem=0.2, shared=0.5),
    "one start, correlation 0.9": Effects(run=0.4, run_problem=0.2, shared=0.9),
}


@dataclass(frozen=True)
class Cell:
    """One size and shape of a comparison."""

    problems: int
    samples: int
    runs: int
    shape: str
    effects: Effects = MODELS
    gain: float = 0.0

    def draw(self, rng: np.random.Generator, trials: int) -> tuple[Array, Array]:
        """Means of each run's responses by problem, TRP, of both recipes."""
        effects, several = self.effects, (trials, self.runs, self.problems)
        base = SHAPES[self.shape](rng, (trials, 1, self.problems))
        common = self._runs(rng, trials, effects.shared)
        sides = []
        for scale, gain in ((1.0, 0.0), (effects.ratio, self.gain)):
            u = rng.normal(0, effects.problem, (trials, 1, self.problems))
            u = np.clip(u + scale * (common + self._runs(rng, trials, 1 - effects.shared)), -1, 1)
            rates = base + base * (1 - base) * u
            rates = np.broadcast_to(rates + gain * (1 - rates), several)
            sides.append(responses(rng, rates, self.samples))
        return sides[0], sides[1]

    def _runs(self, rng: np.random.Generator, trials: int, share: float) -> Array | float:
        """The part of the runs' effects with this share of the variance."""
        if not (self.effects.run or self.effects.run_problem) or not share:
            return 0.0
        skill = rng.normal(0, self.effects.run, (trials, self.runs, 1))
        return share**0.5 * (skill + rng.normal(0, self.effects.run_problem, (trials, self.runs, self.problems)))


def responses(rng: np.random.Generator, rates: Array, samples: int) -> Array:
    """Mean of `samples` responses of each rate."""
    if samples > 4:
        return rng.binomial(samples, rates) / samples
    return sum(rng.random(rates.shape, dtype=np.float32) < rates for _ in range(samples)) / samples


# --- One run of each model. A test takes differences TP and returns which are shown, T.


def ours(differences_TP: Array, samples: int) -> Array:
    """`paired.compare`, for many comparisons at once."""
    mean, variance = with_halves(differences_TP, samples)
    return abs(mean) > stdtrit(differences_TP.shape[1] - 1, 0.975) * np.sqrt(variance)


def with_halves(differences_TP: Array, responses_behind: float) -> tuple[Array, Array]:
    """`spread.with_further` with `paired.four_outcomes`: the mean, and its variance."""
    count = differences_TP.shape[1] + 2
    mean = differences_TP.sum(axis=1) / count
    squares = (differences_TP**2).sum(axis=1) + 1 / responses_behind
    return mean, (squares - count * mean**2) / (count - 1) / count


def students_t(differences_TP: Array, _: int) -> Array:
    error = differences_TP.std(axis=1, ddof=1) / differences_TP.shape[1] ** 0.5
    return abs(differences_TP.mean(axis=1)) > stdtrit(differences_TP.shape[1] - 1, 0.975) * error


def wilcoxon(differences_TP: Array, _: int) -> Array:
    """Signed ranks, differences of 0 left out, with the normal distribution (the exact one knows no ties)."""
    sizes = abs(differences_TP)
    ranks = stats.rankdata(np.where(sizes > 0, sizes, -1.0), axis=1) - (sizes == 0).sum(axis=1, keepdims=True)
    ranks = np.where(sizes > 0, ranks, 0.0)
    statistic = (ranks * np.sign(differences_TP)).sum(axis=1)
    return abs(statistic) > 1.959964 * np.sqrt((ranks**2).sum(axis=1))


def sign(differences_TP: Array, _: int) -> Array:
    """Of the problems that differ, how many in each direction; exact. With one response this is McNemar's test."""
    more, less = (differences_TP > 0).sum(axis=1), (differences_TP < 0).sum(axis=1)
    return 2 * stats.binom.cdf(np.minimum(more, less), more + less, 0.5) < 0.05


def swapped_labels(rng: np.random.Generator, differences_TP: Array) -> Array:
    """Labels permuted within each problem: the mean against its distribution under random signs."""
    shown = []
    for part_TP in np.array_split(differences_TP.astype(np.float32), BLOCKS):
        signs_PB = rng.choice(np.array([-1, 1], np.float32), (part_TP.shape[1], RESAMPLES))
        beyond = abs(part_TP @ signs_PB) >= abs(part_TP.sum(axis=1, keepdims=True)) - 1e-4
        shown.append((beyond.sum(axis=1) + 1) / (RESAMPLES + 1) <= 0.05)
    return np.concatenate(shown)


def bootstraps(rng: np.random.Generator, before_TP: Array, after_TP: Array, samples: int) -> dict[str, Array]:
    """Intervals that leave out 0: percentiles and BCa over problems, and percentiles over problems and responses."""
    shown: dict[str, list[Array]] = {"bootstrap": [], "BCa": [], "two-level bootstrap": []}
    noise_TP = (before_TP * (1 - before_TP) + after_TP * (1 - after_TP)) / samples
    parts = (np.array_split(each.astype(np.float32), BLOCKS) for each in (after_TP - before_TP, noise_TP))
    for gaps_TP, own_TP in zip(*parts, strict=True):
        count = gaps_TP.shape[1]
        weights_PB = (rng.multinomial(count, np.full(count, 1 / count), RESAMPLES).T / count).astype(np.float32)
        means_TB = np.sort(gaps_TP @ weights_PB, axis=1)
        shown["bootstrap"].append(leaves_out_zero(means_TB, np.full((len(gaps_TP), 2), (0.025, 0.975))))
        shown["BCa"].append(leaves_out_zero(means_TB, bca_levels(gaps_TP, means_TB)))
        # A problem's responses drawn again: their mean varies by its own variance (the normal distribution's here).
        inner_TB = rng.standard_normal(means_TB.shape) * np.sqrt(own_TP @ weights_PB / count)
        both_TB = np.sort(gaps_TP @ weights_PB + inner_TB, axis=1)
        shown["two-level bootstrap"].append(leaves_out_zero(both_TB, np.full((len(gaps_TP), 2), (0.025, 0.975))))
    return {name: np.concatenate(each) for name, each in shown.items()}


def leaves_out_zero(sorted_TB: Array, levels_T2: Array) -> Array:
    places = np.clip((levels_T2 * sorted_TB.shape[1]).astype(int), 0, sorted_TB.shape[1] - 1)
    low, high = (np.take_along_axis(sorted_TB, places[:, [side]], axis=1)[:, 0] for side in (0, 1))
    return (low > 1e-6) | (high < -1e-6)


def bca_levels(gaps_TP: Array, means_TB: Array) -> Array:
    """The percentiles that bias and skewness correct (Efron, JASA 82, 1987)."""
    middle = gaps_TP.mean(axis=1, keepdims=True)
    below = (means_TB < middle - 1e-7).mean(axis=1) + (abs(means_TB - middle) <= 1e-7).mean(axis=1) / 2
    bias = stats.norm.ppf(np.clip(below, 0.001, 0.999))[:, None]
    centred = gaps_TP - middle
    squares = np.maximum((centred**2).sum(axis=1, keepdims=True), 1e-12)
    skew = (centred**3).sum(axis=1, keepdims=True) / squares**1.5 / 6
    z = bias + np.array([[-1.959964, 1.959964]])
    return np.asarray(stats.norm.cdf(bias + z / (1 - skew * z)))


def of_models(rng: np.random.Generator, before: Array, after: Array, samples: int) -> dict[str, Array]:
    """Every test's claims about models with one run each."""
    before_TP, after_TP = before[:, 0], after[:, 0]
    gaps = after_TP - before_TP
    plain = {"mathrl": ours, "t over problems": students_t, "Wilcoxon": wilcoxon, "sign or McNemar": sign}
    shown = {name: test(gaps, samples) for name, test in plain.items()}
    some = slice(0, 2000)  # the others take long
    shown["permuted labels"] = swapped_labels(rng, gaps[some])
    return shown | bootstraps(rng, before_TP[some], after_TP[some], samples)
