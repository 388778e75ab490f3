"""What a user can cause ends in one clear sentence."""

import os
import sys
import time
from collections.abc import Callable

EXIT_USER_ERROR = 2
OTHER_RANKS_WAIT_SECONDS = 5.0


class UserError(ValueError):
    """A mistake in parameters, files or the environment.

    The message is one sentence that names what is wrong, where, and what to write instead.
    """


def exit_on_user_error(main: Callable[[], None]) -> None:
    """Run `main`; a `UserError` is printed as one line on stderr and ends with exit status 2."""
    try:
        main()
    except UserError as error:
        if os.environ.get("RANK", "0") != "0":
            # Rank 0 most often meets the same error, says it, ends, and this process with it: say it once.
            time.sleep(OTHER_RANKS_WAIT_SECONDS)
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(EXIT_USER_ERROR) from None
