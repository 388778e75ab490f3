"""Out of memory, said in one sentence: which part overflowed, and which parameter to change."""

from collections.abc import Iterator
from contextlib import contextmanager

from mathrl.core.errors import UserError

# What PyTorch says on a GPU, on a CPU and in C++, and the operating system.
SIGNS = ("out of memory", "can't allocate memory", "bad_alloc", "cannot allocate memory")


class OutOfMemory(UserError):
    """Memory ran out in a part of the work that is known."""


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, OutOfMemory | MemoryError):
        return True
    said = str(error).lower()
    return isinstance(error, RuntimeError) and any(sign in said for sign in SIGNS)


@contextmanager
def memory_part(part: str, advice: str) -> Iterator[None]:
    """Within it memory holds `part`.

    Example:
        with memory_part("optimizer states", "set rl.lora"): …
        # out of memory for the optimizer states (you tried to allocate 16777216 bytes): set rl.lora

    Raises:
        OutOfMemory: it ran out; the innermost part is named.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        said = " ".join(str(error).split())
        start = max(0, *(said.lower().find(sign) for sign in ("tried to allocate", "you tried")))
        raise OutOfMemory(
            f"out of memory for the {part} ({said[start:][:120] or 'no size was told'}): {advice}"
        ) from None
