"""Does a forecast hold what its interval says, and what does it save in a sweep? `python benchmarks/forecast.py`

Simulated dev curves of 20 evaluations with the binomial noise of 128 problems x 4 responses, 400 of each kind; none has
a stored run behind it. From the first 40 % of each, mathrl.evaluation.forecast names a 90 % interval for the accuracy
that is measured at the end; counted are the ends within it. Beside it two peers from the same points: the last value
with its binomial interval, and a least-squares line through the last half of the points with its prediction interval.

Then sweeps of 24 trials over one learning rate, five seeds, by Optuna's TPE sampler with each of mathrl's pruners: what
the winner would reach without noise, and the evaluations that were made.
"""

import argparse
import math
from collections.abc import Callable

import numpy as np
import optuna
from scipy import stats

from mathrl.evaluation.forecast import forecast
from mathrl.sweeps.study import ForecastPruner

RESPONSES, END, EVALUATIONS, SHARE = 512, 100, 20, 0.4
STEPS = [END * number // EVALUATIONS for number in range(1, EVALUATIONS + 1)]
Interval = tuple[float, float]


def sigmoid(rng: np.random.Generator, x: np.ndarray, start: float, top: float) -> np.ndarray:
    half, steep = END * math.exp(rng.uniform(math.log(0.05), 0)), rng.uniform(1, 4)
    return start + (top - start) / (1 + (half / x) ** steep)


def exponential(rng: np.random.Generator, x: np.ndarray, start: float, top: float) -> np.ndarray:
    return start + (top - start) * (1 - np.exp(-x / (END * rng.uniform(0.05, 0.8))))


def ramp(rng: np.random.Generator, x: np.ndarray, start: float, top: float) -> np.ndarray:
    """Straight up, then flat."""
    return start + (top - start) * np.minimum(1, x / (END * rng.uniform(0.3, 1.2)))


def flat(rng: np.random.Generator, x: np.ndarray, start: float, top: float) -> np.ndarray:
    return np.full(len(x), start)


def late(rng: np.random.Generator, x: np.ndarray, start: float, top: float) -> np.ndarray:
    """Takes off after what the forecast has seen."""
    return start + (top - start) / (1 + np.exp(-(x - END * rng.uniform(0.45, 0.7)) / (0.04 * END)))


def collapse(rng: np.random.Generator, x: np.ndarray, start: float, top: float) -> np.ndarray:
    """Rises, and falls half of the way back."""
    peak = END * rng.uniform(0.3, 0.8)
    return np.where(x < peak, start + (top - start) * x / peak, top - 0.5 * (top - start) * (x - peak) / (END - peak))


KINDS: tuple[Callable[..., np.ndarray], ...] = (sigmoid, exponential, ramp, flat, late, collapse)


def forecasted(points: list[tuple[int, float]]) -> Interval:
    found = forecast(points, END, RESPONSES)
    assert found is not None
    return found.accuracy.low, found.accuracy.high


def in_shape(points: list[tuple[int, float]]) -> Interval:
    found = forecast(points, END, RESPONSES)
    assert found is not None
    return found.in_shape.low, found.in_shape.high


def last_value(points: list[tuple[int, float]]) -> Interval:
    accuracy = points[-1][1]
    half = stats.norm.ppf(0.95) * math.sqrt(2 * accuracy * (1 - accuracy) / RESPONSES)  # of the point and of the end
    return accuracy - half, accuracy + half


def straight_line(points: list[tuple[int, float]]) -> Interval:
    x, y = np.array(points[len(points) // 2 :], dtype=float).T
    fit = stats.linregress(x, y)
    residual = y - fit.intercept - fit.slope * x
    spread = math.sqrt(float((residual**2).sum()) / (len(x) - 2))
    error = spread * math.sqrt(1 + 1 / len(x) + (END - x.mean()) ** 2 / float(((x - x.mean()) ** 2).sum()))
    middle, half = fit.intercept + fit.slope * END, stats.t.ppf(0.95, len(x) - 2) * error
    return max(0.0, middle - half), min(1.0, middle + half)


METHODS = {"forecast": forecasted, "in its shape": in_shape, "last value": last_value, "straight line": straight_line}


def coverage(curves: int) -> None:
    print(f"ends within the 90 % interval from the first {SHARE:.0%}, and its mean width; {curves} curves per kind")
    print(f"| curve | {' | '.join(METHODS)} |\n|---|{'---|' * len(METHODS)}")
    for kind in KINDS:
        rng = np.random.default_rng(0)
        hits, widths = dict.fromkeys(METHODS, 0), dict.fromkeys(METHODS, 0.0)
        for _ in range(curves):
            start = rng.uniform(0.05, 0.6)
            true = kind(rng, np.array(STEPS, dtype=float), start, rng.uniform(start, 1))
            measured = rng.binomial(RESPONSES, np.clip(true, 0, 1)) / RESPONSES
            points = list(zip(STEPS, measured.tolist(), strict=True))
            for name, method in METHODS.items():
                low, high = method(points[: int(SHARE * EVALUATIONS)])
                hits[name] += low <= points[-1][1] <= high
                widths[name] += (high - low) / curves
        cells = [f"{hits[name] / curves:.3f} ({widths[name]:.2f})" for name in METHODS]
        print(f"| {kind.__name__} | {' | '.join(cells)} |", flush=True)


def reached(log_rate: float, steps: np.ndarray) -> np.ndarray:
    """A run's true dev curve by its learning rate: the best is 1e-2; small ones are slow, large ones low."""
    off = log_rate + 2
    half = 25 * 10 ** max(0.0, -off)
    return 0.4 + (0.95 - 0.5 * max(0.0, off) - 0.4) / (1 + (half / steps) ** 2)


def sweep(pruner: optuna.pruners.BasePruner, seed: int, trials: int = 24) -> tuple[float, int]:
    """What the winner reaches at the end without noise, and the number of evaluations made."""
    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=4), pruner=pruner
    )
    rng, evaluations = np.random.default_rng(seed), 0

    def run(trial: optuna.Trial) -> float:
        nonlocal evaluations
        true = reached(trial.suggest_float("log_rate", -5, -0.5), np.array(STEPS, dtype=float))
        value = 0.0
        for step, accuracy in zip(STEPS, true, strict=True):
            evaluations += 1
            value = rng.binomial(RESPONSES, accuracy) / RESPONSES
            trial.report(value, step)
            if trial.number and step < END and trial.should_prune():
                raise optuna.TrialPruned
        return value

    study.optimize(run, n_trials=trials)
    return float(reached(study.best_params["log_rate"], np.array([float(END)]))[0]), evaluations


def sweeps(seeds: int) -> None:
    print(f"\nsweeps of 24 trials x {EVALUATIONS} evaluations, {seeds} seeds; the best rate reaches ", end="")
    print(f"{reached(-2.0, np.array([float(END)]))[0]:.3f}")
    print("| pruner | winner reaches, by seed | evaluations, by seed | of all |\n|---|---|---|---|")
    pruners: dict[str, Callable[[], optuna.pruners.BasePruner]] = {
        "none": optuna.pruners.NopPruner,
        "median": lambda: optuna.pruners.MedianPruner(4, 0),
        "hyperband": lambda: optuna.pruners.HyperbandPruner(5, END),
        "forecast": lambda: ForecastPruner(END, RESPONSES, 4, 0),
    }
    for name, make in pruners.items():
        results = [sweep(make(), seed) for seed in range(seeds)]
        share = sum(made for _, made in results) / (seeds * 24 * EVALUATIONS)
        winners = ", ".join(f"{value:.3f}" for value, _ in results)
        print(f"| {name} | {winners} | {', '.join(str(made) for _, made in results)} | {share:.0%} |", flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--curves", type=int, default=400)
    arguments.add_argument("--seeds", type=int, default=5)
    options = arguments.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    coverage(options.curves)
    sweeps(options.seeds)


if __name__ == "__main__":
    main()
