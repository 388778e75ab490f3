"""How often the intervals of an evaluation hold the truth, and how often a difference is claimed where there is none.

`python benchmarks/intervals.py` simulates evaluations of two levels: problems with pass rates of their own, and k
responses each; then pairs of models, with and without a true difference; then several runs of a recipe. Beside the
intervals of mathrl stands mean ± 1.96 standard errors over problems, which lm-evaluation-harness (api/metrics.py,
mean_stderr) and lighteval (metrics/stderr.py, mean_stderr) print, and the same over all responses as if they were
independent; beside the comparisons Student's paired t and a bootstrap over the problems.
"""

import argparse
from collections.abc import Callable

import numpy as np
from scipy.special import stdtrit

from mathrl.evaluation.paired import compare
from mathrl.evaluation.runs import compare_runs, seeds_interval
from mathrl.evaluation.spread import cluster_interval

Z = 1.959964
# Pass rates of problems: (a, b) of a Beta distribution, and what it stands for.
RATES = {
    "even": (2.0, 2.0), "solved or not": (0.3, 0.3), "easy": (5.0, 0.5), "hard": (0.2, 2.0), "very hard": (0.05, 1.0),
}  # fmt: skip
SIZES = ((15, 32), (30, 4), (30, 32), (100, 8), (500, 8))
# For two models: from AIME's with many samples to few responses of few problems, with a gain that t shows about half.
PAIRED_SIZES = ((30, 32), (30, 64), (60, 32), (500, 4), (500, 8), (40, 8), (30, 1), (15, 1))
GAINS = (0.05, 0.06, 0.05, 0.03, 0.03, 0.08, 0.25, 0.35)
RESAMPLES = 1000
RUN_SPREADS = (0.0, 0.02, 0.05, 0.1)


def held(table_NPk: np.ndarray, truth: float) -> list[float]:
    """Shares of N evaluations whose interval holds the truth: mathrl's, over problems, over responses."""
    values_NP = table_NPk.mean(axis=2)
    intervals = [cluster_interval(values_P.tolist()) for values_P in values_NP]
    ours = np.mean([interval.low <= truth <= interval.high for interval in intervals])
    count, samples = table_NPk.shape[1:]
    means = values_NP.mean(axis=1)
    over_problems = values_NP.std(axis=1, ddof=1) / count**0.5
    over_responses = table_NPk.reshape(len(means), -1).std(axis=1, ddof=1) / (count * samples) ** 0.5
    return [float(ours), *(float(np.mean(abs(means - truth) <= Z * e)) for e in (over_problems, over_responses))]


def coverage(rng: np.random.Generator, trials: int) -> None:
    print("\nOne model: share of 95 % intervals that hold the truth\n")
    print("| pass rates | problems x responses | mathrl | ± 1.96 errors over problems | over responses |")
    print("|---|---|---|---|---|")
    for name, (a, b) in RATES.items():
        for problems, samples in SIZES:
            rates = rng.beta(a, b, (trials, problems, 1))
            table = rng.random((trials, problems, samples)) < rates
            shares = " | ".join(f"{share:.3f}" for share in held(table.astype(float), a / (a + b)))
            print(f"| {name} | {problems} x {samples} | {shares} |", flush=True)


Draw = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]


def no_difference(rng: np.random.Generator, problems: int) -> tuple[np.ndarray, np.ndarray]:
    rates = rng.beta(0.3, 0.3, problems)
    return rates, rates


def few_gain_much(rng: np.random.Generator, problems: int) -> tuple[np.ndarray, np.ndarray]:
    """One problem in twenty gains 0.9, the others lose 0.047 each: no difference on average."""
    before = np.full(problems, 0.06)
    return before, np.where(rng.random(problems) < 0.05, 0.96, before - 0.9 * 0.05 / 0.95)


def tenth_gains(rng: np.random.Generator, problems: int) -> tuple[np.ndarray, np.ndarray]:
    before = np.full(problems, 0.4)
    return before, np.where(rng.random(problems) < 0.1, 0.9, before - 0.5 * 0.1 / 0.9)


def own_noise(gain: float) -> Draw:
    """Pass rates move by problem by 0.06, and rise by `gain` on average where they are neither 0 nor 1."""

    def rates(rng: np.random.Generator, problems: int) -> tuple[np.ndarray, np.ndarray]:
        start = rng.beta(0.6, 1.0, problems)
        free = (start > 0.02) & (start < 0.98)
        before, after = (start + rng.normal(0, 0.06, problems) * free for _ in range(2))
        return np.clip(before, 0, 1), np.clip(after + gain * rng.uniform(0, 2, problems) * free, 0, 1)

    return rates


