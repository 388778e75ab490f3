"""Imports of large packages without the garbage collector, which would search them again and again."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Pause the garbage collector for imports, of which it takes a fifth of the processor time and finds little.

    If a module was imported, the collector afterwards passes over all that exists: modules live as long as the process.
    """
    collects, modules = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > modules:
            gc.freeze()
        if collects:
            gc.enable()
