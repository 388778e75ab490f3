"""The first program inside the sandbox: it imports the libraries once and forks a session from itself on request.

    python zygote.py '{"control": 5, "filter": 6, "modules": ["sympy"],
                      "first_use": "import sympy …", "user": null, "limits": {…}}'

The control socket takes `open` with the session's socket as ancillary data, answered by its number, and
`kill NUMBER`. Nothing of a response ever runs in this process, nor reaches it.

A supervisor is the first process of a session's own namespaces: it starts the interpreter, holds its limits and ends
it. It runs none of the response's code, and the code cannot reach it: the kernel takes no signal for the first process
of a namespace from within it, and ptrace, /proc and sockets are closed to the code. When it ends, the kernel ends every
process of the namespace.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mathrl.tools.inside import kernel
from mathrl.tools.inside.interpreter import HOME, interpret
from mathrl.tools.inside.messages import ANSWER, CPU, ERROR, EXITED, MB, MEMORY, OK, READY, REQUEST, WALL, receive, send

TICK_SECONDS = 0.05  # how often a running call's processor time and memory are measured
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
STOP_SECONDS = 0.0001  # until it is looked again whether a stopped or killed process is
CHUNK = 1 << 16
STOPPED, DEAD = "T", ("X", "Z")  # states of /proc/PID/stat; a dead child waits for its parent


def main(argument: str) -> None:
    request = json.loads(argument)
    if request["user"] is not None:
        _become(request["user"])
    _own_namespaces()
    with os.fdopen(request["filter"], "rb") as file:
        program = file.read()
    for module in request["modules"]:
        importlib.import_module(module)
    exec(request["first_use"], {})
    limits = request["limits"]
    size = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * PAGE
    limits["address_space"] = size + limits["memory_mb"] * MB
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.collect()
    gc.freeze()  # collections in the sessions leave these objects' pages shared
    kernel.use_huge_pages()
    control = socket.socket(fileno=request["control"])
    control.send(READY)
    _serve(control, limits, program)


def _become(user: int) -> None:
    """As root: mount /proc, then become a user without rights, for whom the kernel counts processes."""
    kernel.mount("proc", "/proc", "proc", kernel.INERT)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    kernel.drop_capabilities()
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # /proc/self belongs to this user again


def _own_namespaces() -> None:
    """Go on in a child that has all capabilities in namespaces of its own, to make those of the sessions there."""
    processes = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    kernel.new_user_namespace(processes, kernel.CLONE_NEWNS | kernel.CLONE_NEWPID)
    os.close(processes)
    if pid := os.fork():
        _, status = os.waitpid(pid, 0)
        os._exit(status != 0)


def _serve(control: socket.socket, limits: dict[str, Any], program: bytes) -> None:
    own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    sessions: dict[int, int] = {}  # pid of the supervisor → a file descriptor that is readable once it has ended
    while True:
        poll = select.poll()
        poll.register(control, select.POLLIN)
        for ended in sessions.values():
            poll.register(ended, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll()}
        for pid in [pid for pid, ended in sessions.items() if ended in ready]:
            os.waitpid(pid, 0)
            os.close(sessions.pop(pid))
        if control.fileno() not in ready:
            continue
        message, passed, _, _ = socket.recv_fds(control, 100, 1)
        if not message:
            return
        word, *numbers = message.split()
        if word == b"open":
            pid = _open_session(control, socket.socket(fileno=passed[0]), own_pids, limits, program)
            sessions[pid] = os.pidfd_open(pid)
            control.send(b"%d" % pid)
        elif word == b"kill" and (pid := int(numbers[0])) in sessions:
            os.kill(pid, signal.SIGKILL)


def _open_session(
    control: socket.socket, client: socket.socket, own_pids: int, limits: dict[str, Any], program: bytes
) -> int:
    """Fork a supervisor as the first process of a new pid namespace; its pid here."""
    kernel.unshare(kernel.CLONE_NEWPID)
    pid = os.fork()
    if pid == 0:
        try:
            control.close()
            os.close(own_pids)
            supervise(client, limits, program)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    client.close()
    kernel.enter(own_pids, kernel.CLONE_NEWPID)
    return pid


def supervise(client: socket.socket, limits: dict[str, Any], program: bytes) -> None:
    """Serve the session's calls, until one of them ends the interpreter or the client closes. Ends with the process."""
    os.setsid()  # a process group reaches over namespaces: kill(0, …) would end other sessions
    kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC)
    processes = _private_files(limits)
    kernel.new_user_namespace(processes)  # for which the kernel counts the processes
    kernel.drop_capabilities()
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    ours, its = socket.socketpair()
    reading, writing = os.pipe()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a handler would let the code interrupt this process
    interpreter = os.fork()
    if interpreter == 0:
        try:
            interpret(its, writing, limits, program)
        finally:
            os._exit(0)
    its.close()
    os.close(writing)
    os.set_blocking(reading, False)
    ours.settimeout(limits["wall_seconds"])
    session = _Session(client, ours, reading, interpreter, os.pidfd_open(interpreter), processes, limits)
    send(client, READY)
    while (request := receive(client)) is not None:
        if not session.call(request):
            break


