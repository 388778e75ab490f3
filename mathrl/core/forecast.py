"""Where a dev curve is going: a sigmoid over computation, with an interval (ScaleRL, arXiv:2510.13786, equation 1).

    accuracy(C) = R + (A - R) / (1 + (M / C)^B)

R is the accuracy at the start, A the one that it approaches, M the computation at which half of the way is done, B how
steep the curve is. C counts steps: each of a run's steps samples and trains on about the same number of responses.
Given M and B the curve is linear in R and A, so that their posterior is a normal distribution; M, B and an extra noise
beside the binomial one are on a grid. The interval is of the accuracy that the dev problems will measure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mathrl.core.results import Interval

DEV = "dev/accuracy"
FEWEST = 5  # evaluations; fewer say nothing about a curve of four parameters
DRAWS = 4000
PRIOR_MEAN, PRIOR_SD = 0.5, 0.4  # of R and of A
STEEPNESS, HALVES, EXTRA = (0.5, 6.0, 20), 48, (0.0, 0.01, 0.02, 0.04)  # range and number of B; number of M; extra sd
Curve = Sequence[tuple[int, float]]  # (step, dev accuracy)


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the dev problems will measure.

    Example:
        Forecast(step=40, end=100, accuracy=Interval(0.93, 0.90, 0.95), further=50, gain=Interval(0.01, 0.0, 0.03))

    From the curve up to `step`: `accuracy` at step `end`, `gain` by `further` steps after it.
    """

    step: int
    end: int
    accuracy: Interval
    further: int
    gain: Interval

    def sentence(self) -> str:
        """
        >>> Forecast(40, 100, Interval(0.93, 0.9, 0.95), 50, Interval(0.01, 0.0, 0.03)).sentence()
        'at this rate 0.93 [0.90, 0.95] at step 100; another 50 steps give +0.01 [+0.00, +0.03]'
        """
        at, more = self.accuracy, self.gain
        return (
            f"at this rate {at.mean:.2f} [{at.low:.2f}, {at.high:.2f}] at step {self.end}; another {self.further} "
            f"steps give {more.mean:+.2f} [{more.low:+.2f}, {more.high:+.2f}]"
        )


def forecast(curve: Curve, end: int, responses: int, *, confidence: float = 0.9) -> Forecast | None:
    """The forecast of a dev curve at step `end`; None before FEWEST evaluations, or once the end is reached.

    `responses` is how many an evaluation grades: problems times samples. Equal curves give equal forecasts.
    """
    points = [(step, accuracy) for step, accuracy in curve if step > 0]
    if len(points) < FEWEST or points[-1][0] >= end:
        return None
    import numpy as np  # here alone: what reads records does not need it

    further = max(1, end // 2)
    draws = _posterior(points, end, responses)
    at_end, later = draws.at(end), draws.at(end + further)
    measured = np.clip(at_end + draws.noise(at_end, responses), 0, 1)
    tail = (1 - confidence) / 2
    low, high = np.quantile(measured, (tail, 1 - tail))
    gain_low, gain_high = np.quantile(later - at_end, (tail, 1 - tail))
    return Forecast(
        points[-1][0],
        end,
        Interval(float(at_end.mean()), float(low), float(high)),
        further,
        Interval(float((later - at_end).mean()), float(gain_low), float(gain_high)),
    )


@dataclass(frozen=True)
class _Draws:
    """Curves drawn from the posterior: arrays [DRAWS] of R, A, M, B and the extra sd."""

    start: Any
    top: Any
    half: Any
    steepness: Any
    extra: Any
    random: Any

    def at(self, step: int) -> Any:
        share = 1 / (1 + (self.half / step) ** self.steepness)
        return (self.start + (self.top - self.start) * share).clip(0, 1)

    def noise(self, accuracy: Any, responses: int) -> Any:
        sd = (accuracy * (1 - accuracy) / responses + self.extra**2) ** 0.5
        return self.random.standard_normal(len(accuracy)) * sd


def _posterior(points: Curve, end: int, responses: int) -> _Draws:
    """Shapes: H settings of (M, B, extra sd), P points, 2 coefficients (R, A)."""
    import numpy as np

    steps_P, accuracy_P = (np.array(values, dtype=float) for values in zip(*points, strict=True))
    smoothed_P = (accuracy_P * responses + 1) / (responses + 2)
    halves = np.geomspace(steps_P[0] / 3, 3 * end, HALVES)
    half_H, steep_H, extra_H = (
        grid.ravel() for grid in np.meshgrid(halves, np.geomspace(*STEEPNESS), np.array(EXTRA), indexing="ij")
    )
    share_HP = 1 / (1 + (half_H[:, None] / steps_P) ** steep_H[:, None])
    design_HP2 = np.stack([1 - share_HP, share_HP], -1)
    variance_HP = smoothed_P * (1 - smoothed_P) / responses + extra_H[:, None] ** 2
    prior_22 = np.eye(2) / PRIOR_SD**2
    precision_H22 = np.einsum("hpi,hp,hpj->hij", design_HP2, 1 / variance_HP, design_HP2) + prior_22
    pull_H2 = np.einsum("hpi,hp,p->hi", design_HP2, 1 / variance_HP, accuracy_P) + PRIOR_MEAN / PRIOR_SD**2
    covariance_H22 = np.linalg.inv(precision_H22)
    mean_H2 = np.einsum("hij,hj->hi", covariance_H22, pull_H2)
    evidence_H = 0.5 * (
        np.linalg.slogdet(covariance_H22)[1]
        + np.einsum("hi,hi->h", pull_H2, mean_H2)
        - (accuracy_P**2 / variance_HP + np.log(variance_HP)).sum(-1)
    )
    weight_H = np.exp(evidence_H - evidence_H.max())
    random = np.random.default_rng(0)
    chosen = random.choice(len(weight_H), DRAWS, p=weight_H / weight_H.sum())
    root_H22 = np.linalg.cholesky(covariance_H22)
    ends = mean_H2[chosen] + np.einsum("dij,dj->di", root_H22[chosen], random.standard_normal((DRAWS, 2)))
    start, top = np.clip(ends, 0, 1).T
    return _Draws(start, top, half_H[chosen], steep_H[chosen], extra_H[chosen], random)
