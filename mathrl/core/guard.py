"""Runs one command in a process group that cannot outlive its caller.

    python -m mathrl.core.guard COMMAND …

The command runs in its own session. When this process's standard input is closed (its parent has ended, or
asks it to end) or it is signalled, the process group is ended: SIGINT, then SIGTERM, then SIGKILL.
Standard library only, so that it starts at once.
"""

import os
import signal
import subprocess
import sys
import threading
import time

from mathrl.core.parent import at_end_of_input

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
            end_group(child)
            return 130
    if child.returncode < 0:  # killed from outside: its own children would outlive it
        end_group(child)
        return 128 - child.returncode
    return child.returncode


def end_group(child: "subprocess.Popen[bytes]") -> None:
    """End every process of the child's group by the gentlest signal that works."""
    for number, seconds in ((signal.SIGINT, SIGINT_SECONDS), (signal.SIGTERM, SIGTERM_SECONDS)):
        if not _signal(child.pid, number) or _gone(child, seconds):
            return
    _signal(child.pid, signal.SIGKILL)
    child.wait()


def _gone(child: "subprocess.Popen[bytes]", seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        child.poll()  # reaps it, so that it no longer counts as a member of its group
        if not _signal(child.pid, 0):
            return True
        time.sleep(0.05)
    return False


def _signal(group: int, number: int) -> bool:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
