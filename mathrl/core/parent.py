"""Processes that end with their parent, and whether one lives. Standard library only, so that they start at once."""

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


def is_alive(pid: int) -> bool:
    """Whether a process of this machine runs; False for a zombie: it has ended, and its parent has not asked how.

    An orphan stays a zombie for as long as the machine's first process does not ask: in a container without an init,
    until the container ends.
    """
    import psutil  # 20 ms, which few commands need

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
