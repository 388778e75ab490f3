"""Problems by pools of their running or predicted pass rate: hard, medium and easy by weight, with retirement.

Shapes: N usable problems, by their place among them.
"""

import heapq
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mathrl.core.hashing import derive_seed
from mathrl.core.types import Problem
from mathrl.params.curriculum import AdaptiveSamples, PoolCurriculum

Array = npt.NDArray[np.float64]
BINS = 10
MOST_SOURCES = 20  # further sources share a column
MOST_ROWS = 8_192  # problems that a fit looks at, the latest
FEWEST_ROWS = 8
HALF_LIFE = 10  # sampling rounds after which a group counts half, since the policy has changed
UNKNOWN = 0.5
NO_SPREAD = 1e-9  # equal values have a spread of a rounding error


def features(problems: Sequence[Problem]) -> Array:
    """What a pass rate is predicted from, [N, F]: source, level within the source, measured pass rate, length.

    Columns have mean 0 and deviation 1; columns without variation are left out.
    """
    sources_N = np.array([problem.source for problem in problems])
    levels_N = np.array([problem.level or 0 for problem in problems], dtype=np.float64)
    columns = [
        np.array([math.log1p(len(problem.question)) for problem in problems]),
        np.array([_logit(problem.pass_rate) for problem in problems]),
        np.array([problem.pass_rate is None for problem in problems], dtype=np.float64),
    ]
    frequent = [source for source, _ in Counter(sources_N.tolist()).most_common(MOST_SOURCES)]
    for members_N in [*(sources_N == source for source in frequent), ~np.isin(sources_N, frequent)]:
        middle = levels_N[members_N].mean() if members_N.any() else 0.0
        columns += [members_N.astype(np.float64), np.where(members_N, levels_N - middle, 0.0)]
    matrix_FN = np.array(columns)
    spread_F = matrix_FN.std(axis=1)
    varied_F = spread_F > NO_SPREAD
    kept_FN = matrix_FN[varied_F]
    columns_FN: Array = (kept_FN - kept_FN.mean(axis=1, keepdims=True)) / spread_F[varied_F][:, None]
    return columns_FN.T


def _logit(rate: float | None) -> float:
    rate = UNKNOWN if rate is None else min(0.98, max(0.02, rate))
    return math.log(rate / (1 - rate))


def measured_rates(problems: Sequence[Problem]) -> Array:
    """The measured pass rates, [N], 1/2 where there is none."""
    return np.array([UNKNOWN if problem.pass_rate is None else problem.pass_rate for problem in problems])


def predict(features_NF: Array, start_N: Array, correct_N: Array, samples_N: Array, age_N: Array) -> Array:
    """Pass rates of all problems, [N], by logistic regression on the responses to those with samples.

    A group of `age` sampling rounds counts half for every `HALF_LIFE`. Where fewer than `FEWEST_ROWS` problems were
    sampled, or all responses have one verdict, the predictions are `start_N`. They are rounded to 1/1000, so that the
    last bit of a processor's arithmetic decides nothing.
    """
    seen = np.flatnonzero(samples_N)
    seen = seen[np.argsort(age_N[seen], kind="stable")][:MOST_ROWS]
    correct, samples = correct_N[seen], samples_N[seen]
    if len(seen) < FEWEST_ROWS or not 0 < correct.sum() < samples.sum() or not features_NF.shape[1]:
        return start_N
    from sklearn.linear_model import LogisticRegression  # a second to import, and used by one order of problems

    recent = 0.5 ** (age_N[seen] / HALF_LIFE)
    rows = np.concatenate([features_NF[seen], features_NF[seen]])
    verdicts = np.repeat([1, 0], len(seen))
    weights = np.concatenate([correct * recent, (samples - correct) * recent])
    model = LogisticRegression(solver="newton-cholesky", tol=1e-6, max_iter=100)
    model.fit(rows, verdicts, sample_weight=weights)
    return np.round(model.predict_proba(features_NF)[:, 1], 3)  # type: ignore[no-any-return]


