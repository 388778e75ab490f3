"""Curriculum: which problems a step takes (shuffled, as given, easy to hard, by pass rate, or by a class of yours)."""

import json
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from mathrl.core.errors import UserError
from mathrl.core.hashing import derive_seed
from mathrl.core.paths import import_own
from mathrl.core.types import Problem
from mathrl.params.curriculum import (
    AsGiven,
    Curriculum,
    EasyToHard,
    FixedOrder,
    PassRate,
    PoolCurriculum,
    UserCurriculum,
)
from mathrl.params.section import DottedOptions
from mathrl.trainers.pools import PoolOrder
from mathrl.trainers.supervised import Stream

UNKNOWN_PASS_RATE = 0.5


class Order(Protocol):
    """Hands out the problems of each sampling round, as numbers in the training set, and learns from their groups.

    It sees the same at every rank and must then hand out the same; `state` is JSON and goes into the checkpoint.
    """

    def take(self, count: int) -> list[int]:
        """The problems of the next round."""
        ...

    def sample_counts(self, problems: Sequence[int], group_size: int) -> list[int]:
        """The number of responses to each of these problems, which were taken last."""
        ...

    def observe(self, problem: int, correct: int, samples: int) -> None:
        """A group of the problem was sampled: `correct` of its `samples` responses are right."""
        ...

    def metrics(self) -> dict[str, float]:
        """Figures of the last round, under curriculum/."""
        ...

    def state(self) -> dict[str, Any]: ...

    def load(self, state: dict[str, Any]) -> None: ...


def make_order(
    params: Curriculum, problems: Sequence[Problem], usable: Sequence[int], planned: int, seed: int
) -> Order:
    """The order that `params` ask for, over the problems with the numbers `usable`.

    `planned` is the number of problems that the run is expected to take.

    Raises:
        UserError: the user's class cannot be made, or easy_to_hard has nothing to sort by.
    """
    if isinstance(params, PoolCurriculum):
        return PoolOrder(params, problems, usable, seed)
    if isinstance(params, UserCurriculum):
        return UserOrder(params.sampler, problems, usable, seed)
    return ProblemOrder(params, problems, usable, planned, seed)


class ProblemOrder:
    """Hands out problem numbers; its state is the number taken and the estimated pass rates.

    - shuffled, as_given: each epoch in a new seeded order, or in that of the mixture.
    - easy_to_hard: what `shuffled` takes over the run, sorted by difficulty (ties in the shuffled order), so
      that the mixture's proportions stay; after that as `shuffled`.
    - pass_rate: drawn without repetition within a step, with weight p (1 - p) + floor; p starts at the
      measured pass rate (1/2 where there is none) and follows the rollouts.
    """

    def __init__(
        self, params: FixedOrder | PassRate, problems: Sequence[Problem], usable: Sequence[int], planned: int, seed: int
    ) -> None:
        """`planned` is the number of problems that the run is expected to take.

        Raises:
            UserError: easy_to_hard, and some problem has neither a pass rate nor a level.
        """
        self.params, self.seed, self.usable = params, seed, list(usable)
        self.cursor = 0
        self.stream = Stream(len(self.usable), derive_seed(seed, "rl order"))
        self.pass_rates = [_pass_rate(problems[index]) for index in self.usable]
        self.place = {index: place for place, index in enumerate(self.usable)}
        self.sorted: list[int] = []
        if isinstance(params, EasyToHard):
            difficulty = _difficulties([problems[index] for index in self.usable])
            taken = [self.stream.take() for _ in range(planned)]
            self.sorted = sorted(taken, key=lambda place: difficulty[place])

    def take(self, count: int) -> list[int]:
        """The next problems, as numbers in the training set."""
        if isinstance(self.params, PassRate):
            places = self._weighted_sample(count, self.params.floor)
        else:
            places = [self._at(self.cursor + offset) for offset in range(count)]
        self.cursor += count
        return [self.usable[place] for place in places]

    def _at(self, cursor: int) -> int:
        if isinstance(self.params, AsGiven):
            return cursor % len(self.usable)
        if cursor < len(self.sorted):
            return self.sorted[cursor]
        self.stream.cursor = cursor
        return self.stream.take()

    def _weighted_sample(self, count: int, floor: float) -> list[int]:
        """Without repetition as long as there are enough problems: the largest u^(1/w), u uniform, w the weight."""
        p = torch.tensor(self.pass_rates, dtype=torch.float64)
        weights = p * (1 - p) + floor
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "curriculum", self.cursor))
        places: list[int] = []
        while len(places) < count:
            keys = torch.rand(len(p), dtype=torch.float64, generator=generator).log() / weights
            places += keys.topk(min(count - len(places), len(p))).indices.tolist()
        return places

    def sample_counts(self, problems: Sequence[int], group_size: int) -> list[int]:
        return [group_size] * len(problems)

    def observe(self, problem: int, correct: int, samples: int) -> None:
        """Move the problem's estimate towards the pass rate of its rollouts, where the order goes by it."""
        if isinstance(self.params, PassRate):
            place, memory = self.place[problem], self.params.memory
            self.pass_rates[place] = memory * self.pass_rates[place] + (1 - memory) * (correct / samples)

    def metrics(self) -> dict[str, float]:
        return {}

    def state(self) -> dict[str, Any]:
        return {"cursor": self.cursor, "pass_rates": list(self.pass_rates)}

    def load(self, state: dict[str, Any]) -> None:
        self.cursor, self.pass_rates = int(state["cursor"]), list(state["pass_rates"])


