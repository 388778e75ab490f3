"""A thread that samples while the trainer updates, and pauses between two calls of the sampler."""

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch

from mathrl.models.device import use_device
from mathrl.models.torch_state import state_kept

AWAKE = 1.0  # seconds: an error elsewhere ends a thread only where it runs Python
Sampled = TypeVar("Sampled")


class SamplerThread(Generic[Sampled]):
    """Within its context calls `sample` whenever `has_work`, and hands each result to `keep`.

    `has_work` and `keep` are called with the condition `changed` held. `waited` are the seconds without a call of
    `sample`, which the caller resets.
    """

    def __init__(
        self,
        device: torch.device,
        has_work: Callable[[], bool],
        sample: Callable[[], Sampled],
        keep: Callable[[Sampled], None],
    ) -> None:
        self.device, self.has_work, self.sample, self.keep = device, has_work, sample, keep
        self.changed = threading.Condition()
        self.busy, self.waited = False, 0.0
        self._pauses, self._closing, self._ident = 0, False, 0
        self._executor = ThreadPoolExecutor(1, "rollouts")
        self._running: Future[None] | None = None

    def __enter__(self) -> "SamplerThread[Sampled]":
        self._running = self._executor.submit(self._run)
        return self

    def __exit__(self, *error: object) -> None:
        """Sample nothing more; what is being sampled, because of an error, ends at its next line of Python.

        The interpreter waits for every thread before it exits, also for one that samples for minutes.
        """
        with self.changed:
            self._closing = True
            self.changed.notify_all()
        self._executor.shutdown(wait=False, cancel_futures=True)
        if self.busy and self._running is not None and not self._running.done():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._ident), ctypes.py_object(SystemExit))

    def _run(self) -> None:
        self._ident = threading.get_ident()
        use_device(self.device)
        while self._may_sample():
            with state_kept():
                sampled = self.sample()
            with self.changed:
                self.keep(sampled)
                self.busy = False
                self.changed.notify_all()

    def _may_sample(self) -> bool:
        """Wait until there is something to sample; False once the context is left."""
        start = time.perf_counter()
        with self.changed:
            while not self._closing and (self._pauses or not self.has_work()):
                self.changed.wait(AWAKE)
            self.waited += time.perf_counter() - start
            self.busy = not self._closing
            return self.busy

    def wait(self) -> None:
        """Wait for a change, with `changed` held. Raises what ended the thread."""
        if self._running is not None and self._running.done():
            self._running.result()
        self.changed.wait(AWAKE)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Context in which nothing is sampled; it begins at the end of the call that is under way."""
        with self.changed:
            self._pauses += 1
            while self.busy:
                self.wait()
        try:
            yield
        finally:
            with self.changed:
                self._pauses -= 1
                self.changed.notify_all()
