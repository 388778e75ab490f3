"""The command line of bubblewrap: which files the sandbox has, and nothing else; and which system calls it may make.

The system calls are two filters that libseccomp compiles, each a list of what is allowed; any other call fails with
EPERM. bwrap puts the first on everything in the sandbox. The second is put on a session's interpreter before it runs
anything of a response.
"""

import errno
import functools
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Literal

from mathrl.core.environment import install_command
from mathrl.core.errors import UserError
from mathrl.params.rollout import Bubblewrap

INSTALL = "apt-get install bubblewrap libseccomp2"
PACKAGES = ("mpmath", "sympy", "numpy", "scipy")
# What a sandbox has imported before any session: nothing, what solutions of mathematical problems import, or that and
# scipy. A session is forked from it, which with scipy's hundred shared libraries takes half as long again.
Libraries = Literal["none", "usual", "scipy"]
MODULES = (
    "collections cmath decimal fractions functools heapq itertools math operator random re statistics string time "
    "typing sympy sympy.ntheory mpmath numpy numpy.fft numpy.linalg numpy.polynomial numpy.random"
).split()
SCIPY_MODULES = "scipy scipy.integrate scipy.linalg scipy.optimize scipy.special".split()
# Run before any session, since much of these libraries is imported or built by the first use.
FIRST_USE = """
import numpy, sympy
x = sympy.symbols("x")
sympy.solve(x**2 - 2), sympy.simplify(sympy.sin(x)**2 + sympy.cos(x)**2), sympy.integrate(x**2, x)
sympy.Matrix([[1, 2], [3, 4]]).inv(), sympy.factorint(360), sympy.factor(x**2 - 1), sympy.sympify("2*x").subs(x, 3)
numpy.linalg.solve(numpy.eye(2), numpy.ones(2))
try:
    1 / 0
except ZeroDivisionError:
    import traceback
    traceback.format_exc()
"""
SCIPY_FIRST_USE = """
import scipy.integrate
scipy.integrate.quad(lambda t: t, 0, 1)
"""
# Of each kind of sandbox: its modules and what is run in it.
IMPORTED: dict[Libraries, tuple[list[str], str]] = {
    "none": ([], ""),
    "usual": (MODULES, FIRST_USE),
    "scipy": (MODULES + SCIPY_MODULES, FIRST_USE + SCIPY_FIRST_USE),
}
PROGRAM = "mathrl.tools.inside.zygote"  # by its module's name it counts in the code's value
INSIDE = Path(__file__).parent / "inside"
OWN_CODE = f"/packages/{PROGRAM.rpartition('.')[0].replace('.', '/')}"  # where the sandbox has its copy
# The user that sessions run as where the trainer runs as root: a number that no account has.
UNPRIVILEGED = 65533
LIBRARY = re.compile(r"(?:=>)?\s+(/.+?) \(0x")
DEVICES = ("null", "zero", "full", "random", "urandom")
ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "LD_LIBRARY_PATH": "/libraries",
    "MALLOC_ARENA_MAX": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",  # sets print in the same order in every run
}


def find_bubblewrap() -> str:
    """The path of the program bwrap.

    Raises:
        UserError: it is not installed; the message has the command that installs it.
    """
    if path := shutil.which("bwrap"):
        return path
    raise UserError(
        "bubblewrap is missing, and the model's code never runs outside a sandbox: "
        f"{INSTALL}; or name a server by kind: http, url: ...; or kind: none"
    )


class Launch:
    """The open files and the arguments of one start of bwrap; close it after the start.

    Args:
        limits: of every session.
        control: file descriptor of the zygote's socket.
        libraries: what to import, which takes seconds.

    Attributes:
        command: the arguments of Popen.
        pass_fds: the file descriptors that the command names.
    """

    def __init__(self, limits: Bubblewrap, control: int, libraries: Libraries) -> None:
        sources = sorted(INSIDE.glob("*.py"))
        contents = [sandbox_filter(), interpreter_filter(), *(source.read_bytes() for source in sources)]
        self._files = [_in_memory(content) for content in contents]
        base, confined, *programs = self._files
        self.pass_fds = (control, base, confined, *programs)
        root = os.getuid() == 0
        modules, first_use = IMPORTED[libraries]
        request = {
            "control": control,
            "filter": confined,
            "modules": modules,
            "first_use": first_use,
            "user": UNPRIVILEGED if root else None,
            "limits": limits.model_dump(),
        }
        inside = [
            argument
            for source, descriptor in zip(sources, programs, strict=True)
            for argument in ("--perms", "0444", "--ro-bind-data", str(descriptor), f"{OWN_CODE}/{source.name}")
        ]
        self.command = [
            find_bubblewrap(),
            *_namespaces(root),
            *_files(),
            *inside,
            *("--remount-ro", "/", "--seccomp", str(base), "--chdir", "/"),
            *(f"/python/bin/{_interpreter().name}", "-sP"),
            *(f"/packages/{PROGRAM.replace('.', '/')}.py", json.dumps(request)),
        ]

    def close(self) -> None:
        """Close the files; bwrap has its own copies."""
        for file in self._files:
            os.close(file)


