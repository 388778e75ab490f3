"""Level and power of `mathrl compare` beside other tests, over problems, responses, seeds and shapes of difficulty.

`python -m benchmarks.compare_power` simulates comparisons of two models, or of two recipes with several runs (seeds)
each, without and with a true difference, and counts how often each test shows one. A test keeps its level where it
claims at most `MOST` of the differences that are not there, whatever the shape; power is compared among those.

A problem's pass rate p has one of `SHAPES`. A run's rate of it is p + p (1 - p) u, where u, between -1 and 1, adds what
the model's training did to this problem, the run's own skill (its seed), and the run's own skill at this problem. u is
symmetric, so both recipes have the same accuracy over all problems unless a gain is added, which raises a rate r by a
share of 1 - r.

Shapes of arrays: T comparisons, R runs, P problems, B resamples.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from benchmarks.compare_tests import Array, exact_levels, of_models, of_recipes
from mathrl.evaluation.runs import compare_runs
from mathrl.planning.evaluation_plan import Runs, Spread, smallest_difference

MOST, LEAST, NEAR = 0.06, 0.04, 0.03  # the level's bounds, and the power that may be lost
PROBLEMS, SAMPLES, RUNS = (30, 100, 500, 1319), (1, 4, 16, 32), (3, 5)
SIZES = ((30, 16), (100, 4), (500, 4))  # of the comparisons of recipes


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

    `ratio` is that of the second recipe's runs to the first's, `shared` the correlation of two runs with one seed;
    `few`: instead, every pass rate is 0.06, of which one in twenty gains 0.9 and the others lose 0.047.
    """

    problem: float = 0.3
    run: float = 0.0
    run_problem: float = 0.0
    ratio: float = 1.0
    shared: float = 0.0
    few: bool = False


MODELS, FEW_GAIN = Effects(), Effects(few=True)
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
        before, after = self.rates(rng, trials)
        return responses(rng, before, self.samples), responses(rng, after, self.samples)

    def rates(self, rng: np.random.Generator, trials: int) -> tuple[Array, Array]:
        effects, several = self.effects, (trials, self.runs, self.problems)
        base = SHAPES[self.shape](rng, (trials, 1, self.problems))
        common = self._runs(rng, trials, effects.shared)
        sides = []
        for scale, gain in ((1.0, 0.0), (effects.ratio, self.gain)):
            u = rng.normal(0, effects.problem, (trials, 1, self.problems))
            u = np.clip(u + scale * (common + self._runs(rng, trials, 1 - effects.shared)), -1, 1)
            rates = base + base * (1 - base) * u
            if effects.few:
                rates = np.full_like(base, 0.06) + (
                    np.where(rng.random(base.shape) < 0.05, 0.9, -0.9 / 19) if sides else 0
                )
            rates = np.broadcast_to(rates + gain * (1 - rates), several)
            sides.append(rates)
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


def measure(rng: np.random.Generator, cell: Cell, trials: int) -> tuple[dict[str, float], dict[str, float], float]:
    """Each test's level, its power, and the gain in accuracy at which that is: 2.3 standard errors."""
    before, after = cell.draw(rng, trials)
    check(cell, before, after)
    test = of_models if cell.runs == 1 else of_recipes
    level = shares(test(rng, before, after, cell.samples))
    error = float((after - before).mean(axis=(1, 2)).std())
    better = replace(cell, gain=min(0.95, 2.3 * error / (1 - float(before.mean()))))
    before, after = better.draw(rng, trials)
    return level, shares(test(rng, before, after, cell.samples)), float((after - before).mean())


def shares(shown: Mapping[str, Array]) -> dict[str, float]:
    return {name: float(each.mean()) for name, each in shown.items()}


def check(cell: Cell, before: Array, after: Array) -> None:
    """The vectorised test is the library's, in the first comparisons."""
    vectors = (of_models if cell.runs == 1 else of_recipes)(np.random.default_rng(0), before, after, cell.samples)
    for trial in range(3):
        sides = [[dict(enumerate(map(float, run))) for run in side[trial]] for side in (before, after)]
        named = [[{f"{id:05}": value for id, value in run.items()} for run in side] for side in sides]
        counts = (float(cell.samples),) * 2
        for name, by_seed in (("mathrl", False), ("mathrl by seed", True)):
            if name in vectors:
                ours = compare_runs("a", "b", *named, responses=counts, by_seed=by_seed)
                assert ours.shown == vectors[name][trial], (cell, name, ours)


