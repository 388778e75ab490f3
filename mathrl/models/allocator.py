"""Keep freed memory in the process.

glibc hands large freed blocks back to the system at once, and each new tensor then costs page faults:
measured on a training step of a small model, a third of its CPU time. PyTorch's CPU allocator is glibc's.
"""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_HEAP_BLOCK = 32 << 20  # the most that glibc accepts
TRIM_ABOVE = (1 << 31) - 1


def keep_freed_memory() -> bool:
    """Tell the C library so, where it is glibc; returns whether it listened."""
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    listened = library.mallopt(M_MMAP_THRESHOLD, LARGEST_HEAP_BLOCK)
    return bool(listened and library.mallopt(M_TRIM_THRESHOLD, TRIM_ABOVE))
