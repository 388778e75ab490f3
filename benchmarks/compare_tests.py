"""`mathrl compare` and its rivals, each for many comparisons at once; benchmarks/compare_power.py measures them.

A test of models takes differences TP and returns which it shows, T; one of recipes takes the means of each run's
responses, TRP, of both.

Shapes of arrays: T comparisons, R runs, P problems, B resamples.
"""

from collections.abc import Callable

import numpy as np
from scipy import stats
from scipy.special import stdtr, stdtrit

RESAMPLES = 400
BLOCKS = 20  # of comparisons that share the resamples
SOME = 2000  # comparisons that the resampling tests see
Array = np.ndarray


def ours(differences_TP: Array, samples: int) -> Array:
    """`paired.compare`, for many comparisons at once."""
    mean, variance = with_halves(differences_TP, samples)
    return abs(mean) > stdtrit(differences_TP.shape[1] - 1, 0.975) * np.sqrt(variance)


def with_halves(differences_TP: Array, responses_behind: float) -> tuple[Array, Array]:
    """`spread.with_further` with `paired.four_outcomes`: the mean, and its variance."""
    problems, squares = differences_TP.shape[1], (differences_TP**2).sum(axis=1)
    seen = (squares + 2 / responses_behind) / ((differences_TP != 0).sum(axis=1) + 2)
    squares = squares + np.minimum(seen, 1 / responses_behind) / 2
    mean = differences_TP.sum(axis=1) / (problems + 2)
    return mean, (squares - (problems + 2) * mean**2) / (problems + 1) / (problems + 2)


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
    plain: dict[str, Callable[[Array, int], Array]] = {
        "mathrl": ours, "t": students_t, "Wilcoxon": wilcoxon, "sign, McNemar": sign,
    }  # fmt: skip
    shown = {name: test(gaps, samples) for name, test in plain.items()}
    shown["permutation"] = swapped_labels(rng, gaps[:SOME])
    return shown | bootstraps(rng, before_TP[:SOME], after_TP[:SOME], samples)


def excess(table_TRP: Array, share: float = 1.0) -> Array:
    """`runs._excess`: the variance of the mean over runs, without the rest's."""
    runs, problems = table_TRP.shape[1:]
    means_TR1 = table_TRP.mean(axis=2, keepdims=True)
    rest = table_TRP - means_TR1 - table_TRP.mean(axis=1, keepdims=True) + means_TR1.mean(axis=1, keepdims=True)
    return means_TR1[..., 0].var(axis=1, ddof=1) / runs - share * (rest**2).sum(axis=(1, 2)) / (
        (runs - 1) * (problems - 1) * runs * problems
    )


