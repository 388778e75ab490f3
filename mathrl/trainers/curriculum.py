"""Which problems a step takes: shuffled, as given, easy to hard, or by how unsure the policy is of them."""

from collections.abc import Sequence
from typing import Any

import torch

from mathrl.core.errors import UserError
from mathrl.core.seeding import derive_seed
from mathrl.core.types import Problem
from mathrl.params.train import Curriculum
from mathrl.trainers.demonstrations import Stream

UNKNOWN_PASS_RATE = 0.5


class ProblemOrder:
    """Hands out problem numbers; its whole state is the number taken and the estimated pass rates.

    - shuffled, as_given: each pass in a new seeded order, or in that of the mixture.
    - easy_to_hard: what `shuffled` takes over the run, sorted by difficulty (equal ones as drawn), so that
      the mixture's proportions stay; then on as `shuffled`.
    - pass_rate: drawn without repetition within a step, with weight p (1 - p) + floor; p begins at the
      measured pass rate (1/2 where there is none) and follows the roll-outs.
    """

    def __init__(
        self, params: Curriculum, problems: Sequence[Problem], usable: Sequence[int], planned: int, seed: int
    ) -> None:
        """`planned` is how many problems the run is expected to take.

        Raises:
            UserError: easy_to_hard, and neither pass rates nor levels are there for all problems.
        """
        self.params, self.seed, self.usable = params, seed, list(usable)
        self.cursor = 0
        self.stream = Stream(len(self.usable), derive_seed(seed, "rl order"))
        self.pass_rates = [_known(problems[index].pass_rate) for index in self.usable]
        self.place = {index: place for place, index in enumerate(self.usable)}
        self.sorted: list[int] = []
        if params.order == "easy_to_hard":
            difficulty = _difficulties([problems[index] for index in self.usable])
            drawn = [self.stream.take() for _ in range(planned)]
            self.sorted = sorted(drawn, key=lambda place: difficulty[place])

    def take(self, count: int) -> list[int]:
        """The next problems, as numbers in the training set."""
        if self.params.order == "pass_rate":
            places = self._drawn(count)
        else:
            places = [self._at(self.cursor + offset) for offset in range(count)]
        self.cursor += count
        return [self.usable[place] for place in places]

    def _at(self, cursor: int) -> int:
        if self.params.order == "as_given":
            return cursor % len(self.usable)
        if cursor < len(self.sorted):
            return self.sorted[cursor]
        self.stream.cursor = cursor
        return self.stream.take()

    def _drawn(self, count: int) -> list[int]:
        """Weighted, without repetition as long as there are enough: the largest u^(1/w), u uniform."""
        p = torch.tensor(self.pass_rates, dtype=torch.float64)
        weights = p * (1 - p) + self.params.floor
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "curriculum", self.cursor))
        chosen: list[int] = []
        while len(chosen) < count:
            keys = torch.rand(len(p), dtype=torch.float64, generator=generator).log() / weights
            chosen += keys.topk(min(count - len(chosen), len(p))).indices.tolist()
        return chosen

    def observe(self, problem: int, pass_rate: float) -> None:
        """Move the problem's estimate towards the pass rate of its roll-outs."""
        place, memory = self.place[problem], self.params.memory
        self.pass_rates[place] = memory * self.pass_rates[place] + (1 - memory) * pass_rate

    def state(self) -> dict[str, Any]:
        return {"cursor": self.cursor, "pass_rates": list(self.pass_rates)}

    def load(self, state: dict[str, Any]) -> None:
        self.cursor, self.pass_rates = int(state["cursor"]), list(state["pass_rates"])


def _known(pass_rate: float | None) -> float:
    return UNKNOWN_PASS_RATE if pass_rate is None else pass_rate


def _difficulties(problems: Sequence[Problem]) -> list[float]:
    """The share of failures where all are measured, else the level."""
    unmeasured = next((problem.id for problem in problems if problem.pass_rate is None), None)
    if unmeasured is None:
        return [1 - _known(problem.pass_rate) for problem in problems]
    without_level = next((problem.id for problem in problems if problem.level is None), None)
    if without_level is not None:
        raise UserError(
            f"rl.curriculum.order is easy_to_hard, but problem {unmeasured!r} has no measured pass rate and "
            f"problem {without_level!r} no level: run the difficulty stage on all problems, or set "
            "rl.curriculum.order to shuffled"
        )
    return [float(problem.level or 0) for problem in problems]