def _in_memory(data: bytes) -> int:
    """A file descriptor from which `data` is read."""
    descriptor = os.memfd_create("sandbox")
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _namespaces(root: bool) -> Iterator[str]:
    yield from ("--die-with-parent", "--new-session", "--clearenv", "--hostname", "sandbox")
    for name, value in {**ENVIRONMENT, "PYTHONPATH": "/packages"}.items():
        yield from ("--setenv", name, value)
    if root:
        # Without a user namespace of its own: in one, root stays root, for whom the kernel counts no processes.
        yield from ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try")
        yield from ("--cap-drop", "ALL")
        for capability in ("CAP_SYS_ADMIN", "CAP_SETUID", "CAP_SETGID"):
            yield from ("--cap-add", capability)
        yield from ("--dir", "/proc")
    else:
        yield from ("--unshare-all", "--proc", "/proc")


def _files() -> Iterator[str]:
    """The root: interpreter, standard library, packages, shared libraries, devices; all read-only."""
    interpreter, stdlib = _interpreter(), Path(sysconfig.get_path("stdlib"))
    inside_stdlib = f"/python/{stdlib.relative_to(sys.base_prefix)}"
    # Named one by one: what bwrap creates on its own for a mount is closed to other users.
    for place in (inside_stdlib, "/python/bin", OWN_CODE, "/libraries", "/dev/shm", "/tmp"):
        for parent in [*reversed(Path(place).parents), Path(place)][1:]:
            yield from ("--dir", str(parent))
    yield from ("--ro-bind", str(interpreter), f"/python/bin/{interpreter.name}")
    yield from ("--ro-bind", str(stdlib), inside_stdlib)
    for name in ("site-packages", "dist-packages"):
        if (stdlib / name).is_dir():
            yield from ("--tmpfs", f"{inside_stdlib}/{name}", "--remount-ro", f"{inside_stdlib}/{name}")
    for folder in _package_folders():
        yield from ("--ro-bind", str(folder), f"/packages/{folder.name}")
    for library in _shared_libraries():
        at_its_place = library.name.startswith("ld-")  # the loader's path is written in the interpreter
        yield from ("--ro-bind", str(library.resolve()), str(library) if at_its_place else f"/libraries/{library.name}")
    for name in DEVICES:
        yield from ("--dev-bind", f"/dev/{name}", f"/dev/{name}")


def _interpreter() -> Path:
    """The interpreter itself, outside any virtual environment."""
    return Path(sys._base_executable).resolve()  # type: ignore[attr-defined]


def _package_folders() -> Iterator[Path]:
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise UserError(f"the package {name}, which the sandbox offers, is not installed: {install_command()}")
        folder = Path(spec.submodule_search_locations[0])
        yield folder
        if (libraries := folder.with_name(f"{name}.libs")).is_dir():
            yield libraries


@functools.cache
def _shared_libraries() -> tuple[Path, ...]:
    """The libraries of the system that the interpreter and the packages load, and the loader, by `ldd`."""
    folders = list(_package_folders())
    modules = Path(sysconfig.get_path("stdlib"), "lib-dynload")
    objects = [file for folder in (modules, *folders) for file in folder.rglob("*.so*") if "tkinter" not in file.name]
    listed = subprocess.run(["ldd", str(_interpreter()), *map(str, objects)], capture_output=True, text=True)
    paths = {Path(os.path.normpath(match[1])) for match in LIBRARY.finditer(listed.stdout)}
    return tuple(sorted(path for path in paths if not any(path.is_relative_to(folder) for folder in folders)))


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