def of_recipes(rng: np.random.Generator, before: Array, after: Array, samples: int) -> dict[str, Array]:
    """Every test's claims about recipes with R runs each."""
    runs, problems = before.shape[1:]
    freedom, gaps = runs - 1, after.mean(axis=1) - before.mean(axis=1)
    mean, variance = with_halves(gaps, samples * runs)
    parts = np.stack([excess(before), excess(after)])
    both, paired = parts.sum(axis=0), excess(after - before)
    held = np.maximum(parts, 0.0)
    weights = (held**2).sum(axis=0) / freedom
    welch = np.where(weights > 0, held.sum(axis=0) ** 2 / np.where(weights > 0, weights, 1.0), 2 * freedom)
    from_problems = stdtrit(problems - 1, 0.975) ** 2 * variance

    def beyond(squares: Array) -> Array:
        return abs(mean) > np.sqrt(from_problems + squares)

    share = 1 - 1 / freedom
    least = np.minimum(excess(before, share) + excess(after, share), excess(after - before, share))
    by_seed = stdtrit(freedom, 0.975) ** 2 * np.maximum(least, 0.0)
    means = [side.mean(axis=2) for side in (before, after)]
    own = [each.var(axis=1, ddof=1) / runs for each in means]
    apart, difference = own[0] + own[1], means[1].mean(axis=1) - means[0].mean(axis=1)
    pairs = (means[1] - means[0]).var(axis=1, ddof=1) / runs
    welch_alone = apart**2 / np.maximum((own[0] ** 2 + own[1] ** 2) / freedom, 1e-30)
    plain = gaps.var(axis=1, ddof=1) / problems
    return {
        "mathrl": beyond(stdtrit(welch, 0.975) ** 2 * np.maximum(both, 0.0)),
        "mathrl by seed": beyond(by_seed),
        "as before": beyond(stdtrit(freedom, 0.975) ** 2 * held.sum(axis=0)),
        "t over problems": students_t(gaps, samples),
        "t over runs": abs(difference) > stdtrit(2 * freedom, 0.975) * np.sqrt(apart),
        "Welch over runs": abs(difference) > stdtrit(welch_alone, 0.975) * np.sqrt(apart),
        "paired t over runs": abs(difference) > stdtrit(freedom, 0.975) * np.sqrt(pairs),
        "mixed model": satterthwaite(difference, [(plain, problems - 1), (np.maximum(both, 0.0), 2 * freedom)]),
        "mixed model by seed": satterthwaite(difference, [(plain, problems - 1), (np.maximum(paired, 0.0), freedom)]),
        "two-level bootstrap": runs_and_problems(rng, before[:SOME], after[:SOME]),
    }


def satterthwaite(difference: Array, parts: list[tuple[Array, int]]) -> Array:
    """A linear mixed model's test in a balanced table: the analysis of variance with Satterthwaite's degrees."""
    total = sum(variance for variance, _ in parts)
    freedom = total**2 / sum(variance**2 / degrees for variance, degrees in parts)
    return np.asarray(abs(difference) > stdtrit(freedom, 0.975) * np.sqrt(total))


def runs_and_problems(rng: np.random.Generator, before: Array, after: Array) -> Array:
    """Percentiles over runs of either recipe and problems drawn again."""
    runs, problems = before.shape[1:]
    shown = []
    for block in np.array_split(np.arange(len(before)), BLOCKS):
        weights_PB = (rng.multinomial(problems, np.full(problems, 1 / problems), RESAMPLES).T / problems).astype(
            np.float32
        )
        means = []
        for side in (before, after):
            drawn_BR = rng.multinomial(runs, np.full(runs, 1 / runs), RESAMPLES) / runs
            means.append(np.einsum("trb,br->tb", side[block].astype(np.float32) @ weights_PB, drawn_BR))
        sorted_TB = np.sort(means[1] - means[0], axis=1)
        shown.append(leaves_out_zero(sorted_TB, np.full((len(block), 2), (0.025, 0.975))))
    return np.concatenate(shown)


def exact_levels(problems: int, disagree: float) -> dict[str, float]:
    """The exact levels with one response each, where the models disagree on a problem with this chance."""
    more, less = (each.ravel() for each in np.mgrid[0 : problems + 1, 0 : problems + 1])
    more, less = more[more + less <= problems], less[more + less <= problems]
    chances = stats.multinomial.pmf(
        np.stack([more, less, problems - more - less], axis=1), problems, [disagree / 2, disagree / 2, 1 - disagree]
    )
    mean = (more - less) / (problems + 2)
    error = np.sqrt((more + less + 0.5 - (problems + 2) * mean**2) / (problems + 1) / (problems + 2) + 1e-30)
    p_values = np.round(2 * stdtr(problems - 1, -abs(mean) / error), 12)
    plain = np.sqrt((more + less - (more - less) ** 2 / problems) / (problems - 1) / problems + 1e-30)
    t_values = 2 * stdtr(problems - 1, -abs(more - less) / problems / plain)
    signs = 2 * stats.binom.cdf(np.minimum(more, less), more + less, 0.5)
    shown = {"mathrl": p_values < 0.05, "t": t_values < 0.05, "McNemar": signs < 0.05}
    return {name: float(chances[which].sum()) for name, which in shown.items()}
