"""Checkpointing and preemption: on SIGTERM or SIGINT a run saves at the next step boundary and exits with
status 75, within ten seconds.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

import torch

from mathrl.core.environment import rank
from mathrl.core.errors import EXIT_STOPPED
from mathrl.learners.distributed import Ranks

SAVE_SECONDS, GRACE_SECONDS = 4.0, 8.0  # of the ten that a cluster's preemption leaves


class Stopped(SystemExit):
    """Raised at a step boundary after the checkpoint is written."""

    def __init__(self) -> None:
        super().__init__(EXIT_STOPPED)


class StopRequest:
    """Receives SIGINT and SIGTERM within its context; the process exits by itself if no step boundary comes in time.

    While nothing of the run changes (the rollouts of a long step) a checkpoint is written before that; else the
    run resumes, just as exactly, from its last checkpoint. A record of one process then stays "running", since what
    hangs may be the disk; trackers show the run as killed.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.requested, self.ranks, self.saved_at = False, ranks, time.monotonic()
        self._before: dict[signal.Signals, Any] = {}
        self._save: Callable[[], None] | None = None
        self._unchanged = threading.Lock()

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread() and rank() == 0:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Restore the signal handlers, except on `Stopped`: the process is ending, within its seconds."""
        if kind is not None and issubclass(kind, Stopped):
            return
        self.requested = False
        self.release()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def boundary(self, due: bool) -> tuple[bool, bool]:
        """At the end of a step: whether to write a checkpoint, and whether to stop after it.

        A checkpoint is `due` anyway, or a rank received a signal, or rank 0's last checkpoint is
        `training.checkpoint_minutes` old. The same at every rank; all of them call it.
        """
        minutes = self.ranks.training.checkpoint_minutes
        old = minutes is not None and time.monotonic() - self.saved_at >= 60 * minutes
        flags = torch.tensor([self.requested, old and self.ranks.rank == 0], dtype=torch.float32)
        flags = flags.to(self.ranks.device)
        self.ranks.sum_(flags)
        requested, late = (bool(flag) for flag in flags.tolist())
        save = due or requested or late
        if save:
            self.saved_at = time.monotonic()
        return save, requested

    def hold(self, save: Callable[[], None]) -> None:
        """Until `release` the run stays as it is now; `save` writes a checkpoint of it."""
        self._save = save

    def release(self) -> None:
        """The run is about to change; returns when nothing is being saved."""
        with self._unchanged:
            self._save = None

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            return
        self.requested = True
        print(f"{signal.Signals(number).name}: stopping at the next step boundary", file=sys.stderr, flush=True)
        for seconds in (SAVE_SECONDS, GRACE_SECONDS):
            timer = threading.Timer(seconds, self._leave, [seconds == GRACE_SECONDS])
            timer.daemon = True
            timer.start()

    def _leave(self, at_once: bool) -> None:
        with self._unchanged:
            if not self.requested or not (self._save or at_once):
                return
            try:
                if self._save is not None:
                    self._save()
            except (OSError, RuntimeError) as error:
                print(f"no checkpoint could be written: {error}", file=sys.stderr, flush=True)
            finally:
                os._exit(EXIT_STOPPED)
