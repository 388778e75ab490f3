"""Ending on a signal: at the next step boundary, resumable, with exit status 75, and always in seconds."""

import os
import signal
import sys
import threading
from types import FrameType

EXIT_STOPPED = 75  # EX_TEMPFAIL: start it again and it goes on
GRACE_SECONDS = 8.0


class Stopped(SystemExit):
    """Raised at a step boundary after the checkpoint is written."""

    def __init__(self) -> None:
        super().__init__(EXIT_STOPPED)


class StopRequest:
    """Notes SIGINT and SIGTERM. The process ends by itself where no step boundary comes in time.

    It then leaves the last checkpoint, from which the run resumes just as exactly.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before = {}
        if threading.current_thread() is threading.main_thread() and os.environ.get("RANK", "0") == "0":
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self.asked:
            self.asked = True
            print(
                f"{signal.Signals(number).name}: stopping at the next step boundary",
                file=sys.stderr,
                flush=True,
            )
            timer = threading.Timer(GRACE_SECONDS, self._leave)
            timer.daemon = True
            timer.start()

    def _leave(self) -> None:
        if self.asked:
            os._exit(EXIT_STOPPED)

    def close(self) -> None:
        """Give the signals back to whoever had them."""
        self.asked = False
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
