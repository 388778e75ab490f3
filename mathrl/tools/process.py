"""One bwrap process and the zygote in it, as the pool sees them."""

import contextlib
import socket
import subprocess
import tempfile
import threading

from mathrl.params.rollout import Bubblewrap
from mathrl.tools.bubblewrap import Launch, Libraries
from mathrl.tools.inside.messages import READY, receive

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
