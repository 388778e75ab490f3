"""Processes that end with their parent. Standard library only, so that they start at once."""

import ctypes
import os
import signal
import threading
from collections.abc import Callable

PR_SET_PDEATHSIG = 1


def at_end_of_input(action: Callable[[], object]) -> None:
    """Call `action`, on a thread, when standard input is closed: the parent has ended, or asks this process to end."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        action()

    threading.Thread(target=wait, daemon=True).start()


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies (Linux; a no-op elsewhere)."""
    try:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return
