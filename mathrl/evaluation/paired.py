"""Is one model better than another on the same problems? Paired bootstrap and sign-flip permutation test."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from statistics import NormalDist
from typing import Any

import numpy as np

from mathrl.core.errors import UserError
from mathrl.core.seeding import derive_seed
from mathrl.core.statistics import wilson
from mathrl.evaluation.intervals import ROWS, TINY, bootstrap_means

POWER = 0.8


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the problems that both models answered say.

    Example:
        Comparison(before="sft", after="rl", problems=500, difference=0.54, low=0.50, high=0.58,
                   p_value=0.0001, detectable=0.056, shown=True)

    `difference` is after minus before; `p_value` is two-sided; `detectable` is the smallest true difference
    that a set of this size and spread shows with 80 % power; `shown` when the interval leaves out 0 and the
    p-value is below 1 - confidence. `before_runs` and `after_runs` count the training runs of each.
    """

    before: str
    after: str
    problems: int
    difference: float
    low: float
    high: float
    p_value: float
    detectable: float
    shown: bool
    before_runs: int = 1
    after_runs: int = 1

    def to_row(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict()}

    def verdict(self) -> str:
        """One sentence with the figures."""
        p = "p < 0.0001" if self.p_value < 0.0001 else f"p = {self.p_value:.4f}"
        figures = f"{self.difference:+.3f} [{self.low:+.3f}, {self.high:+.3f}], {p}, {self.problems} problems"
        if self.before_runs + self.after_runs > 2:
            figures += f", {self.before_runs} and {self.after_runs} runs"
        if self.shown:
            better, worse = (self.after, self.before) if self.difference > 0 else (self.before, self.after)
            return f"{better} is better than {worse}: {figures}"
        return (
            f"no difference shown between {self.before} and {self.after}: {figures}; "
            f"this set shows differences from {self.detectable:.3f} up"
        )


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
    """Compare two models by one value a problem (pass@1, say), over the problems that both have.

    Raises:
        UserError: fewer than two problems in common.
    """
    common = sorted(before_values.keys() & after_values.keys())
    if len(common) < 2:
        raise UserError(
            f"{before} and {after} have {len(common)} problems in common, a paired test needs two or more; "
            "evaluate both on the same benchmark"
        )
    differences = np.array([after_values[id] - before_values[id] for id in common])
    mean = float(differences.mean())
    if np.ptp(differences) < TINY:
        # No spread to resample: as many problems could still hide a share of others up to Wilson's bound.
        detectable = wilson(0, len(common), confidence)[1]
        low, high = max(-1.0, mean - detectable), min(1.0, mean + detectable)
    else:
        means = bootstrap_means(differences, resamples, seed)
        low, high = (float(q) for q in np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2]))
        error = float(differences.std(ddof=1)) / len(common) ** 0.5
        detectable = (NormalDist().inv_cdf(0.5 + confidence / 2) + NormalDist().inv_cdf(POWER)) * error
    p_value = sign_flip_p(differences, resamples, seed)
    shown = (low > 0 or high < 0) and p_value < 1 - confidence
    return Comparison(before, after, len(common), mean, low, high, p_value, detectable, shown)


def sign_flip_p(differences: Sequence[float] | np.ndarray, resamples: int, seed: int) -> float:
    """Two-sided p-value of the mean under random signs of the paired differences.

    Exact over all sign patterns where there are at most `resamples` of them; else (1 + as extreme) /
    (1 + resamples), which never says 0 (Phipson and Smyth, 2010). Differences of 0 say nothing and are left
    out of the patterns.
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
    for start in range(0, resamples, ROWS):
        flips = rng.integers(0, 2, (min(ROWS, resamples - start), len(moved)))
        extreme += int((np.abs((2.0 * flips - 1.0) @ moved) >= bar).sum())
    return (1 + extreme) / (1 + resamples)
