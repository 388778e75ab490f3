"""Prefetch: the rollouts of the next step are sampled while this step's are trained on.

They are then sampled with the weights before the update, which their log-probs belong to: the ratio of the
surrogate (or `rl.importance`, which recomputes the old ones) corrects for the difference.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from mathrl.learners.distributed import Ranks
from mathrl.params.train import Rl
from mathrl.trainers.collect import RolloutShare


class Prefetch:
    """Samples the rollouts of the next step in a thread of its own, where `rl.prefetch` asks for it.

    Nothing else may use the sampler, the problems' order or the reward between `start` and `wait`.
    """

    def __init__(self, params: Rl, ranks: Ranks, saved: Mapping[str, Any] | None) -> None:
        """`saved` are the values of the checkpoint that the run resumes from."""
        self.on, self.ranks = params.prefetch, ranks
        self._pool = ThreadPoolExecutor(1, "rollouts") if self.on else None
        self._running: Future[RolloutShare] | None = None
        self._ready: RolloutShare | None = None
        if saved is not None and saved["prefetched"] is not None:
            self._ready = RolloutShare.from_row(saved["prefetched"][ranks.rank])

    def __enter__(self) -> "Prefetch":
        return self

    def __exit__(self, *error: object) -> None:
        """Start nothing more; an error does not wait for the rollouts that are being sampled."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def start(self, sample: Callable[[], RolloutShare]) -> None:
        """Begin to sample the rollouts of the next step; no effect where prefetching is off."""
        if self._pool is not None:
            self._running = self._pool.submit(sample)

    def wait(self) -> float:
        """Wait for the rollouts; the seconds that took."""
        start = time.perf_counter()
        if self._running is not None:
            self._ready, self._running = self._running.result(), None
        return time.perf_counter() - start

    def take(self) -> RolloutShare | None:
        """The rollouts of this step, if they were sampled before."""
        ready, self._ready = self._ready, None
        return ready

    def state(self) -> list[dict[str, Any]] | None:
        """The rollouts of every rank that are ready, for a checkpoint."""
        if not self.on:
            return None
        shares = self.ranks.gather(self._ready.to_row() if self._ready is not None else None)
        return None if self._ready is None else shares
