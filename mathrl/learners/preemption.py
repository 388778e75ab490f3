"""When a run writes a resume point and when it ends on a signal: at the next step boundary, resumable, with
exit status 75, and always in seconds.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

import torch

from mathrl.core.environment import rank
from mathrl.core.exit_status import EXIT_STOPPED
from mathrl.learners.distributed import Backend

SAVE_SECONDS, GRACE_SECONDS = 4.0, 8.0  # of the ten that a cluster's preemption leaves


class Stopped(SystemExit):
    """Raised at a step boundary after the checkpoint is written."""

    def __init__(self) -> None:
        super().__init__(EXIT_STOPPED)


class StopRequest:
    """Notes SIGINT and SIGTERM. The process ends by itself where no step boundary comes in time.

    While nothing of the run changes (roll-outs of a long step) a checkpoint is written before; else the last
    one is what the run goes on from, just as exactly.
    """

    def __init__(self, backend: Backend) -> None:
        self.asked, self.backend, self.saved_at = False, backend, time.monotonic()
        self._before = {}
        self._save: Callable[[], None] | None = None
        self._unchanged = threading.Lock()
        if threading.current_thread() is threading.main_thread() and rank() == 0:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)

    def boundary(self, due: bool) -> tuple[bool, bool]:
        """At the end of a step: whether to write a checkpoint, and whether to stop then.

        A checkpoint is `due` anyway, or a process was asked to stop, or rank 0's last one is
        `training.checkpoint_minutes` old. The same at every process; all of them call it.
        """
        minutes = self.backend.training.checkpoint_minutes
        old = minutes is not None and time.monotonic() - self.saved_at >= 60 * minutes
        flags = torch.tensor([self.asked, old and self.backend.rank == 0], dtype=torch.float32)
        flags = flags.to(self.backend.device)
        self.backend.sum_(flags)
        asked, late = (bool(flag) for flag in flags.tolist())
        save = due or asked or late
        if save:
            self.saved_at = time.monotonic()
        return save, asked

    def hold(self, save: Callable[[], None]) -> None:
        """Until `release` the run is as it was at the step boundary, which `save` writes as a checkpoint."""
        self._save = save

    def release(self) -> None:
        """What is saved will change; returns when nothing is being saved."""
        with self._unchanged:
            self._save = None

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self.asked:
            self.asked = True
            print(f"{signal.Signals(number).name}: stopping at the next step boundary", file=sys.stderr, flush=True)
            for seconds in (SAVE_SECONDS, GRACE_SECONDS):
                timer = threading.Timer(seconds, self._leave, [seconds == GRACE_SECONDS])
                timer.daemon = True
                timer.start()

    def _leave(self, at_once: bool) -> None:
        with self._unchanged:
            if not self.asked or not (self._save or at_once):
                return
            try:
                if self._save is not None:
                    self._save()
            except (OSError, RuntimeError) as error:
                print(f"no checkpoint could be written: {error}", file=sys.stderr, flush=True)
            finally:
                os._exit(EXIT_STOPPED)

    def close(self) -> None:
        """Give the signals back to whoever had them."""
        self.asked = False
        self.release()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
