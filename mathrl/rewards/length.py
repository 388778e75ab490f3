"""DAPO's soft overlong punishment (arXiv:2503.14476, equation 13)."""

from __future__ import annotations

from mathrl.core.errors import UserError


def soft_overlong(length: int, max_length: int, buffer: int, factor: float = 1.0) -> float:
    """0 up to `max_length - buffer` tokens, falling linearly to -`factor` at `max_length`, -`factor` beyond.

    Raises:
        UserError: `buffer` is not between 1 and `max_length`.

    >>> [soft_overlong(n, 100, 20) for n in (80, 90, 100, 120)]
    [0.0, -0.5, -1.0, -1.0]
    """
    if not 1 <= buffer <= max_length:
        raise UserError(f"overlong part: buffer={buffer} for a maximum length of {max_length}; give 1 up to that")
    excess = length - (max_length - buffer)
    return -factor * min(excess / buffer, 1.0) if excess > 0 else 0.0
