"""Keeps a stage's vLLM servers running: starts them, starts one again that ends, and ends all with the stage.

`python -m mathrl.servers.server_keeper` is a process of its own, so that servers outlive no stage, however it ends: it
reads what to start as a line of JSON, and ends the servers when its standard input is closed, which the kernel does for
a stage that is killed. The servers die with it. Standard library only, so that it starts at once.
"""

import json
import os
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mathrl.core.files import write_json
from mathrl.core.guard import at_end_of_input, die_with_parent

LOOK_SECONDS = 0.5
END_SECONDS = 3.0  # for servers to end after SIGTERM, before they are killed
MOST_FAILURES = 3  # starts in a row that did not come to listen
PAUSE_SECONDS = 2.0  # before the next start, times the number of failures


@dataclass(frozen=True)
class ServerCommand:
    """How one server is started: its command line and environment, its port on loopback, and the file of its output."""

    command: list[str]
    environment: dict[str, str]
    port: int
    log: str


@dataclass
class KeptServer:
    """What the keeper notes of a server: its process, and how often it was started.

    `failures` counts the starts in a row that ended before the server listened; after `MOST_FAILURES` of them it stays
    down (`given_up`).
    """

    port: int
    log: str
    pid: int = 0
    starts: int = 0
    failures: int = 0
    given_up: bool = False


class Keeper:
    """Runs the servers until `ended` is set; `file` always has their `KeptServer`s as JSON."""

    def __init__(self, commands: list[ServerCommand], file: Path) -> None:
        self.commands, self.file, self.ended = commands, file, threading.Event()
        self.servers = [KeptServer(command.port, command.log) for command in commands]
        self.processes: list[subprocess.Popen[bytes] | None] = [None for _ in commands]
        self.next_start = [0.0 for _ in commands]

    def run(self) -> None:
        try:
            while not self.ended.is_set():
                changed = [self._look(number) for number in range(len(self.commands))]
                if any(changed):
                    self._note()
                self.ended.wait(LOOK_SECONDS)
        finally:
            self._end()

    def _look(self, number: int) -> bool:
        """Start the server if it does not run; whether anything about it changed."""
        server, process = self.servers[number], self.processes[number]
        if server.given_up:
            return False
        if process is not None:
            if process.poll() is None:
                if server.failures and listens(server.port):
                    server.failures = 0
                    return True
                return False
            kill_group(process, signal.SIGKILL)  # what it had started
            self.processes[number] = None
            server.given_up = server.failures >= MOST_FAILURES
            self.next_start[number] = time.monotonic() + PAUSE_SECONDS * (server.failures - 1)
            return True
        if time.monotonic() < self.next_start[number]:
            return False
        command = self.commands[number]
        with Path(command.log).open("ab") as log:
            # Only this thread starts processes, so that they end when it does.
            started = subprocess.Popen(
                command.command,
                env=command.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self.processes[number] = started
        server.pid, server.starts, server.failures = started.pid, server.starts + 1, server.failures + 1
        return True

    def _note(self) -> None:
        write_json(self.file, [asdict(server) for server in self.servers])

    def _end(self) -> None:
        running = [process for process in self.processes if process is not None]
        for process in running:
            kill_group(process, signal.SIGTERM)
        deadline = time.monotonic() + END_SECONDS
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            kill_group(process, signal.SIGKILL)
            process.wait()


def kill_group(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    """Signal a server and all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def listens(port: int) -> bool:
    """Whether a process listens on the port of loopback."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = b""
    while not line.endswith(b"\n"):  # unbuffered: the rest of the input is its end
        if not (piece := os.read(0, 65536)):
            return
        line += piece
    instructions: dict[str, Any] = json.loads(line)
    keeper = Keeper([ServerCommand(**command) for command in instructions["servers"]], Path(instructions["file"]))
    signal.signal(signal.SIGTERM, lambda *_: keeper.ended.set())
    at_end_of_input(keeper.ended.set)
    keeper.run()


if __name__ == "__main__":
    main()
