"""Keep freed memory in the process.

glibc returns large freed blocks to the system at once, so that each new tensor costs page faults: a third of the CPU
time of a small model's training step, measured. PyTorch's CPU allocator is glibc's.
"""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_HEAP_BLOCK = 32 << 20  # the most that glibc accepts
TRIM_ABOVE = (1 << 31) - 1


def keep_freed_memory() -> bool:
    """Set glibc's thresholds, where the C library is glibc; whether it accepted them."""
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    accepted = library.mallopt(M_MMAP_THRESHOLD, LARGEST_HEAP_BLOCK)
    return bool(accepted and library.mallopt(M_TRIM_THRESHOLD, TRIM_ABOVE))
