"""Where a dev curve is going, from two kinds of shapes, with an interval for what its shape does not tell.

Sigmoids over computation (ScaleRL, arXiv:2510.13786, equation 1), which rise and flatten:

    accuracy(C) = R + (A - R) / (1 + (M / C)^B)

R is the accuracy at the start, A the one that it approaches, M the computation at which half of the way is done, B how
steep the curve is. C counts steps: each of a run's steps samples and trains on about the same number of responses. And
lines with one bend: straight on, up to a plateau, rising late, or past their peak. Given M and B, or the step of the
bend, a curve is linear in its two or three values, so that their posterior is a normal distribution; M, B, the bend and
an extra noise beside the binomial one are on a grid. A quarter of the prior is on these, and the fit weighs both.

A curve may also take off or fall after what was seen, which no fit tells: of a run that is half over every second curve
may turn and end anywhere, of one that is nine tenths over every tenth. Intervals are of the accuracy that the dev
problems will measure.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mathrl.core.metrics import complete_rows
from mathrl.core.records import RunRecord
from mathrl.core.results import Interval, eval_name

DEV = "dev/accuracy"
FEWEST = 5  # evaluations; fewer say nothing about a curve of four parameters
DRAWS = 4000
PRIOR_MEAN, PRIOR_SD = 0.5, 0.4  # of a curve's values
STEEPNESS, HALVES, EXTRA = (0.5, 6.0, 20), 48, (0.0, 0.01, 0.02, 0.04)  # range and number of B; number of M; extra sd
BENDS = 24  # steps of the bend, the last of them with three points after it
Curve = Sequence[tuple[int, float]]  # (step, dev accuracy)


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the dev problems will measure.

    Example:
        Forecast(step=40, end=100, accuracy=Interval(0.93, 0.40, 0.97), in_shape=Interval(0.93, 0.90, 0.95), further=50,
                 gain=Interval(0.01, 0.0, 0.03))

    From the curve up to `step`: `accuracy` at step `end`, whatever the curve does after `step`; `in_shape` if it keeps
    its shape; `gain` by `further` steps after the end, in its shape too. The mean is that of the shape.
    """

    step: int
    end: int
    accuracy: Interval
    in_shape: Interval
    further: int
    gain: Interval

    def sentence(self) -> str:
        """
        >>> whole, shape = Interval(0.93, 0.4, 0.97), Interval(0.93, 0.9, 0.95)
        >>> print(Forecast(40, 100, whole, shape, 50, Interval(0.01, 0.0, 0.03)).sentence())
        if the curve keeps its shape 0.93 [0.90, 0.95] at step 100, [0.40, 0.97] if it may still take off or fall; ...
        """
        at, whole, more = self.in_shape, self.accuracy, self.gain
        return (
            f"if the curve keeps its shape {at.mean:.2f} [{at.low:.2f}, {at.high:.2f}] at step {self.end}, "
            f"[{whole.low:.2f}, {whole.high:.2f}] if it may still take off or fall; in its shape another "
            f"{self.further} steps give {more.mean:+.2f} [{more.low:+.2f}, {more.high:+.2f}]"
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
    turned = np.where(draws.random.random(DRAWS) * end > points[-1][0], draws.random.random(DRAWS), at_end)
    mean, tail = float(at_end.mean()), (1 - confidence) / 2

    def measured_interval(accuracy: Any) -> Interval:
        values = np.clip(accuracy + draws.noise(accuracy, responses), 0, 1)
        low, high = np.quantile(values, (tail, 1 - tail))
        return Interval(mean, min(float(low), mean), max(float(high), mean))

    gain_low, gain_high = np.quantile(later - at_end, (tail, 1 - tail))
    gain = Interval(float((later - at_end).mean()), float(gain_low), float(gain_high))
    return Forecast(points[-1][0], end, measured_interval(turned), measured_interval(at_end), further, gain)


@dataclass(frozen=True)
class _Draws:
    """Curves drawn from the posterior: arrays [DRAWS] of M, B, the bend (infinite: a sigmoid) and the extra sd, and
    [DRAWS, 3] of the values that a curve is linear in; `end` is where a line with a bend has its last one."""

    values: Any
    half: Any
    steepness: Any
    bend: Any
    extra: Any
    end: int
    random: Any

    def at(self, step: int) -> Any:
        return (self.values * _shares(step, self.half, self.steepness, self.bend, self.end)).sum(-1).clip(0, 1)

    def noise(self, accuracy: Any, responses: int) -> Any:
        sd = (accuracy * (1 - accuracy) / responses + self.extra**2) ** 0.5
        return self.random.standard_normal(len(accuracy)) * sd


def _shares(step: Any, half: Any, steepness: Any, bend: Any, end: int) -> Any:
    """How much of each of its three values a curve has at the step: of R and A (and nothing) of a sigmoid; of a line
    with a bend those at step 0, at the bend, and at the end. The line past the bend goes on beyond the end."""
    import numpy as np

    share = 1 / (1 + (half / step) ** steepness)
    past = np.maximum(0.0, step - bend) / np.maximum(1.0, end - bend)
    before = np.minimum(1.0, step / bend)
    line, sigmoid = (1 - before, before - past, past), (1 - share, share, np.zeros_like(share))
    curved = np.isinf(bend)
    return np.stack([np.where(curved, *parts) for parts in zip(sigmoid, line, strict=True)], -1)


def _posterior(points: Curve, end: int, responses: int) -> _Draws:
    """Shapes: H settings of (M, B, bend, extra sd), P points, 3 values."""
    import numpy as np

    steps_P, accuracy_P = (np.array(values, dtype=float) for values in zip(*points, strict=True))
    smoothed_P = (accuracy_P * responses + 1) / (responses + 2)
    halves, steeps = np.geomspace(steps_P[0] / 3, 3 * end, HALVES), np.geomspace(*STEEPNESS)
    bends = np.append(np.linspace(steps_P[0], steps_P[-4], BENDS), end)  # a bend at the end is none
    sigmoids = [(half, steep, math.inf, 0.75 / (HALVES * len(steeps))) for half in halves for steep in steeps]
    lines = [(1.0, 1.0, bend, 0.25 / len(bends)) for bend in bends]
    half_H, steep_H, bend_H, prior_H, extra_H = np.array(
        [(*shape, extra) for shape in (*sigmoids, *lines) for extra in EXTRA]
    ).T
    shape_H1 = half_H[:, None], steep_H[:, None], bend_H[:, None]
    design_HP3 = _shares(steps_P, *shape_H1, end)
    variance_HP = smoothed_P * (1 - smoothed_P) / responses + extra_H[:, None] ** 2
    prior_33 = np.eye(3) / PRIOR_SD**2
    precision_H33 = np.einsum("hpi,hp,hpj->hij", design_HP3, 1 / variance_HP, design_HP3, optimize=True) + prior_33
    pull_H3 = np.einsum("hpi,hp->hi", design_HP3, accuracy_P / variance_HP) + PRIOR_MEAN / PRIOR_SD**2
    covariance_H33 = np.linalg.inv(precision_H33)
    mean_H3 = np.einsum("hij,hj->hi", covariance_H33, pull_H3)
    evidence_H = np.log(prior_H) + 0.5 * (
        np.linalg.slogdet(covariance_H33)[1]
        + np.einsum("hi,hi->h", pull_H3, mean_H3)
        - (accuracy_P**2 / variance_HP + np.log(variance_HP)).sum(-1)
    )
    weight_H = np.exp(evidence_H - evidence_H.max())
    random = np.random.default_rng(0)
    chosen = random.choice(len(weight_H), DRAWS, p=weight_H / weight_H.sum())
    root_H33 = np.linalg.cholesky(covariance_H33)
    values = mean_H3[chosen] + np.einsum("dij,dj->di", root_H33[chosen], random.standard_normal((DRAWS, 3)))
    # A sigmoid approaches an accuracy; a line may be on its way to one beyond 1, and is cut there.
    values = np.where(np.isinf(bend_H[chosen])[:, None], np.clip(values, 0, 1), values)
    return _Draws(values, half_H[chosen], steep_H[chosen], bend_H[chosen], extra_H[chosen], end, random)


PROBLEMS = 128  # of the dev split, where it is not on this machine any more


def forecast_of(record: RunRecord, rows: Sequence[Mapping[str, Any]]) -> Forecast | None:
    """Where the run's dev curve will be at its last step, or for a finished run after half as many steps again.

    None for a run that is not RL, and before enough evaluations.
    """
    rl = record.params.get("rl", {})
    samples = rl.get("dev", {}).get("samples", rl.get("eval_samples"))  # the second of a record of version 0.1
    return None if samples is None else _forecast_curve(record, rows, DEV, _dev_problems(record) * int(samples))


def forecast_sentences(record: RunRecord, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The forecast of the dev curve, and of each curve of rl.eval_benchmarks, that can be made."""
    made = {"dev": forecast_of(record, rows)}
    for benchmark in record.params.get("rl", {}).get("eval_benchmarks", ()):
        name = eval_name(benchmark["name"])
        problems = max((int(row.get(f"{name}/problems", 0)) for row in rows), default=0)
        made[benchmark["name"]] = _forecast_curve(record, rows, f"{name}/accuracy", problems * benchmark["samples"])
    return [f"from the {name} curve up to step {each.step}: {each.sentence()}" for name, each in made.items() if each]


def _forecast_curve(
    record: RunRecord, rows: Sequence[Mapping[str, Any]], metric: str, responses: int
) -> Forecast | None:
    rl = record.params.get("rl", {})
    curve = [(int(row["step"]), float(row[metric])) for row in rows if metric in row]
    if record.stage != "rl" or not curve or "steps" not in rl:
        return None
    last, steps = curve[-1][0], int(rl["steps"])
    end = steps if last < steps else last + max(1, last // 2)
    return forecast(curve, end, responses)


def recorded_forecast(record: RunRecord) -> Forecast | None:
    """`forecast_of` the metrics that the record has so far."""
    return forecast_of(record, complete_rows(record.metrics_file))


def _dev_problems(record: RunRecord) -> int:
    file = next((Path(record.workspace) / path for path in record.inputs if path.endswith("dev.jsonl")), None)
    if file is None or not file.is_file():
        return PROBLEMS
    with file.open("rb") as stream:
        return sum(1 for _ in stream) or PROBLEMS
