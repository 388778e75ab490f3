"""What the tests of the sandbox share: whether it runs here, the abuse programs, and what they must not reach."""

import contextlib
import os
import re
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from mathrl.params.rollout import Bubblewrap
from mathrl.tools.pool import Pool, PooledSession
from mathrl.tools.tool import Session, ToolOutput

LIMITS = Bubblewrap(wall_seconds=60, cpu_seconds=30, memory_mb=256, processes=8, file_mb=8, calls=4)
PROGRAM = re.compile(r"^#: (?P<name>.+): (?P<statuses>[a-z ]+)\n(?P<code>(?:(?!#: ).*\n)*)", re.M)
FIXED = 3  # processes of a sandbox without sessions: bwrap's own, the zygote and the one that waits for it
ENDLESS_SECONDS, LONG_SECONDS = 0.7, 3.0


@dataclass(frozen=True)
class Program:
    """A program of abuse.txt, and the statuses that its call may have."""

    name: str
    statuses: frozenset[str]
    code: str

    @property
    def seconds(self) -> float:
        """Wall time: short for one that never ends, long for one that ends on a slow machine."""
        if "timeout" not in self.statuses:
            return LIMITS.wall_seconds
        return ENDLESS_SECONDS if self.statuses == {"timeout"} else LONG_SECONDS


def programs() -> list[Program]:
    text = Path(__file__).with_name("abuse.txt").read_text(encoding="utf-8")
    prelude = text.partition("#: prelude\n")[2].partition("\n#: ")[0]
    listed = text.partition("#: prelude\n")[2].partition("\n#: ")[2]
    return [
        Program(match["name"], frozenset(match["statuses"].split()), f"{prelude}\n{match['code']}")
        for match in PROGRAM.finditer(f"#: {listed}")
    ]


@dataclass
class Machine:
    """What a program must not reach: a file, sockets, a process, the environment, another session."""

    secret: str
    file: Path
    folder: Path
    listening: list[socket.socket]
    process: subprocess.Popen[bytes]

    def fill_in(self, code: str) -> str:
        """The program with this machine's places in it; the secret itself never is."""
        words = {
            "FILE": str(self.file),
            "HOME": str(Path.home()),
            "CHECKOUT": str(Path(__file__).parents[2]),
            "PID": str(self.process.pid),
            "PORT": str(self.listening[0].getsockname()[1]),
            "ABSTRACT": str(self.listening[2].getsockname()[1:].decode()),
            "SOCKET": str(self.listening[3].getsockname()),
        }
        # As an escape, so that a traceback's source lines do not have the word.
        return re.sub(r"@([A-Z]+)@", lambda match: words[match[1]], code.replace("ESCAPED", r"ESC\x41PED"))

    def assert_unharmed(self) -> None:
        assert self.process.poll() is None
        assert self.file.read_text(encoding="utf-8") == self.secret
        assert sorted(path.name for path in self.folder.iterdir()) == ["secret.txt", "socket"]
        for server in self.listening:
            with pytest.raises(BlockingIOError):
                server.recv(10) if server.type == socket.SOCK_DGRAM else server.accept()


@contextmanager
def machine(folder: Path) -> Iterator[Machine]:
    secret = secrets.token_hex(16)
    file = folder / "secret.txt"
    file.write_text(secret, encoding="utf-8")
    tcp, udp = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(tcp.getsockname())
    abstract, path = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0mathrl-{secrets.token_hex(8)}")
    path.bind(str(folder / "socket"))
    for server in (tcp, udp, abstract, path):
        server.setblocking(False)
        if server is not udp:
            server.listen()
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    os.environ["CANARY_OF_THE_TESTS"] = secret
    try:
        yield Machine(secret, file, folder, [tcp, udp, abstract, path], process)
    finally:
        del os.environ["CANARY_OF_THE_TESTS"]
        process.kill()
        process.communicate()
        for server in (tcp, udp, abstract, path):
            server.close()


def check(program: Program, output: ToolOutput, secret: str) -> list[str]:
    """What is wrong with the output of an abuse program."""
    wrong = []
    if output.status not in program.statuses:
        wrong.append(f"status {output.status}, not {sorted(program.statuses)}")
    if "ESCAPED" in output.text or secret in output.text:
        wrong.append("it escaped")
    if not output.text or len(output.text) > LIMITS.output_characters:
        wrong.append(f"a text of {len(output.text)} characters")
    if any(mark in output.text for mark in ("```", "~~~", "<|", "</tool_response>", "<tool_call>", "\x1b", "\0", "\r")):
        wrong.append("a text that forges what surrounds it")
    return [f"{program.name}: {fault}: {output.text[:1000]}" for fault in wrong]


def answer(session: Session, program: Program, machine: Machine) -> ToolOutput:
    code = machine.fill_in(program.code)
    if isinstance(session, PooledSession):
        return session.run(code, program.seconds)
    return session.run(code)


def processes(pool: Pool) -> int:
    """How many processes the sessions have, without those that have ended."""
    alive = 0
    for sandbox in pool._processes.values():
        assert sandbox._process
        for process in psutil.Process(sandbox._process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                alive += process.status() != psutil.STATUS_ZOMBIE
    return alive - FIXED * len(pool._processes)


def wait_for_processes(pool: Pool, count: int) -> int:
    """The number of the sandbox's processes, as soon as it is `count`, or after five minutes."""
    deadline = time.monotonic() + 300
    while (number := processes(pool)) != count and time.monotonic() < deadline:
        time.sleep(0.01)
    return number
