"""Imports of large packages without a pause for garbage at every step."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Pause the garbage collector for an import, in which it would take a quarter of the time and find nothing.

    Afterwards it passes over what exists, which lives as long as the process.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()
