"""The sandbox as a tool: sessions, each with an interpreter forked from one warm sandbox, and their calls."""

import contextlib
import math
import os
import socket
import subprocess
import tempfile
import threading
import time

from mathrl.core.errors import UserError
from mathrl.params.rollout import Bubblewrap
from mathrl.tools.bubblewrap import Launch, Libraries
from mathrl.tools.inside.messages import ANSWER, EXITED, READY, REQUEST, WALL, receive, send
from mathrl.tools.tool import LOST, Status, ToolOutput, clean, verdict

# Beyond a call's wall time: then the supervisor, which holds that limit, has failed, and the session is killed.
GRACE_SECONDS = 5.0
KILLED = -9
START_SECONDS = 300.0  # for importing the libraries on a busy machine
REPLY_SECONDS = 60.0  # for opening a session on a busy machine
NOTES = 2000  # characters of what bwrap and the zygote wrote on stderr


class SandboxDown(Exception):
    """The sandbox, not the code in it, failed; the message is the reason."""


class Link:
    """The open end of a session's socket, and the number by which its zygote kills it."""

    def __init__(self, zygote: "SandboxProcess", channel: socket.socket, number: int) -> None:
        self.zygote, self.channel, self.number = zygote, channel, number

    def close(self) -> None:
        """Let the session end: its supervisor sees the closed socket."""
        with contextlib.suppress(OSError):
            self.channel.shutdown(socket.SHUT_RDWR)  # also where a forked child of ours holds a copy
        self.channel.close()

    def kill(self) -> None:
        """End the session from outside, without its supervisor."""
        self.close()
        self.zygote.kill(self.number)


class SandboxProcess:
    """A sandbox that is ready to fork sessions.

    Args:
        limits: of every session.
        libraries: what sessions have imported, which takes seconds.

    Raises:
        SandboxDown: bwrap or the zygote ended before it was ready; the message quotes what it wrote.
    """

    def __init__(self, limits: Bubblewrap, libraries: Libraries) -> None:
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(START_SECONDS)
        self._notes = tempfile.TemporaryFile()  # noqa: SIM115
        started = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._failure = ""
        # The kernel ends bwrap when the thread that started it ends, not only the process: this one waits for it.
        threading.Thread(
            target=self._keep, args=(limits, theirs, started, libraries), name="sandbox", daemon=True
        ).start()
        started.wait()
        theirs.close()
        try:
            ready = self._control.recv(100) if self._process else b""
        except TimeoutError:
            ready, self._failure = b"", f"it was not ready within {START_SECONDS:g} s"
        if ready != READY:
            notes = self._last_notes()
            self.close()
            raise SandboxDown(self._failure or notes)
        self._control.settimeout(REPLY_SECONDS)

    def _keep(self, limits: Bubblewrap, theirs: socket.socket, started: threading.Event, libraries: Libraries) -> None:
        launch = None
        try:
            launch = Launch(limits, theirs.fileno(), libraries)
            self._process = subprocess.Popen(
                launch.command,
                pass_fds=launch.pass_fds,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._notes,
                env={},
                cwd="/",
                start_new_session=True,
            )
        except (OSError, ValueError) as error:  # UserError among them
            self._failure = str(error)
        finally:
            if launch:
                launch.close()
            started.set()
        if self._process:
            self._process.wait()

    def alive(self) -> bool:
        """Whether sessions can be opened."""
        return self._process is not None and self._process.poll() is None

    def open(self, seconds: float) -> Link:
        """Fork a session; its socket waits at most `seconds` for a reply.

        Raises:
            OSError: the sandbox has ended or does not answer.
        """
        ours, its = socket.socketpair()
        ours.settimeout(REPLY_SECONDS)
        with self._lock, its:
            socket.send_fds(self._control, [b"open"], [its.fileno()])
            number = int(self._control.recv(100) or b"0")
        if not number or receive(ours) != READY:
            ours.close()
            raise ConnectionError(self._last_notes() or "the sandbox has ended")
        ours.settimeout(seconds)
        return Link(self, ours, number)

    def kill(self, number: int) -> None:
        """End a session; nothing happens if it has ended, or all of them have."""
        with self._lock, contextlib.suppress(OSError):
            self._control.send(b"kill %d" % number)

    def close(self) -> None:
        """End the sandbox and every process in it."""
        self._control.close()
        if self._process:
            self._process.kill()
            self._process.wait()
        with contextlib.suppress(ValueError):
            self._notes.close()

    def _last_notes(self) -> str:
        if self._notes.closed:
            return ""
        self._notes.seek(0)
        text = self._notes.read().decode("utf-8", "replace")
        return " ".join(text[-NOTES:].split()) or "it ended without a word"