class Calibration:
    """Predictions made before a problem was first sampled, against what its first group gave.

    >>> calibration = Calibration()
    >>> calibration.add(0.25, correct=1, samples=4)
    >>> calibration.add(0.75, correct=2, samples=4)
    >>> calibration.error()
    0.125
    """

    def __init__(self) -> None:
        self.samples_B, self.correct_B, self.predicted_B = (np.zeros(BINS) for _ in range(3))
        self.squares, self.squares_of_mean = 0.0, 0.0

    def add(self, predicted: float, correct: int, samples: int) -> None:
        """One problem's prediction and its first group."""
        rate, seen = correct / samples, self.samples_B.sum()
        if seen:  # the first has no mean to compare with
            mean = self.correct_B.sum() / seen
            self.squares += (rate - predicted) ** 2
            self.squares_of_mean += (rate - mean) ** 2
        place = min(BINS - 1, int(predicted * BINS))
        self.samples_B[place] += samples
        self.correct_B[place] += correct
        self.predicted_B[place] += predicted * samples

    def error(self) -> float:
        """Expected calibration error: the mean distance of predicted and found pass rate, bins weighted by samples."""
        samples = self.samples_B.sum()
        return float(np.abs(self.correct_B - self.predicted_B).sum() / samples) if samples else 0.0

    def skill(self) -> float:
        """1 minus the squared error relative to that of predicting the mean found so far; 0: no better than it.

        The noise of the groups is in both errors, so a perfect prediction stays below 1.
        """
        return 1 - self.squares / self.squares_of_mean if self.squares_of_mean else 0.0

    def rows(self) -> list[tuple[float, float, int]]:
        """Predicted pass rate, found pass rate and number of responses, per bin that has any."""
        return [
            (float(predicted / samples), float(correct / samples), int(samples))
            for predicted, correct, samples in zip(self.predicted_B, self.correct_B, self.samples_B, strict=True)
            if samples
        ]

    def state(self) -> dict[str, Any]:
        sums = {name: getattr(self, name).tolist() for name in ("samples_B", "correct_B", "predicted_B")}
        return {**sums, "squares": self.squares, "squares_of_mean": self.squares_of_mean}

    def load(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, np.array(value) if isinstance(value, list) else float(value))


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
        # A streak is of groups in a row that were all right (above 0) or all wrong (below 0).
        self.last_N, self.due_N, self.pause_N, self.streak_N = (np.zeros(size, dtype=np.int64) for _ in range(4))
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


def mixed_chance(alpha: float, beta: float, samples: int) -> float:
    """The chance that `samples` responses are not all right or all wrong, the pass rate being Beta(alpha, beta).

    1 - E[p^n] - E[(1 - p)^n]; for a uniform pass rate 1 - 2 / (n + 1).

    >>> round(mixed_chance(1, 1, 4), 6)
    0.6
    """
    right, wrong = 1.0, 1.0
    for number in range(samples):
        right *= (alpha + number) / (alpha + beta + number)
        wrong *= (beta + number) / (alpha + beta + number)
    return 1 - right - wrong


def sample_counts(posteriors: Sequence[tuple[float, float]], budget: int, params: AdaptiveSamples) -> list[int]:
    """Responses per prompt, [P], of at most `budget` in all, where `least` for each are within it.

    `posteriors` are alpha and beta of each prompt's pass rate. Every prompt gets `least`; then the part of `least`
    with the largest rise of `mixed_chance` is given out, and the next, until the rise per response is below
    `min_gain`. The rises of a prompt only fall, so no other division of the same budget has a larger sum of chances.
    """
    part = params.least
    counts = [part] * len(posteriors)
    left = (budget - part * len(posteriors)) // part
    heap = [(-_gain(posterior, part, part), place) for place, posterior in enumerate(posteriors)]
    heapq.heapify(heap)
    while heap and left > 0:
        negative_gain, place = heapq.heappop(heap)
        if -negative_gain / part < params.min_gain:
            break
        if counts[place] + part > params.most:
            continue
        counts[place] += part
        left -= 1
        heapq.heappush(heap, (-_gain(posteriors[place], counts[place], part), place))
    return counts


def _gain(posterior: tuple[float, float], count: int, part: int) -> float:
    """The rise of the chance of a mixed group, rounded so that no last bit decides."""
    return round(mixed_chance(*posterior, count + part) - mixed_chance(*posterior, count), 9)
