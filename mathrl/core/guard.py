"""Processes that end with their parent, and a command that runs another in a group that cannot outlive its caller.

    python -m mathrl.core.guard COMMAND …

The command runs in its own session. When this process's standard input is closed (its parent has ended, or
asks it to end) or it is signalled, the process group is ended: SIGINT, then SIGTERM, then SIGKILL.
Standard library only, so that it starts at once.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

SIGINT_SECONDS, SIGTERM_SECONDS = 10.0, 5.0


def main(command: list[str]) -> int:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    # close_fds: a lock that the caller passed on is held by the command too.
    child = subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL, close_fds=False)
    at_end_of_input(stop.set)
    while child.poll() is None:
        if stop.wait(0.05):
            end_group(child.pid, child.poll)
            child.wait()
            return 130
    if child.returncode < 0:  # killed from outside: its own children would outlive it
        end_group(child.pid, child.poll)
        return 128 - child.returncode
    return child.returncode


def end_group(child: int, poll: Callable[[], object]) -> None:
    """End every process of the child's group by the gentlest signal that works; `poll` reaps the child.

    It does not wait after SIGKILL: where no init asks how orphans ended, these stay in the group for good.
    """
    for number, seconds in ((signal.SIGINT, SIGINT_SECONDS), (signal.SIGTERM, SIGTERM_SECONDS)):
        if not signal_group(child, number) or _wait_for_end(child, poll, seconds):
            return
    signal_group(child, signal.SIGKILL)


def _wait_for_end(child: int, poll: Callable[[], object], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        poll()  # reaped, it no longer counts as a member of its group
        if not signal_group(child, 0):
            return True
        time.sleep(0.05)
    return False


def signal_group(group: int, number: int) -> bool:
    """Send the signal to every process of the group; whether there is one."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


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


def process_start(pid: int) -> int | None:
    """When a process of this machine began, in clock ticks since the boot; None if there is none, or not on Linux.

    It tells a process from a later one with the same number, and no change of the clock moves it.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(stat.rpartition(b")")[2].split()[19])  # the name before ")" may have spaces


def is_alive(pid: int, start: int | None = None) -> bool:
    """Whether a process of this machine runs; with `start`, the one that began then (`process_start`).

    False for a zombie: it has ended, and its parent has not asked how. An orphan stays one for as long as the
    machine's first process does not ask: in a container without an init, until the container ends.
    """
    import psutil  # 20 ms, which few commands need

    if start is not None and process_start(pid) != start:
        return False
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