def _pass_rate(problem: Problem) -> float:
    return UNKNOWN_PASS_RATE if problem.pass_rate is None else problem.pass_rate


def _difficulties(problems: Sequence[Problem]) -> list[float]:
    """Numbers that are larger for harder problems: negative pass rates where every problem has one, else the levels."""
    unmeasured = next((problem.id for problem in problems if problem.pass_rate is None), None)
    if unmeasured is None:
        return [-_pass_rate(problem) for problem in problems]
    without_level = next((problem.id for problem in problems if problem.level is None), None)
    if without_level is not None:
        raise UserError(
            f"rl.curriculum is easy_to_hard, but problem {unmeasured!r} has no measured pass rate and "
            f"problem {without_level!r} no level: run the difficulty stage on all problems, or set "
            "rl.curriculum to shuffled"
        )
    return [float(problem.level or 0) for problem in problems]


METHODS = ("take", "observe", "state", "load")
WHERE = "rl.curriculum.sampler"


class UserOrder:
    """An `Order` that asks an object of the user's class, and checks what it answers.

    The class is made with (problems, seed, **options) and has the methods take(count), observe(problem, correct,
    samples), state() and load(state); sample_counts(problems, group_size) and metrics() if it likes. Problems are
    numbers in the sequence that it was made with.
    """

    def __init__(self, params: DottedOptions, problems: Sequence[Problem], usable: Sequence[int], seed: int) -> None:
        """Raises UserError: no such class, a method is missing, or it cannot be made with these options."""
        self.path, self.usable = params.path, list(usable)
        self.place = {index: place for place, index in enumerate(self.usable)}
        made = _class(params.path)
        try:
            self.sampler = made([problems[index] for index in self.usable], seed, **params.keywords())
        except TypeError as error:
            raise UserError(
                f"{WHERE}: {params.path} cannot be made: {error}; it must accept (problems, seed, **options)"
            ) from error

    def take(self, count: int) -> list[int]:
        places = list(self.sampler.take(count))
        if len(places) != count or not all(_is_number(place) and 0 <= place < len(self.usable) for place in places):
            raise UserError(
                f"{WHERE}: {self.path}.take({count}) must return {count} numbers from 0 to {len(self.usable) - 1}, "
                f"found {str(places)[:80]}"
            )
        return [self.usable[place] for place in places]

    def sample_counts(self, problems: Sequence[int], group_size: int) -> list[int]:
        if not hasattr(self.sampler, "sample_counts"):
            return [group_size] * len(problems)
        counts = list(self.sampler.sample_counts([self.place[problem] for problem in problems], group_size))
        if len(counts) != len(problems) or not all(_is_number(count) and count >= 2 for count in counts):
            raise UserError(
                f"{WHERE}: {self.path}.sample_counts must return a number of responses, at least 2, for each of the "
                f"{len(problems)} problems, found {str(counts)[:80]}"
            )
        return counts

    def observe(self, problem: int, correct: int, samples: int) -> None:
        self.sampler.observe(self.place[problem], correct, samples)

    def metrics(self) -> dict[str, float]:
        figures = self.sampler.metrics() if hasattr(self.sampler, "metrics") else {}
        return {f"curriculum/{name}": float(value) for name, value in figures.items()}

    def state(self) -> dict[str, Any]:
        """The sampler's state as JSON, a copy that it no longer changes."""
        state = self.sampler.state()
        try:
            copy = json.loads(json.dumps(state))
        except (TypeError, ValueError) as error:
            raise UserError(f"{WHERE}: {self.path}.state() must return what JSON can hold: {error}") from error
        if copy != state:
            raise UserError(
                f"{WHERE}: {self.path}.state() is not the same after JSON: use lists in place of tuples, and texts as "
                "keys of dicts"
            )
        return {"sampler": copy}

    def load(self, state: dict[str, Any]) -> None:
        self.sampler.load(state["sampler"])


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _class(path: str) -> Any:
    made = import_own(path, WHERE)
    missing = [method for method in METHODS if not callable(getattr(made, method, None))]
    if missing or not isinstance(made, type):
        lacks = f"lacks {', '.join(missing)}" if missing else "is no class"
        raise UserError(f"{WHERE}: {path} {lacks}; it needs the methods {', '.join(METHODS)}")
    return made
