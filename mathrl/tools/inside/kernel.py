"""The calls into the Linux kernel that Python 3.11 has no function for: namespaces, mounts, capabilities, filters."""

import ctypes
import os
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MNT_DETACH = 0x2
INERT = MS_NOSUID | MS_NODEV | MS_NOEXEC

PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
CAPABILITY_VERSION_3 = 0x20080522
HUGE_PAGE = 2 << 20
MADV_HUGEPAGE, MADV_COLLAPSE = 14, 25
INSTRUCTION_BYTES = 8  # of a classic BPF instruction

_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


def unshare(flags: int) -> None:
    """Move this process, or its next child for a pid namespace, into new namespaces."""
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def enter(namespace: int, flag: int) -> None:
    """Join a namespace by an open file of /proc/PID/ns; with a pid namespace, the next children do."""
    _check(_libc.setns(ctypes.c_int(namespace), ctypes.c_int(flag)), "setns")


def new_user_namespace(processes: int, others: int = 0) -> None:
    """Move into a new user namespace, with all capabilities there and the same numbers of user and group.

    Args:
        processes: an open /proc.
        others: flags of further namespaces, which belong to the new one.
    """
    user, group = os.getuid(), os.getgid()
    unshare(CLONE_NEWUSER | others)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        descriptor = os.open(f"self/{name}", os.O_WRONLY, dir_fd=processes)
        os.write(descriptor, text.encode())
        os.close(descriptor)


def use_huge_pages() -> None:
    """Gather this process's memory in huge pages where the kernel can: a fork copies a 512th of the table of pages."""
    areas = Path("/proc/self/maps").read_text(encoding="ascii", errors="replace").splitlines()
    for area in map(str.split, areas):
        if area[1].startswith("rw") and (len(area) == 5 or area[5] == "[heap]"):
            start, end = (int(address, 16) for address in area[0].split("-"))
            for page in range(-(-start // HUGE_PAGE) * HUGE_PAGE, end - HUGE_PAGE + 1, HUGE_PAGE):
                _libc.madvise(ctypes.c_void_p(page), ctypes.c_size_t(HUGE_PAGE), ctypes.c_int(MADV_HUGEPAGE))
                _libc.madvise(ctypes.c_void_p(page), ctypes.c_size_t(HUGE_PAGE), ctypes.c_int(MADV_COLLAPSE))


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Mount as mount(2) does; `options` such as "size=16m"."""
    data = options.encode() if options else None
    result = _libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data)
    _check(result, f"mount {kind or source} at {target}")


def unmount(target: str) -> None:
    """Take a mount out of the tree; open files of it stay usable."""
    _check(_libc.umount2(target.encode(), ctypes.c_int(MNT_DETACH)), f"unmount {target}")


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process by prctl(2)."""
    _check(_libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), *[ctypes.c_ulong(0)] * 3), f"prctl {option}")


def drop_capabilities() -> None:
    """Give up every capability, for good: nothing that follows is executed with more."""
    header = _CapabilityHeader(CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    _check(_libc.capset(ctypes.byref(header), nothing), "capset")


def filter_calls(program: bytes) -> None:
    """Put a seccomp filter (a classic BPF program) on this process and all its children, for good."""
    buffer = ctypes.create_string_buffer(program, len(program))
    prog = _Program(len(program) // INSTRUCTION_BYTES, ctypes.addressof(buffer))
    result = _libc.prctl(
        ctypes.c_int(PR_SET_SECCOMP),
        ctypes.c_ulong(SECCOMP_MODE_FILTER),
        ctypes.byref(prog),
        ctypes.c_ulong(0),
        ctypes.c_ulong(0),
    )
    _check(result, "seccomp")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
