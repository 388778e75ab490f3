"""Problems by pools of their running pass rate: hard, medium and easy by weight, with retirement.

Shapes: N usable problems, by their place among them.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mathrl.core.seeding import derive_seed
from mathrl.core.types import Problem
from mathrl.params.curriculum import PoolCurriculum
from mathrl.trainers.pass_rate_model import Array, Calibration, features, measured_rates, predict
from mathrl.trainers.sample_counts import sample_counts

HARD, MEDIUM, EASY = range(3)
POOLS = ("hard", "medium", "easy")


class PoolOrder:
    """An `Order`: each prompt of a round draws a pool by weight, then a random problem of it, none twice in a round.

    A problem's running pass rate is (prior x predicted + correct) / (prior + responses); correct and responses are sums
    over its groups, of which each older one counts `memory` times as much. A problem whose last groups were all right,
    or all wrong, is retired; brought back, it comes first in its pool. Where a round needs more problems than are not
    retired, the retired ones follow, the next to return first; after that, problems are taken again.
    """

    def __init__(self, params: PoolCurriculum, problems: Sequence[Problem], usable: Sequence[int], seed: int) -> None:
        self.params, self.seed, self.usable = params, seed, list(usable)
        self.place = {index: place for place, index in enumerate(self.usable)}
        chosen, size = [problems[index] for index in self.usable], len(self.usable)
        self.round = 0
        self.correct_N, self.samples_N = np.zeros(size), np.zeros(size)
        self.last_N, self.due_N, self.pause_N = (np.zeros(size, dtype=np.int64) for _ in range(3))
        # Groups in a row that were all right (above 0) or all wrong (below 0).
        self.streak_N = np.zeros(size, dtype=np.int64)
        self.start_N = measured_rates(chosen)
        self.features_NF = features(chosen) if params.pools.predict else np.zeros((size, 0))
        self.first: dict[int, float] = {}  # predictions of problems that are being sampled for the first time
        self.calibration = Calibration()
        self.figures: dict[str, float] = {}
        self._predicted_N = self.start_N

    def take(self, count: int) -> list[int]:
        self.round += 1
        age_N = (self.round - self.last_N).astype(np.float64)
        self._predicted_N = predict(self.features_NF, self.start_N, self.correct_N, self.samples_N, age_N)
        pool_N = self._pools()
        random = np.random.Generator(np.random.PCG64(derive_seed(self.seed, "pools", self.round)))
        shuffled = random.permutation(len(self.usable))
        back_first = shuffled[np.argsort(self.pause_N[shuffled] == 0, kind="stable")]
        active = back_first[self.due_N[back_first] <= self.round]
        queues = [active[pool_N[active] == pool].tolist()[::-1] for pool in (HARD, MEDIUM, EASY)]
        self._measure(queues, len(active))
        weights = self.params.pools.weights
        shares = np.array([weights.hard, weights.medium, weights.easy])
        places: list[int] = []
        while len(places) < count and any(queues):
            there = np.array([bool(queue) for queue in queues])
            chance = shares * there if (shares * there).any() else there
            places.append(queues[int(random.choice(len(POOLS), p=chance / chance.sum()))].pop())
        if len(places) < count:
            retired = shuffled[self.due_N[shuffled] > self.round]
            others = [*retired[np.argsort(self.due_N[retired], kind="stable")].tolist(), *active.tolist()]
            places += [others[number % len(others)] for number in range(count - len(places))]
        self.figures["curriculum/brought_back"] = float((self.pause_N[places] > 0).sum())
        for place in places:
            if not self.samples_N[place]:
                self.first[place] = float(self._predicted_N[place])
        return [self.usable[place] for place in places]

    def rates(self) -> Array:
        """The running pass rates, [N]."""
        prior = self.params.pools.prior
        return (prior * self._predicted_N + self.correct_N) / (prior + self.samples_N)  # type: ignore[no-any-return]

    def _pools(self) -> Any:
        rates_N, pools = self.rates(), self.params.pools
        return np.where(rates_N < pools.hard_below, HARD, np.where(rates_N > pools.easy_above, EASY, MEDIUM))

    def _measure(self, queues: Sequence[Sequence[int]], active: int) -> None:
        self.figures = {f"curriculum/{name}": float(len(queue)) for name, queue in zip(POOLS, queues, strict=True)}
        self.figures["curriculum/retired"] = float(len(self.usable) - active)
        self.figures["curriculum/unseen"] = float((self.samples_N == 0).sum())

    def sample_counts(self, problems: Sequence[int], group_size: int) -> list[int]:
        """As many for each, or by `adaptive` within the same budget."""
        if self.params.adaptive is None:
            return [group_size] * len(problems)
        prior, posteriors = self.params.pools.prior, []
        for place in (self.place[problem] for problem in problems):
            predicted = min(0.99, max(0.01, float(self._predicted_N[place])))
            correct, samples = float(self.correct_N[place]), float(self.samples_N[place])
            posteriors.append((prior * predicted + correct, prior * (1 - predicted) + samples - correct))
        counts = sample_counts(posteriors, group_size * len(problems), self.params.adaptive)
        self.figures["curriculum/samples_per_prompt"] = sum(counts) / len(counts)
        return counts

    def observe(self, problem: int, correct: int, samples: int) -> None:
        place, memory = self.place[problem], self.params.memory
        predicted = self.first.pop(place, None)
        if predicted is not None:
            self.calibration.add(predicted, correct, samples)
        self.correct_N[place] = memory * self.correct_N[place] + correct
        self.samples_N[place] = memory * self.samples_N[place] + samples
        self.last_N[place] = self.round
        self._retire(place, correct, samples)

    def _retire(self, place: int, correct: int, samples: int) -> None:
        retire = self.params.pools.retire
        if retire is None:
            return
        if 0 < correct < samples:
            self.streak_N[place] = self.pause_N[place] = self.due_N[place] = 0
            return
        right = correct == samples
        streak, sign = int(self.streak_N[place]), 1 if right else -1
        streak = streak + sign if streak * sign > 0 else sign
        if streak == sign:  # all right after all wrong, or the reverse: no longer the problem that was retired
            self.pause_N[place] = self.due_N[place] = 0
        self.streak_N[place] = streak
        after = retire.solved_after if right else retire.failed_after
        if after is not None and abs(streak) >= after:
            pause = int(self.pause_N[place])
            self.pause_N[place] = math.ceil(pause * retire.growth) if pause else retire.steps
            self.due_N[place] = self.round + self.pause_N[place]

    def metrics(self) -> dict[str, float]:
        figures = dict(self.figures)
        if self.params.pools.predict:
            figures["curriculum/calibration_error"] = self.calibration.error()
            figures["curriculum/prediction_skill"] = self.calibration.skill()
        return figures

    def state(self) -> dict[str, Any]:
        """Rows of the problems that were sampled, the round, and the predictions under way."""
        columns = (self.correct_N, self.samples_N, self.last_N, self.due_N, self.pause_N, self.streak_N)
        rows = [
            [place, *(column[place].item() for column in columns)] for place in np.flatnonzero(self.samples_N).tolist()
        ]
        first = [[place, predicted] for place, predicted in self.first.items()]
        return {
            "round": self.round,
            "rows": rows,
            "first": first,
            "calibration": self.calibration.state(),
            "figures": dict(self.figures),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.round, self.figures = int(state["round"]), dict(state["figures"])
        columns = (self.correct_N, self.samples_N, self.last_N, self.due_N, self.pause_N, self.streak_N)
        for place, *values in state["rows"]:
            for column, value in zip(columns, values, strict=True):
                column[place] = value
        self.first = {int(place): float(predicted) for place, predicted in state["first"]}
        self.calibration.load(state["calibration"])
