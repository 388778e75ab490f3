"""A user's class as the order of problems: `rl.curriculum.sampler.path`. docs/extend/sampler.md shows one."""

import importlib
import json
from collections.abc import Sequence
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.types import Problem
from mathrl.params.curriculum import SamplerOptions

METHODS = ("take", "observe", "state", "load")
WHERE = "rl.curriculum.sampler"


class UserOrder:
    """An `Order` that asks an object of the user's class, and checks what it answers.

    The class is made with (problems, seed, **options) and has the methods take(count), observe(problem, correct,
    samples), state() and load(state); sample_counts(problems, group_size) and metrics() if it likes. Problems are
    numbers in the sequence that it was made with.
    """

    def __init__(self, params: SamplerOptions, problems: Sequence[Problem], usable: Sequence[int], seed: int) -> None:
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
    module, _, name = path.rpartition(".")
    try:
        made = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"{WHERE}: {path!r} cannot be imported ({error}); write package.module.Class") from error
    missing = [method for method in METHODS if not callable(getattr(made, method, None))]
    if missing or not isinstance(made, type):
        lacks = f"lacks {', '.join(missing)}" if missing else "is no class"
        raise UserError(f"{WHERE}: {path} {lacks}; it needs the methods {', '.join(METHODS)}")
    return made
