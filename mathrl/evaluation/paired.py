"""Is one model better than another on the same problems? Paired bootstrap and sign-flip permutation test."""

from collections.abc import Mapping, Sequence
from itertools import product
from statistics import NormalDist

import numpy as np

from mathrl.core.errors import UserError
from mathrl.core.results import Comparison
from mathrl.core.seeding import derive_seed
from mathrl.core.statistics import wilson
from mathrl.evaluation.intervals import BATCH, TINY, bootstrap_means

POWER = 0.8


def compare(
    before: str,
    after: str,
    before_values: Mapping[str, float],
    after_values: Mapping[str, float],
    *,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Comparison:
    """Compare two models by one value per problem (such as pass@1) over the problems that both have.

    Raises:
        UserError: fewer than two problems in common.
    """
    common = sorted(before_values.keys() & after_values.keys())
    if len(common) < 2:
        raise UserError(
            f"{before} and {after} have {len(common)} problems in common, a paired test needs two or more; "
            "evaluate both on the same benchmark"
        )
    differences_P = np.array([after_values[id] - before_values[id] for id in common])
    mean = float(differences_P.mean())
    if np.ptp(differences_P) < TINY:
        # No spread to resample: a share of problems up to Wilson's bound could still differ unseen.
        detectable = wilson(0, len(common), confidence)[1]
        low, high = max(-1.0, mean - detectable), min(1.0, mean + detectable)
    else:
        means = bootstrap_means(differences_P, resamples, seed)
        low, high = (float(q) for q in np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2]))
        error = float(differences_P.std(ddof=1)) / len(common) ** 0.5
        detectable = (NormalDist().inv_cdf(0.5 + confidence / 2) + NormalDist().inv_cdf(POWER)) * error
    p_value = sign_flip_p(differences_P, resamples, seed)
    shown = (low > 0 or high < 0) and p_value < 1 - confidence
    return Comparison(before, after, len(common), mean, low, high, p_value, detectable, shown)


def sign_flip_p(differences: Sequence[float] | np.ndarray, resamples: int, seed: int) -> float:
    """Two-sided p-value of the mean under random signs of the paired differences.

    Exact over all sign patterns where there are at most `resamples` of them; otherwise (1 + as extreme) /
    (1 + resamples), which is never 0 (Phipson and Smyth, 2010). Differences of 0 carry no information and are
    left out of the patterns; scipy.stats.permutation_test keeps them, so it enumerates far fewer cases exactly
    and draws other signs for the same seed.
    """
    moved = np.asarray(differences)
    moved = moved[moved != 0]
    if not len(moved):
        return 1.0
    # Sums that are equal but for rounding count as equally extreme.
    bar = abs(moved.sum()) - 1e-9 * np.abs(moved).sum()
    if 2 ** len(moved) <= resamples:
        signs = np.array(list(product((1.0, -1.0), repeat=len(moved))))
        return float((np.abs(signs @ moved) >= bar).mean())
    rng = np.random.default_rng(derive_seed(seed, "sign_flip"))
    extreme = 0
    for start in range(0, resamples, BATCH):
        flips = rng.integers(0, 2, (min(BATCH, resamples - start), len(moved)))
        extreme += int((np.abs((2.0 * flips - 1.0) @ moved) >= bar).sum())
    return (1 + extreme) / (1 + resamples)