def shown(rng: np.random.Generator, draw: Draw, problems: int, samples: int, trials: int) -> list[float]:
    """Shares of comparisons that show a difference: mathrl's, Student's paired t, a percentile bootstrap."""
    weights = rng.multinomial(problems, np.full(problems, 1 / problems), RESAMPLES) / problems
    ours = theirs = drawn = 0
    for _ in range(trials):
        before, after = (rng.binomial(samples, rates) / samples for rates in draw(rng, problems))
        ours += compare("a", "b", _values(before), _values(after), responses=samples).shown
        gaps = after - before
        error = gaps.std(ddof=1) / problems**0.5
        theirs += abs(gaps.mean()) > stdtrit(problems - 1, 0.975) * error
        low, high = np.quantile(weights @ gaps, (0.025, 0.975))
        drawn += low > 0 or high < 0
    return [ours / trials, theirs / trials, drawn / trials]


def claims(rng: np.random.Generator, trials: int) -> None:
    print("\nTwo models without a difference: share of comparisons that claim one (0.05 allowed)\n")
    print("| problems' differences | problems x responses | mathrl | Student's paired t | bootstrap |")
    print("|---|---|---|---|---|")
    draws: dict[str, Draw] = {
        "none": no_difference,
        "by problem": own_noise(0.0),
        "a tenth gains": tenth_gains,
        "one in twenty gains much": few_gain_much,
    }
    for name, draw in draws.items():
        for problems, samples in PAIRED_SIZES:
            shares = " | ".join(f"{share:.3f}" for share in shown(rng, draw, problems, samples, trials))
            print(f"| {name} | {problems} x {samples} | {shares} |", flush=True)


def power(rng: np.random.Generator, trials: int) -> None:
    print("\nTwo models with a difference: share of comparisons that show it\n")
    print("| problems x responses | gain | mathrl | Student's paired t | bootstrap |\n|---|---|---|---|---|")
    for (problems, samples), gain in zip(PAIRED_SIZES, GAINS, strict=True):
        shares = " | ".join(f"{share:.3f}" for share in shown(rng, own_noise(gain), problems, samples, trials))
        print(f"| {problems} x {samples} | {gain} | {shares} |", flush=True)
    print("\nThe difference that the comparison says it can show: share of comparisons that show it\n")
    print("| problems x responses | difference | shown (0.80 is said) |\n|---|---|---|")
    for problems, samples in PAIRED_SIZES:
        said = [_shifted(rng, problems, samples, 0.0).detectable for _ in range(40)]
        difference = float(np.mean(said))
        found = sum(_shifted(rng, problems, samples, difference).shown for _ in range(trials))
        print(f"| {problems} x {samples} | {difference:.3f} | {found / trials:.3f} |", flush=True)


def _shifted(rng: np.random.Generator, problems: int, samples: int, difference: float):  # type: ignore[no-untyped-def]
    """A comparison of two models whose pass rates differ by `difference` on average, by problem more or less."""
    middle = rng.uniform(0.35, 0.65, problems)
    gaps = difference + rng.uniform(-0.2, 0.2, problems)
    rates = (np.clip(middle - gaps / 2, 0, 1), np.clip(middle + gaps / 2, 0, 1))
    before, after = (rng.binomial(samples, rate) / samples for rate in rates)
    return compare("a", "b", _values(before), _values(after), responses=samples)


def _values(values_P: np.ndarray) -> dict[str, float]:
    return {f"p{number:04}": float(value) for number, value in enumerate(values_P)}


def _runs(rng: np.random.Generator, runs: int, problems_P: np.ndarray, spread: float, samples: int) -> list[dict]:  # type: ignore[type-arg]
    """Runs whose skill differs by `spread`, most on problems that are neither easy nor hard."""
    room = 4 * problems_P * (1 - problems_P)
    shape = (runs, len(problems_P))
    rates = problems_P + room * (rng.normal(0, spread, (runs, 1)) + rng.normal(0, 0.1, shape))
    return [_values(row) for row in rng.binomial(samples, np.clip(rates, 0, 1)) / samples]


def several_runs(rng: np.random.Generator, trials: int) -> None:
    print("\nSeveral runs of a recipe: intervals that hold the truth, and claims where two recipes are the same\n")
    print("| runs | problems x responses | spread of the runs | interval holds | false claims |\n|---|---|---|---|---|")
    for runs in (2, 3, 5):
        for problems, samples in ((30, 8), (500, 8)):
            for spread in RUN_SPREADS:
                inside = claimed = 0
                for _ in range(trials):
                    base = rng.beta(0.5, 0.5, problems)
                    first, second = (_runs(rng, runs, base, spread, samples) for _ in range(2))
                    interval = seeds_interval(first)
                    inside += interval.low <= 0.5 <= interval.high
                    claimed += compare_runs("a", "b", first, second, responses=(samples, samples)).shown
                shares = f"{inside / trials:.3f} | {claimed / trials:.3f}"
                print(f"| {runs} | {problems} x {samples} | {spread} | {shares} |", flush=True)


TABLES = {"coverage": coverage, "claims": claims, "power": power, "runs": several_runs}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=4000, help="Simulated evaluations per row.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=list(TABLES), help="One table; default: all.")
    options = parser.parse_args()
    for number, (name, table) in enumerate(TABLES.items()):
        if options.only in (None, name):
            table(np.random.default_rng([options.seed, number]), options.trials)
