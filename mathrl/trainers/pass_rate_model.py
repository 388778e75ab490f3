"""Pass rates of problems that were not sampled yet, predicted from those that were, and how well that is calibrated.

Shapes: N problems, F features, B bins of predictions.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mathrl.core.types import Problem

Array = npt.NDArray[np.float64]
BINS = 10
MOST_SOURCES = 20  # further sources share a column
MOST_ROWS = 8_192  # problems that a fit looks at, the latest
FEWEST_ROWS = 8
HALF_LIFE = 10  # sampling rounds after which a group counts half, since the policy has changed
UNKNOWN = 0.5
NO_SPREAD = 1e-9  # equal values have a spread of a rounding error


def features(problems: Sequence[Problem]) -> Array:
    """What a pass rate is predicted from, [N, F]: source, level within the source, measured pass rate, length.

    Columns have mean 0 and deviation 1; columns without variation are left out.
    """
    sources_N = np.array([problem.source for problem in problems])
    levels_N = np.array([problem.level or 0 for problem in problems], dtype=np.float64)
    columns = [
        np.array([math.log1p(len(problem.question)) for problem in problems]),
        np.array([_logit(problem.pass_rate) for problem in problems]),
        np.array([problem.pass_rate is None for problem in problems], dtype=np.float64),
    ]
    frequent = [source for source, _ in Counter(sources_N.tolist()).most_common(MOST_SOURCES)]
    for members_N in [*(sources_N == source for source in frequent), ~np.isin(sources_N, frequent)]:
        middle = levels_N[members_N].mean() if members_N.any() else 0.0
        columns += [members_N.astype(np.float64), np.where(members_N, levels_N - middle, 0.0)]
    matrix_FN = np.array(columns)
    spread_F = matrix_FN.std(axis=1)
    varied_F = spread_F > NO_SPREAD
    kept_FN = matrix_FN[varied_F]
    columns_FN: Array = (kept_FN - kept_FN.mean(axis=1, keepdims=True)) / spread_F[varied_F][:, None]
    return columns_FN.T


def _logit(rate: float | None) -> float:
    rate = UNKNOWN if rate is None else min(0.98, max(0.02, rate))
    return math.log(rate / (1 - rate))


def measured_rates(problems: Sequence[Problem]) -> Array:
    """The measured pass rates, [N], 1/2 where there is none."""
    return np.array([UNKNOWN if problem.pass_rate is None else problem.pass_rate for problem in problems])


def predict(features_NF: Array, start_N: Array, correct_N: Array, samples_N: Array, age_N: Array) -> Array:
    """Pass rates of all problems, [N], by logistic regression on the responses to those with samples.

    A group of `age` sampling rounds counts half for every `HALF_LIFE`. Where fewer than `FEWEST_ROWS` problems were
    sampled, or all responses have one verdict, the predictions are `start_N`. They are rounded to 1/1000, so that the
    last bit of a processor's arithmetic decides nothing.
    """
    seen = np.flatnonzero(samples_N)
    seen = seen[np.argsort(age_N[seen], kind="stable")][:MOST_ROWS]
    correct, samples = correct_N[seen], samples_N[seen]
    if len(seen) < FEWEST_ROWS or not 0 < correct.sum() < samples.sum() or not features_NF.shape[1]:
        return start_N
    from sklearn.linear_model import LogisticRegression  # a second to import, and used by one order of problems

    recent = 0.5 ** (age_N[seen] / HALF_LIFE)
    rows = np.concatenate([features_NF[seen], features_NF[seen]])
    verdicts = np.repeat([1, 0], len(seen))
    weights = np.concatenate([correct * recent, (samples - correct) * recent])
    model = LogisticRegression(solver="newton-cholesky", tol=1e-6, max_iter=100)
    model.fit(rows, verdicts, sample_weight=weights)
    return np.round(model.predict_proba(features_NF)[:, 1], 3)  # type: ignore[no-any-return]


class Calibration:
    """Predictions made before a problem was first sampled, against what its first group gave.

    >>> calibration = Calibration()
    >>> calibration.add(0.25, correct=1, samples=4)
    >>> calibration.add(0.75, correct=2, samples=4)
    >>> calibration.error()
    0.125
    """

    def __init__(self) -> None:
        self.samples_B, self.correct_B, self.predicted_B = (np.zeros(BINS) for _ in range(3))
        self.squares, self.squares_of_mean = 0.0, 0.0

    def add(self, predicted: float, correct: int, samples: int) -> None:
        """One problem's prediction and its first group."""
        rate, seen = correct / samples, self.samples_B.sum()
        if seen:  # the first has no mean to compare with
            mean = self.correct_B.sum() / seen
            self.squares += (rate - predicted) ** 2
            self.squares_of_mean += (rate - mean) ** 2
        place = min(BINS - 1, int(predicted * BINS))
        self.samples_B[place] += samples
        self.correct_B[place] += correct
        self.predicted_B[place] += predicted * samples

    def error(self) -> float:
        """Expected calibration error: the mean distance of predicted and found pass rate, bins weighted by samples."""
        samples = self.samples_B.sum()
        return float(np.abs(self.correct_B - self.predicted_B).sum() / samples) if samples else 0.0

    def skill(self) -> float:
        """1 minus the squared error relative to that of predicting the mean found so far; 0: no better than it.

        The noise of the groups is in both errors, so a perfect prediction stays below 1.
        """
        return 1 - self.squares / self.squares_of_mean if self.squares_of_mean else 0.0

    def rows(self) -> list[tuple[float, float, int]]:
        """Predicted pass rate, found pass rate and number of responses, per bin that has any."""
        return [
            (float(predicted / samples), float(correct / samples), int(samples))
            for predicted, correct, samples in zip(self.predicted_B, self.correct_B, self.samples_B, strict=True)
            if samples
        ]

    def state(self) -> dict[str, Any]:
        sums = {name: getattr(self, name).tolist() for name in ("samples_B", "correct_B", "predicted_B")}
        return {**sums, "squares": self.squares, "squares_of_mean": self.squares_of_mean}

    def load(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, np.array(value) if isinstance(value, list) else float(value))
