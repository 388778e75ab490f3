"""Out of memory, reported in one sentence: what did not fit, and which parameter to change."""

from collections.abc import Iterator
from contextlib import contextmanager

from mathrl.core.errors import UserError

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