def error_of(share: float, trials: int) -> float:
    return (share * (1 - share) / trials) ** 0.5


def models(rng: np.random.Generator, trials: int) -> None:
    print("\n## Two models: level / power\n")
    found: dict[tuple[int, int, str], tuple[dict[str, float], dict[str, float]]] = {}
    for problems, samples in product(PROBLEMS, SAMPLES):
        for shape in (*SHAPES, "few gain"):
            effects = FEW_GAIN if shape == "few gain" else MODELS
            cell = Cell(problems, samples, 1, "uniform" if shape == "few gain" else shape, effects)
            level, power, gain = measure(rng, cell, trials if problems < 500 else max(1000, trials // 4))
            if not found:
                print(
                    f"| problems x responses | shape | gain | {' | '.join(level)} |\n|---|---|---|{'---|' * len(level)}"
                )
            found[problems, samples, shape] = (level, power)
            cells = " | ".join(f"{level[name]:.3f} / {power[name]:.2f}" for name in level)
            print(f"| {problems} x {samples} | {shape} | {gain:.3f} | {cells} |", flush=True)
    summarise(found, tuple(SHAPES), "mathrl", trials)


def recipes(rng: np.random.Generator, trials: int) -> None:
    print("\n## Two recipes of several runs: level / power\n")
    found: dict[tuple[int, int, int, str], tuple[dict[str, float], dict[str, float]]] = {}
    for (problems, samples), runs in product(SIZES, RUNS):
        for kind, effects in SEEDS.items():
            cell = Cell(problems, samples, runs, "uniform", effects)
            level, power, gain = measure(rng, cell, trials if problems < 500 else max(1000, trials // 4))
            if not found:
                names = " | ".join(level)
                print(f"| problems x responses x runs | runs | gain | {names} |\n|---|---|---|{'---|' * len(level)}")
            found[problems, samples, runs, kind] = (level, power)
            cells = " | ".join(f"{level[name]:.3f} / {power[name]:.2f}" for name in level)
            print(f"| {problems} x {samples} x {runs} | {kind} | {gain:.3f} | {cells} |", flush=True)
    apart = tuple(kind for kind in SEEDS if not kind.startswith("one start"))
    together = tuple(kind for kind in SEEDS if kind.startswith("one start"))
    summarise(found, apart, "mathrl", trials)
    summarise(found, together, "mathrl by seed", trials)


def summarise(found: Mapping[tuple, tuple], kinds: Sequence[str], ours: str, trials: int) -> None:  # type: ignore[type-arg]
    """Which tests keep their level at all sizes, and what ours loses to the best of them in each row."""
    rows = {key: pair for key, pair in found.items() if key[-1] in (*kinds, "few gain")}
    names = list(next(iter(rows.values()))[0])
    sizes = sorted({key[:-1] for key in rows})
    print(f"\n| {', '.join(kinds)}: test | levels | sizes at which it keeps its level |\n|---|---|---|")
    keeps: dict[tuple, set[str]] = {size: set() for size in sizes}  # type: ignore[type-arg]
    for name in names:
        for size in sizes:
            levels = [level[name] for key, (level, _) in rows.items() if key[:-1] == size and key[-1] != "few gain"]
            # A test of accuracy claims no difference of 500 problems because few of them gain much.
            levels += [level[name] for key, (level, _) in rows.items() if key == (500, size[1], "few gain")]
            if max(levels) <= MOST + 2 * error_of(MOST, max(1000, trials // 4)):
                keeps[size].add(name)
        kinds_alone = [level[name] for key, (level, _) in rows.items() if key[-1] != "few gain"]
        kept = sum(name in tests for tests in keeps.values())
        print(f"| {name} | {min(kinds_alone):.3f} to {max(kinds_alone):.3f} | {kept} of {len(sizes)} |")
    for key, (level, power) in rows.items():
        if key[-1] == "few gain":
            continue
        best = max((power[name], name) for name in keeps.get(key[:-1], {ours}) | {ours})
        if not LEAST <= level[ours] <= MOST or best[0] - power[ours] > NEAR:
            print(f"- {key}: level {level[ours]:.3f}, power {power[ours]:.3f}, best {best[1]} {best[0]:.3f}")


def exact(_: np.random.Generator, __: int) -> None:
    print("\n## One response each: exact levels\n")
    print("| problems | they disagree on | mathrl | t | McNemar |\n|---|---|---|---|---|")
    for problems, disagree in product((15, 30, 100), (0.05, 0.1, 0.2, 0.3, 0.5)):
        cells = " | ".join(f"{level:.3f}" for level in exact_levels(problems, disagree).values())
        print(f"| {problems} | {disagree} | {cells} |")


def plans(rng: np.random.Generator, trials: int) -> None:
    """The power at the difference that `mathrl plan evaluate` says is shown with 0.8."""
    print("\n## The difference that a plan promises with a power of 0.8\n")
    print("| shape | problems x responses x runs | runs differ | difference | power | standard error |")
    print("|---|---|---|---|---|---|")
    plan = (("uniform", 30, 16), ("hard", 100, 4), ("U-shaped", 100, 16), ("bimodal", 500, 4), ("uniform", 500, 1))
    for (shape, problems, samples), runs, shared in product(plan, (1, 3, 5), (None, 0.9)):
        if runs == 1 and shared is not None:
            continue
        effects = Effects(run=0.15 if runs > 1 else 0.0, shared=shared or 0.0)
        cell, difference, spread = promise(rng, Cell(problems, samples, runs, shape, effects), shared)
        before, after = cell.draw(rng, trials)
        test = of_models if runs == 1 else of_recipes
        power = float(test(rng, before, after, samples)["mathrl" if shared is None else "mathrl by seed"].mean())
        pairs = "" if shared is None else ", paired"
        print(
            f"| {shape} | {problems} x {samples} x {runs}{pairs} | {spread:.3f} | {difference:.3f} | {power:.3f} | "
            f"{error_of(power, trials):.3f} |",
            flush=True,
        )


def promise(rng: np.random.Generator, cell: Cell, shared: float | None) -> tuple[Cell, float, float]:
    """The cell with the gain that its plan promises to show: the plan knows the spread that goes with the gain."""
    population = replace(cell, problems=200_000, runs=1, effects=replace(cell.effects, run=0.0))
    skill = replace(cell, problems=300, effects=replace(cell.effects, shared=0.0))
    differ = 0.0
    for _ in range(4):
        before, after = (side[0, 0] for side in replace(population, gain=cell.gain).rates(rng, 1))
        within = float((before * (1 - before) + after * (1 - after)).mean())
        spread = Spread(float((after - before).var()), within, "")
        if cell.runs > 1:  # a gain leaves the second recipe's runs less room to differ
            sides = replace(skill, gain=cell.gain).rates(rng, 1000)
            differ = float(np.mean([side.mean(axis=2).var(axis=1, ddof=1).mean() for side in sides])) ** 0.5
        trained = Runs(cell.runs, differ, shared)
        difference = smallest_difference(cell.problems, cell.samples, spread, trained, 0.95)
        cell = replace(cell, gain=min(0.95, difference / (1 - float(before.mean()))))
    return cell, difference, differ


def tightness(rng: np.random.Generator, trials: int) -> None:
    """The median width of intervals by seed against those of runs that are not paired, and against those before."""
    print("\n## Runs with one seed and one start: median width of the interval\n")
    print("| runs | correlation | not paired | paired by seed | ratio |\n|---|---|---|---|---|")
    for runs, shared in product((2, 3, 5, 10), (0.0, 0.5, 0.8, 0.95)):
        cell = Cell(500, 8, runs, "uniform", Effects(run=0.3, run_problem=0.2, shared=shared))
        before, after = cell.draw(rng, max(20, trials // 40))
        widths: dict[bool, list[float]] = {False: [], True: []}
        for sides in zip(before, after, strict=True):
            named = [[{f"{id:05}": float(value) for id, value in enumerate(run)} for run in side] for side in sides]
            for by_seed, each in widths.items():
                test = compare_runs("a", "b", *named, responses=(8.0, 8.0), by_seed=by_seed)
                each.append(test.high - test.low)
        apart, paired = (float(np.median(each)) for each in widths.values())
        print(f"| {runs} | {shared} | {apart:.3f} | {paired:.3f} | {paired / apart:.2f} |", flush=True)


TABLES = {"exact": exact, "models": models, "recipes": recipes, "plans": plans, "tightness": tightness}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=4000, help="Comparisons per row; a quarter with 500 problems up.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=list(TABLES), help="One table; default: all.")
    options = parser.parse_args()
    for number, (name, table) in enumerate(TABLES.items()):
        if options.only in (None, name):
            table(np.random.default_rng([options.seed, number]), options.trials)
