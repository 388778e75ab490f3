"""What a user can cause ends in one clear sentence."""

import sys
from collections.abc import Callable

EXIT_USER_ERROR = 2


class UserError(ValueError):
    """A mistake in parameters, files or the environment.

    The message is one sentence that names what is wrong, where, and what to write instead.
    """


def exit_on_user_error(main: Callable[[], None]) -> None:
    """Run `main`; a `UserError` is printed as one line on stderr and ends with exit status 2."""
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(EXIT_USER_ERROR) from None
