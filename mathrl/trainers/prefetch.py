"""Prefetch: the rollouts of the next step are sampled while this step's are trained on.

They are then sampled with the weights before the update, which their log-probs belong to: the ratio of the
surrogate (or `rl.importance`, which recomputes the old ones) corrects for the difference.
"""

import ctypes
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from mathrl.learners.distributed import Ranks
from mathrl.models.device import use_device
from mathrl.models.torch_state import state_kept
from mathrl.params.train import Rl
from mathrl.trainers.collect import RolloutShare


class Prefetch:
    """Samples the rollouts of the next step in a thread of its own, where `rl.prefetch` asks for it.

    Nothing else may use the sampler, the problems' order or the reward between `start` and `wait`.
    """

    def __init__(self, params: Rl, ranks: Ranks, saved: Mapping[str, Any] | None) -> None:
        """`saved` are the values of the checkpoint that the run resumes from."""
        self.on, self.ranks = params.prefetch, ranks
        self._pool = ThreadPoolExecutor(1, "rollouts", self._enter_thread) if self.on else None
        self._thread = 0
        self._running: Future[RolloutShare] | None = None
        self._ready: RolloutShare | None = None
        if saved is not None and saved["prefetched"] is not None:
            shares = [RolloutShare.from_row(row) for row in saved["prefetched"]]  # one per rank that wrote it
            self._ready = RolloutShare.joined(shares).divided(ranks.rank, ranks.world)

    def __enter__(self) -> "Prefetch":
        return self

    def _enter_thread(self) -> None:
        self._thread = threading.get_ident()
        use_device(self.ranks.device)

    def __exit__(self, *error: object) -> None:
        """Start nothing more; rollouts still being sampled, because of an error, end at their next line of Python.

        The interpreter waits for every thread before it exits, also for one that samples for minutes.
        """
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            if self._running is not None and not self._running.done():
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(SystemExit))

    def start(self, sample: Callable[[], RolloutShare]) -> None:
        """Begin to sample the rollouts of the next step; no effect where prefetching is off."""
        if self._pool is not None:
            self._running = self._pool.submit(state_kept()(sample))

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
        """The rollouts of every rank that are ready, for the checkpoint that rank 0 writes; None at the others."""
        shares = self.ranks.gather(self._ready) if self.on else []
        return [share.to_row() for share in shares] if self._ready is not None and self.ranks.rank == 0 else None
