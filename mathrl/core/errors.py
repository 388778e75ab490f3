"""Errors that a user can cause, each reported in one clear sentence, and exit statuses (docs/reference/programs.md).

Out of memory, reported in one sentence: what did not fit, and which parameter to change.
"""

import errno
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mathrl.core.environment import rank

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
OTHER_RANKS_WAIT_SECONDS = 5.0
# User and password of an address, up to the last @. A database's may have /, ? and # in them, as SQLAlchemy reads it.
LOGIN = re.compile(r"(?<=://)(?:[^\s/?#]*|(?<!http://)(?<!https://)[^\s/:@]*:[^\s@]*)@")


class UserError(ValueError):
    """A mistake in parameters, files or the environment.

    The message is one sentence that names what is wrong, where, and what to write instead.
    """


def exit_on_user_error(main: Callable[[], None]) -> None:
    """Run `main`; a `UserError` or a full disk prints one line on stderr and exits with status 2."""
    try:
        main()
    except Exception as error:
        if not isinstance(error, UserError) and not is_disk_full(error):
            raise
        if rank() != 0:
            # Rank 0 usually meets the same error, prints it, and is the end of this process: print it once.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            time.sleep(OTHER_RANKS_WAIT_SECONDS)
        message = str(error) if isinstance(error, UserError) else _disk_full(error)
        print(f"error: {without_logins(message)}", file=sys.stderr)
        raise SystemExit(EXIT_USER_ERROR) from None


def without_logins(text: str) -> str:
    """The text without user names and passwords in addresses, which libraries quote in their errors.

    >>> without_logins("API request to http://me:pa55@host:5000/api failed")
    'API request to http://host:5000/api failed'
    """
    return LOGIN.sub("", text)


def is_disk_full(error: Exception) -> bool:
    """Whether a write failed for lack of disk space: Python's own error, or a library's that quotes the system's."""
    if isinstance(error, OSError):
        return error.errno in NO_ROOM
    return any(os.strerror(number) in str(error) for number in NO_ROOM)


def _disk_full(error: Exception) -> str:
    file = getattr(error, "filename", None) or "a file"
    reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
    return (
        f"{file}: no room to write it ({reason}); free some space and run the same command again: files written "
        "before are complete, and a run resumes from its last checkpoint"
    )


EXIT_NO = 1  # the command has worked and its answer is no: it does not fit, differs, is red, is refused
EXIT_USER_ERROR = 2
EXIT_STOPPED = 75  # EX_TEMPFAIL: stopped after a checkpoint; started again, the stage resumes
EXIT_INTERRUPTED = 130  # Ctrl-C
EXIT_KILLED, EXIT_TERMINATED = 137, 143  # 128 + SIGKILL, 128 + SIGTERM, as shells and guards report them
RESUMABLE = (EXIT_STOPPED, EXIT_INTERRUPTED, EXIT_KILLED, EXIT_TERMINATED)


# Words of the errors of PyTorch on a GPU, on a CPU and in C++, and of the operating system.
SIGNS = ("out of memory", "can't allocate memory", "bad_alloc", "cannot allocate memory")


class OutOfMemory(UserError):
    """Memory ran out, and it is known for what."""


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, OutOfMemory | MemoryError):
        return True
    message = str(error).lower()
    return isinstance(error, RuntimeError) and any(sign in message for sign in SIGNS)


@contextmanager
def memory_part(part: str, advice: str) -> Iterator[None]:
    """Name what memory was needed for, `part`, if it runs out within the context.

    Example:
        with memory_part("optimizer states", "set rl.lora"): …
        # out of memory for the optimizer states (you tried to allocate 16777216 bytes): set rl.lora

    Raises:
        OutOfMemory: memory ran out; the innermost context names the part.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        message = " ".join(str(error).split())
        start = max(0, *(message.lower().find(sign) for sign in ("tried to allocate", "you tried")))
        raise OutOfMemory(
            f"out of memory for the {part} ({message[start:][:120] or 'size unknown'}): {advice}"
        ) from None
