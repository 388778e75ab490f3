"""What a user can cause ends in one clear sentence."""

import errno
import os
import re
import sys
import time
from collections.abc import Callable

from mathrl.core.environment import rank
from mathrl.core.exit_status import EXIT_USER_ERROR

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
OTHER_RANKS_WAIT_SECONDS = 5.0
LOGIN = re.compile(r"(?<=://)[^\s/?#]*@")  # of an address: user and password, up to the last @


class UserError(ValueError):
    """A mistake in parameters, files or the environment.

    The message is one sentence that names what is wrong, where, and what to write instead.
    """


def exit_on_user_error(main: Callable[[], None]) -> None:
    """Run `main`; a `UserError`, and a disk that is full, is one line on stderr and exit status 2."""
    try:
        main()
    except Exception as error:
        if not isinstance(error, UserError) and not is_disk_full(error):
            raise
        if rank() != 0:
            # Rank 0 most often meets the same error, says it, ends, and this process with it: say it once.
            time.sleep(OTHER_RANKS_WAIT_SECONDS)
        said = str(error) if isinstance(error, UserError) else _disk_full(error)
        print(f"error: {without_logins(said)}", file=sys.stderr)
        raise SystemExit(EXIT_USER_ERROR) from None


def without_logins(text: str) -> str:
    """What is printed or kept of an error: libraries quote addresses with the password that stands in them.

    >>> without_logins("API request to http://me:pa55@host:5000/api failed")
    'API request to http://host:5000/api failed'
    """
    return LOGIN.sub("", text)


def is_disk_full(error: Exception) -> bool:
    """Whether a write found no room: Python's own error, or that of a library which quotes the system's."""
    if isinstance(error, OSError):
        return error.errno in NO_ROOM
    return any(os.strerror(number) in str(error) for number in NO_ROOM)


def _disk_full(error: Exception) -> str:
    file = getattr(error, "filename", None) or "a file"
    reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
    return (
        f"{file}: no room to write it ({reason}); free some space and run the same command again: what was "
        "written before is whole, and a run goes on from its last checkpoint"
    )