def _private_files(limits: dict[str, Any]) -> int:
    """A folder of this session's own to write into, and an open /proc that the interpreter will not have."""
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    options = f"size={limits['file_mb']}m,nr_inodes=4096,mode=0700"
    kernel.mount("tmpfs", HOME, "tmpfs", kernel.INERT, options)
    kernel.mount(HOME, "/dev/shm", "", kernel.MS_BIND)
    kernel.mount("proc", "/proc", "proc", kernel.INERT)
    processes = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    kernel.unmount("/proc")
    kernel.mount("tmpfs", "/proc", "tmpfs", kernel.INERT | kernel.MS_RDONLY, "size=4k,nr_inodes=2")
    os.chdir(HOME)
    return processes


def _signal_all(number: int) -> None:
    """Signal every process of the session but this one."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, number)


@dataclass
class _Output:
    """The first and the last bytes of what a call wrote."""

    room: int  # bytes of each
    head: bytearray = field(default_factory=bytearray)
    tail: deque[bytes] = field(default_factory=deque)
    in_tail: int = 0
    total: int = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        free = self.room - len(self.head)
        self.head += data[:free]
        if rest := data[free:]:
            self.tail.append(rest)
            self.in_tail += len(rest)
            while self.in_tail - len(self.tail[0]) >= self.room:
                self.in_tail -= len(self.tail.popleft())

    def parts(self) -> tuple[bytes, bytes]:
        return bytes(self.head), b"".join(self.tail)[-self.room :]


@dataclass
class _Session:
    client: socket.socket
    channel: socket.socket
    output: int
    interpreter: int
    ended: int  # a file descriptor that is readable once the interpreter has ended
    processes: int  # /proc
    limits: dict[str, Any]
    shared_pages: int = 0  # resident pages that the interpreter has from the start: the imported libraries

    def __post_init__(self) -> None:
        self.shared_pages = self._resident_pages(self.interpreter)

    def call(self, request: bytes) -> bool:
        """Run one code and answer the client; whether the interpreter is there for another."""
        (seconds,) = REQUEST.unpack_from(request)
        ending, number, output = self._run(request[REQUEST.size :], seconds)
        alive = ending in (OK, ERROR)
        if alive:
            self._end_all_but_interpreter()
        else:
            _signal_all(signal.SIGKILL)
        self._drain(output)
        head, tail = output.parts()
        left_out = output.total - len(head) - len(tail)
        send(self.client, ANSWER.pack(ending, number, len(head), left_out) + head + tail)
        return alive

    def _run(self, code: bytes, seconds: float) -> tuple[bytes, int, _Output]:
        """Wait for the end of the call or of its limits: how it ended, the interpreter's exit status, the output."""
        output = _Output(4 * self.limits["output_characters"])
        try:
            self._forget_answers()  # while nothing runs that could write more of them
            _signal_all(signal.SIGCONT)
            send(self.channel, code)
        except OSError:  # it is gone, or does not read
            _signal_all(signal.SIGKILL)
            return EXITED, self._exit_status(), output
        poll = select.poll()
        for descriptor in (self.channel.fileno(), self.output, self.ended, self.client.fileno()):
            poll.register(descriptor, select.POLLIN)
        start = tick = time.monotonic()
        cpu_before = None
        while True:
            ready = {descriptor for descriptor, _ in poll.poll(1000 * TICK_SECONDS)}
            if self.client.fileno() in ready:
                sys.exit()  # closed: the kernel ends the rest
            if self.output in ready and not self._drain(output, CHUNK):
                poll.unregister(self.output)
            if self.channel.fileno() in ready:
                answer = self._answer()
                if answer is not None:
                    return answer, 0, output
                poll.unregister(self.channel.fileno())
            if self.ended in ready:
                return EXITED, self._exit_status(), output
            now = time.monotonic()
            if now - start > seconds:
                return WALL, 0, output
            if now - tick > TICK_SECONDS:
                tick = now
                cpu, memory = self._use()
                cpu_before = cpu if cpu_before is None else cpu_before
                if cpu - cpu_before > self.limits["cpu_seconds"]:
                    return CPU, 0, output
                if memory > self.limits["memory_mb"] * MB:
                    return MEMORY, 0, output

    def _answer(self) -> bytes | None:
        """What the interpreter says of the call: `OK` or `ERROR`, or None where it says nothing that counts."""
        answer = self.channel.recv(5, socket.MSG_DONTWAIT)
        return {b"\0\0\0\1" + kind: kind for kind in (OK, ERROR)}.get(answer)

    def _forget_answers(self) -> None:
        """Drop what an earlier call wrote into the channel."""
        while select.select([self.channel], [], [], 0)[0]:
            if not self.channel.recv(CHUNK):
                raise BrokenPipeError

    def _exit_status(self) -> int:
        while True:
            pid, status = os.waitpid(-1, 0)
            if pid == self.interpreter:
                return os.waitstatus_to_exitcode(status)

    def _drain(self, output: _Output, most: int = 1 << 20) -> bool:
        """Read what is in the pipe, at most `most` bytes; whether it may still be written to."""
        while most > 0:
            try:
                data = os.read(self.output, CHUNK)
            except BlockingIOError:
                return True
            if not data:
                return False
            output.add(data)
            most -= len(data)
        return True

    def _end_all_but_interpreter(self) -> None:
        """Kill what the call left beside the interpreter, and stop that until the next call.

        More than once, where the end of a child continues the interpreter (clone(2) takes any signal for it).
        """
        while True:
            _signal_all(signal.SIGSTOP)
            others = [pid for pid in self._pids() if pid not in (1, self.interpreter) and self._state(pid) not in DEAD]
            for pid in others:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._reap_orphans()
            if not others and self._state(self.interpreter) in (STOPPED, *DEAD):
                return
            time.sleep(STOP_SECONDS)

    def _state(self, pid: int) -> str:
        stat = self._stat(pid)
        return stat[0] if stat else DEAD[0]

    def _reap_orphans(self) -> None:
        while done := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if done.si_pid == self.interpreter:
                return
            os.waitpid(done.si_pid, 0)

    def _pids(self) -> list[int]:
        return [int(entry.name) for entry in os.scandir(self.processes) if entry.name.isdigit()]

    def _use(self) -> tuple[float, int]:
        """Processor seconds of the session so far, and the bytes of memory that it has beside the libraries."""
        ticks = pages = 0
        pids = [pid for pid in self._pids() if pid != 1]
        for pid in pids:
            if stat := self._stat(pid):
                ticks += sum(int(stat[i]) for i in (11, 12, 13, 14))
                pages += max(0, self._resident_pages(pid) - self.shared_pages)
        memory = pages * PAGE
        if memory > self.limits["memory_mb"] * MB:  # perhaps pages that processes share: the exact sum takes longer
            memory = sum(self._proportional_bytes(pid) for pid in pids)
        waited = os.times()
        return ticks / TICKS_PER_SECOND + waited.children_user + waited.children_system, memory

    def _stat(self, pid: int) -> list[str] | None:
        """The fields of /proc/PID/stat from the state on; None if the process is gone."""
        text = self._read(f"{pid}/stat")
        return text.rpartition(")")[2].split() if text else None

    def _resident_pages(self, pid: int) -> int:
        text = self._read(f"{pid}/statm")
        return int(text.split()[1]) if text else 0

    def _proportional_bytes(self, pid: int) -> int:
        """Memory of a process, with pages that several share divided among them."""
        lines = self._read(f"{pid}/smaps_rollup").splitlines()
        return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))

    def _read(self, path: str) -> str:
        try:
            descriptor = os.open(path, os.O_RDONLY, dir_fd=self.processes)
            with os.fdopen(descriptor, encoding="utf-8", errors="replace") as file:
                return file.read()
        except (FileNotFoundError, ProcessLookupError):
            return ""


if __name__ == "__main__":
    main(sys.argv[1])
