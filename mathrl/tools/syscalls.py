"""Which system calls are allowed in the sandbox, as seccomp filters that libseccomp compiles.

Two filters, each a list of what is allowed; any other call fails with EPERM. bwrap puts the first on everything in the
sandbox. The second is put on a session's interpreter before it runs anything of a response.
"""

import errno
import tempfile
from collections.abc import Iterable
from types import ModuleType

from mathrl.core.errors import UserError

# What Python, numpy and scipy call on files, memory, time, their own threads and processes. Names that the machine's
# architecture does not have (open on aarch64) are left out of its filter. Not here: what is counted or seen across
# sessions, which have read-only files in common: locks (also kernel memory beside memory_mb), leases, inotify, the page
# cache (mincore, fadvise64, preadv2), sysinfo (which counts the machine's processes and memory).
FILES = """
    read write readv writev pread64 pwrite64 preadv pwritev open openat close close_range creat stat fstat lstat
    newfstatat statx access faccessat faccessat2 lseek _llseek dup dup2 dup3 fsync fdatasync truncate
    ftruncate fallocate getdents getdents64 getcwd chdir fchdir rename renameat renameat2 mkdir mkdirat rmdir
    link linkat unlink unlinkat symlink symlinkat readlink readlinkat chmod fchmod fchmodat umask utime utimes utimensat
    futimesat statfs fstatfs pipe pipe2 poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait
    epoll_pwait eventfd eventfd2 sendfile copy_file_range
"""
MEMORY = "mmap mprotect munmap mremap brk madvise msync"
TIME = """
    nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday time times getitimer setitimer alarm
"""
PROCESSES = """
    fork vfork exit exit_group wait4 waitid kill tgkill tkill set_robust_list get_robust_list set_tid_address rseq
    sched_yield sched_getaffinity getcpu membarrier rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending
    rt_sigtimedwait rt_sigsuspend sigaltstack pause restart_syscall setpgid setsid getpgid getpgrp getsid arch_prctl
"""
FACTS = """
    getpid getppid gettid getuid geteuid getgid getegid getresuid getresgid getgroups getrlimit getrusage uname
    getrandom
"""
PAIRS = "sendto recvfrom shutdown getsockopt getsockname getpeername"  # of sockets made by socketpair
INTERPRETER = f"{FILES} {MEMORY} {TIME} {PROCESSES} {FACTS} {PAIRS}".split()
# What the zygote and the supervisors need on top: namespaces, mounts, other limits and capabilities, the filter.
SUPERVISION = """
    unshare setns mount umount2 capset capget prctl seccomp setgroups setresuid setresgid setuid setgid setrlimit
    prlimit64 execve clone socketpair sendmsg recvmsg pidfd_open ioctl fcntl futex flock fadvise64 sysinfo
""".split()
# The C library tries these first and calls the older one where the kernel has none.
NEWER = ("clone3", "openat2", "epoll_pwait2", "futex_waitv", "fchmodat2")

NAMESPACES = 0x7E020000  # the flags of clone(2) that make namespaces
AF_UNIX = 1
PR_SET_NAME, PR_GET_NAME = 15, 16
# Commands of fcntl(2): duplicate, flags, a pipe's size. Not: owners and signals, which could wake a stopped session;
# locks and leases, which another session would notice.
FCNTLS = (0, 1, 2, 3, 4, 1030, 1032)
# Operations of futex(2), in the low bits of its argument. One that is not private finds its waiters by the file and
# page of its address, so that sessions could wake each other on a library's page.
FUTEX_PRIVATE = 128
FUTEX_OPERATION = 0xFF  # with the private flag, without that of the clock
FUTEX_WAITS, FUTEX_WAKES = (0, 9), (1, 10)
# Requests of ioctl(2) about a file descriptor alone: is it a terminal, how many bytes wait, (non-)blocking, (not) kept.
IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)


def sandbox_filter() -> bytes:
    """The filter of everything in the sandbox, for bwrap's --seccomp.

    Raises:
        UserError: libseccomp is not installed.
    """
    return _compile((*INTERPRETER, *SUPERVISION), restricted=False)


def interpreter_filter() -> bytes:
    """The filter of what runs a response's code: no exec, no sockets, no namespaces, no limits changed.

    Raises:
        UserError: libseccomp is not installed.
    """
    return _compile(INTERPRETER, restricted=True)


def _compile(names: Iterable[str], restricted: bool) -> bytes:
    seccomp = _library()
    program = seccomp.SyscallFilter(seccomp.ERRNO(errno.EPERM))
    for name in names:
        if (number := seccomp.resolve_syscall(seccomp.Arch.NATIVE, name)) >= 0:
            program.add_rule(seccomp.ALLOW, number)
    for name in NEWER:
        if (number := seccomp.resolve_syscall(seccomp.Arch.NATIVE, name)) >= 0:
            program.add_rule(seccomp.ERRNO(errno.ENOSYS), number)
    if restricted:
        _allow_with_arguments(seccomp, program)
    with tempfile.TemporaryFile() as file:
        program.export_bpf(file)
        file.seek(0)
        return file.read()


def _allow_with_arguments(seccomp: ModuleType, program: object) -> None:
    """Calls that the interpreter needs with some arguments only."""
    arg, equal, masked = seccomp.Arg, seccomp.EQ, seccomp.MASKED_EQ
    rules = [
        ("clone", arg(0, masked, NAMESPACES, 0)),
        ("socketpair", arg(0, equal, AF_UNIX)),
        ("prlimit64", arg(0, equal, 0), arg(2, equal, 0)),  # reads its own limits
        *(("prctl", arg(0, equal, option)) for option in (PR_SET_NAME, PR_GET_NAME)),
        *(("fcntl", arg(1, equal, command)) for command in FCNTLS),
        *(("ioctl", arg(1, equal, request)) for request in IOCTLS),
        ("futex", arg(1, masked, FUTEX_PRIVATE, FUTEX_PRIVATE)),
    ]
    for name, *arguments in rules:
        program.add_rule(seccomp.ALLOW, name, *arguments)  # type: ignore[attr-defined]
    # The C library ends a process whose shared semaphore (multiprocessing.Lock) or joined thread gets another error: a
    # wait finds the value changed and looks again, a wake finds nobody.
    for operations, error in ((FUTEX_WAITS, errno.EAGAIN), (FUTEX_WAKES, 0)):
        for operation in operations:
            action = seccomp.ERRNO(error)
            program.add_rule(action, "futex", arg(1, masked, FUTEX_OPERATION, operation))  # type: ignore[attr-defined]


def _library() -> ModuleType:
    try:
        import pyseccomp  # here, since its import fails without a library of the system
    except RuntimeError:
        raise UserError("libseccomp is missing, which closes the sandbox: apt-get install libseccomp2") from None
    assert isinstance(pyseccomp, ModuleType)
    return pyseccomp
