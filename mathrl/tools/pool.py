"""The sandbox as a tool: sessions, each with an interpreter forked from one warm sandbox, and their calls."""

import math
import os
import threading
import time

from mathrl.core.errors import UserError
from mathrl.params.rollout import Bubblewrap
from mathrl.tools.bubblewrap import Libraries
from mathrl.tools.inside.messages import ANSWER, EXITED, REQUEST, WALL, receive, send
from mathrl.tools.process import Link, SandboxDown, SandboxProcess
from mathrl.tools.tool import LOST, Status, ToolOutput, clean, verdict

# Beyond a call's wall time: then the supervisor, which holds that limit, has failed, and the session is killed.
GRACE_SECONDS = 5.0
KILLED = -9


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