class Pool:
    """A warm sandbox; a `Tool`. It is started again if it ends.

    A second one, with scipy imported, starts with the first session whose first call names scipy.

    Args:
        limits: of every session.

    Raises:
        UserError: it cannot be started here.
    """

    def __init__(self, limits: Bubblewrap) -> None:
        self.limits = limits
        self._lock = threading.Lock()
        self._turns = threading.BoundedSemaphore(limits.calls or os.cpu_count() or 1)
        self._processes: dict[Libraries, SandboxProcess] = {}
        self._closed = False
        try:
            self._process_for("usual")
        except SandboxDown as error:
            raise UserError(f"the sandbox cannot run here: {error}") from None

    def session(self) -> "PooledSession":
        """A new session; its interpreter is forked by its first call."""
        return PooledSession(self)

    def close(self) -> None:
        """End the sandbox and with it all sessions."""
        with self._lock:
            self._closed = True
            for process in self._processes.values():
                process.close()

    def open(self, libraries: Libraries = "usual") -> Link:
        """A new interpreter, from a sandbox that is started again if it has ended.

        Raises:
            SandboxDown: it cannot be.
        """
        seconds = self.limits.wall_seconds + GRACE_SECONDS
        process = self._process_for(libraries)
        try:
            return process.open(seconds)
        except OSError:
            process.close()
        try:
            return self._process_for(libraries).open(seconds)
        except OSError as error:
            raise SandboxDown(f"no session could be opened: {error}") from None

    def turn(self) -> threading.BoundedSemaphore:
        """Held by each running call, so that no more run at a time than `calls`."""
        return self._turns

    def _process_for(self, libraries: Libraries) -> SandboxProcess:
        with self._lock:
            if self._closed:
                raise SandboxDown("it is closed")
            process = self._processes.get(libraries)
            if process is None or not process.alive():
                process = self._processes[libraries] = SandboxProcess(self.limits, libraries)
            return process


class PooledSession:
    """A session of the sandbox. Its calls come one after another, from any thread."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._link: Link | None = None
        self._lock = threading.Lock()
        self._closed = False

    def run(self, code: str, wall_seconds: float | None = None, note: str = LOST) -> ToolOutput:
        """Run the code and wait for its end, which the limits bound.

        Args:
            code: Python.
            wall_seconds: a lower limit than that of the parameters.
            note: what the text says of earlier variables if the call ended the interpreter; empty: nothing.
        """
        seconds = min(self._pool.limits.wall_seconds, wall_seconds or math.inf)
        with self._lock, self._pool.turn():
            start = time.monotonic()
            status, text = self._call(code.encode("utf-8", "replace"), seconds, note)
            return ToolOutput(text, status, time.monotonic() - start)

    def close(self) -> None:
        """End the interpreter; its files and processes end with it."""
        self._closed = True
        if link := self._link:
            link.close()

    def _call(self, code: bytes, seconds: float, note: str) -> tuple[Status, str]:
        if self._closed:
            return "unavailable", "The session is closed."
        try:
            self._link = self._link or self._pool.open("scipy" if b"scipy" in code else "usual")
        except SandboxDown as error:
            return "unavailable", f"The sandbox does not work: {error}"[: self._pool.limits.output_characters]
        ending, number, output = EXITED, KILLED, ("", "")
        try:
            send(self._link.channel, REQUEST.pack(seconds) + code)
            ending, number, output = _parse(receive(self._link.channel))
        except TimeoutError:
            ending = WALL
        except (OSError, ValueError):
            ending = EXITED
        limits = self._pool.limits.model_copy(update={"wall_seconds": seconds})
        status, text = verdict(ending, number, output, limits, note)
        if status not in ("ok", "error"):
            self._link.kill()
            self._link = None
        return status, text


def _parse(reply: bytes | None) -> tuple[bytes, int, tuple[str, str]]:
    """A supervisor's answer: how the call ended, with which exit status, and its output, whole or as two ends.

    Raises:
        ValueError: it is none: the supervisor has ended.
    """
    if reply is None or len(reply) < ANSWER.size:
        raise ValueError("the supervisor has ended")
    ending, number, length, left_out = ANSWER.unpack_from(reply)
    body = reply[ANSWER.size :]
    if not left_out:
        return ending, number, (clean(body.decode("utf-8", "replace")), "")
    return (
        ending,
        number,
        (clean(body[:length].decode("utf-8", "replace")), clean(body[length:].decode("utf-8", "replace"))),
    )


def why_no_sandbox() -> str:
    """Why no sandbox runs on this machine, by starting one without libraries; empty if it runs."""
    try:
        sandbox = SandboxProcess(Bubblewrap(), "none")
    except SandboxDown as error:
        return str(error)
    try:
        sandbox.open(REPLY_SECONDS).close()
    except OSError as error:
        return str(error)
    finally:
        sandbox.close()
    return ""
