"""The RL training set: parts by source and pass rate, in exact and seeded proportions."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import floor
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.hashing import derive_seed
from mathrl.core.types import Problem
from mathrl.params.data import Component, Mix


def mix(
    problems: Sequence[Problem], rates: Mapping[str, float], params: Mix, seed: int
) -> tuple[list[Problem], dict[str, Any]]:
    """The mixture, with `pass_rate` set where it was measured, and its manifest.

    A problem belongs to the first component that fits it; at most `cap` problems of each source stay in it.
    A component with a count gives exactly that number of rows; one with only epochs gives every problem that
    number of times; those with a weight share the rest (`size`, or as much as the scarcest of them allows) in
    exact proportion, by largest remainders. A component that gives more rows than it has problems repeats them,
    full passes first, at most `epochs` times.

    Raises:
        UserError: a component has too few problems, or none.
    """
    pools = _pools(problems, rates, params.components, seed)
    sizes = _sizes([len(pool) for pool in pools], params)
    total, weights = sum(sizes), sum(map(_weight, params.components))
    chosen: list[Problem] = []
    parts = []
    for number, (component, pool, size) in enumerate(zip(params.components, pools, sizes, strict=True)):
        rng = random.Random(derive_seed(seed, "mix", number))
        passes, rest = divmod(size, len(pool))
        taken = passes * pool + [pool[i] for i in sorted(rng.sample(range(len(pool)), rest))]
        chosen += taken
        parts.append(
            {
                "component": component.model_dump(mode="json"),
                "available": len(pool),
                "taken": size,
                "share": str(Fraction(size, max(total, 1))),
                "different": min(size, len(pool)),
                "weight_share": str(_weight(component) / weights) if component.weight else None,
                "passes": round(size / len(pool), 4),
                "by_level": _levels(taken),
                "by_source": dict(sorted(Counter(problem.source for problem in taken).items())),
            }
        )
    if params.order == "easy_to_hard":
        unmeasured = [problem.id for problem in chosen if problem.pass_rate is None and problem.level is None]
        if unmeasured:
            raise UserError(
                f"mix.order easy_to_hard: {unmeasured[0]} has neither a pass rate nor a level; measure it "
                "(difficulty.max_problems) or set mix.order to shuffled"
            )
        # One curriculum per pass: repetitions side by side would put a problem into one step several times.
        repetition = _repetitions(chosen)
        order = sorted(range(len(chosen)), key=lambda i: (repetition[i], *_easiness(chosen[i])))
        chosen = [chosen[i] for i in order]
    else:
        random.Random(derive_seed(seed, "mix", "order")).shuffle(chosen)
    measured = sum(problem.id in rates for problem in problems)
    different = len({problem.id for problem in chosen})
    return chosen, {
        "seed": seed,
        "rows": len(chosen),
        "problems": different,
        "order": params.order,
        "size": params.size,
        "components": parts,
        "rl_split": len(problems),
        "measured": measured,
        "left_out": len(problems) - different,
    }


def _repetitions(chosen: Sequence[Problem]) -> list[int]:
    """How many earlier rows have the same problem, per row."""
    seen: Counter[str] = Counter()
    repetitions = []
    for problem in chosen:
        repetitions.append(seen[problem.id])
        seen[problem.id] += 1
    return repetitions


def _easiness(problem: Problem) -> tuple[float, int, str]:
    rate = problem.pass_rate if problem.pass_rate is not None else 0.5
    return -rate, problem.level or 0, problem.id


def _pools(
    problems: Sequence[Problem], rates: Mapping[str, float], components: Sequence[Component], seed: int
) -> list[list[Problem]]:
    pools: list[list[Problem]] = [[] for _ in components]
    for problem in problems:
        rate = rates.get(problem.id, problem.pass_rate)  # that of the source, where it was not measured here
        for pool, component in zip(pools, components, strict=True):
            if _fits(problem, rate, component):
                pool.append(problem.with_(pass_rate=rate) if rate is not None else problem)
                break
    for component, pool in zip(components, pools, strict=True):
        if not pool:
            band = f" with a pass rate in {list(component.band)}" if component.band else ""
            sources = ", ".join(sorted({problem.source for problem in problems}))
            raise UserError(
                f"mix: no problem of source {component.source}{band} in the rl split (its sources: {sources}); "
                "widen the band or correct the source in params/mix.yaml"
            )
    return [_cap_sources(pool, c.cap, seed, i) for i, (c, pool) in enumerate(zip(components, pools, strict=True))]


def _cap_sources(pool: list[Problem], cap: int | None, seed: int, number: int) -> list[Problem]:
    """At most `cap` problems per source, in their order."""
    if cap is None:
        return pool
    by_source: dict[str, list[int]] = {}
    for index, problem in enumerate(pool):
        by_source.setdefault(problem.source, []).append(index)
    kept = [
        index
        for source, at in by_source.items()
        for index in random.Random(derive_seed(seed, "mix cap", number, source)).sample(at, min(cap, len(at)))
    ]
    return [pool[index] for index in sorted(kept)]


def _fits(problem: Problem, rate: float | None, component: Component) -> bool:
    band = component.band
    in_band = band is None or (rate is not None and band[0] <= rate <= band[1])
    return component.source in ("*", problem.source) and in_band


def _sizes(pools: Sequence[int], params: Mix) -> list[int]:
    """The number of rows of each component, from the numbers of its problems."""
    available = [problems * (c.epochs or 1) for c, problems in zip(params.components, pools, strict=True)]
    counts: list[int | None] = []
    for component, rows in zip(params.components, available, strict=True):
        counts.append(rows if component.weight is None and component.count is None else component.count)
        if component.count is not None and component.count > rows:
            raise UserError(
                f"mix: source {component.source} has {_rows(component, rows)}, fewer than {component.count}; "
                "lower its count or raise its epochs"
            )
    weights = [_weight(component) for component in params.components]
    total = sum(weights)
    fixed = sum(count or 0 for count in counts)
    if not total:
        return [count or 0 for count in counts]
    room = min(rows * total / weight for rows, weight in zip(available, weights, strict=True) if weight)
    rest = params.size - fixed if params.size is not None else floor(room)
    if rest < 0:
        raise UserError(f"mix.size is {params.size}, but the components with a count take {fixed} already")
    shared = largest_remainders([weight * rest / total for weight in weights])
    for component, available_rows, wanted_rows in zip(params.components, available, shared, strict=True):
        if component.weight is not None and wanted_rows > available_rows:
            raise UserError(
                f"mix: source {component.source} has {_rows(component, available_rows)}, its share of size "
                f"{params.size} is {wanted_rows}; lower mix.size to {fixed + floor(room)}, widen its band or raise "
                "its epochs"
            )
    return [count if count is not None else part for count, part in zip(counts, shared, strict=True)]


def _weight(component: Component) -> Fraction:
    return Fraction(str(component.weight)) if component.weight is not None else Fraction(0)


def _rows(component: Component, have: int) -> str:
    if component.epochs is None:
        return f"{have} fitting problems"
    return f"{have} rows of fitting problems in {component.epochs} epochs"


def largest_remainders(exact: Sequence[Fraction]) -> list[int]:
    """Integers with the sum of the exact numbers (rounded down), each less than 1 away from its number.

    >>> largest_remainders([Fraction(10, 3), Fraction(10, 3), Fraction(10, 3)])
    [4, 3, 3]
    """
    floors = [floor(x) for x in exact]
    missing = floor(sum(exact, Fraction(0))) - sum(floors)
    for i in sorted(range(len(exact)), key=lambda i: (floors[i] - exact[i], i))[:missing]:
        floors[i] += 1
    return floors


def _levels(problems: Sequence[Problem]) -> dict[str, int]:
    levels = Counter(problem.level for problem in problems if problem.level is not None)
    return {str(level): count for level, count in sorted(levels.items())}
