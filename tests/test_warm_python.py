"""The server of warm programs goes on whatever becomes of a client, and a client whose server ends has failed."""

import marshal
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mathrl.core.guard import is_alive
from tests.warm_python import CLIENT, MODULES, OWN, ROOMS

# Its programs say their number, read to the end of their input and exit with 7; nothing is imported for them.
SERVER = """
import os, socket, sys
from tests.warm_python import serve
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("listening", flush=True)
serve(listener, os.getppid())
os.write(1, b"%d" % os.getpid())
os.read(0, 1)
os._exit(7)
"""
REQUEST = marshal.dumps({})


@pytest.fixture
def server(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-c", SERVER, str(tmp_path / "socket")]
    with subprocess.Popen(words, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"listening\n"
        yield process
        process.kill()


class Program:
    """One that the server forks: its number, its client's socket and its input."""

    def __init__(self, folder: Path) -> None:
        self.client = connect(folder)
        given, self.input = os.pipe()
        told, output = os.pipe()
        socket.send_fds(self.client, [len(REQUEST).to_bytes(4, "big")], [given, output, 2])
        os.close(given)
        os.close(output)
        self.client.sendall(REQUEST)
        self.pid = int(os.read(told, 20))
        os.close(told)


def connect(folder: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(folder / "socket"))
    return client


def status(program: Program) -> int:
    os.close(program.input)
    return int.from_bytes(program.client.recv(4), "big", signed=True)


def test_a_program_may_end_as_its_client_is_killed(tmp_path: Path, server: subprocess.Popen[bytes]) -> None:
    program = Program(tmp_path)
    server.send_signal(signal.SIGSTOP)  # so that it learns of both at the same time
    os.waitpid(server.pid, os.WUNTRACED)
    os.close(program.input)
    while is_alive(program.pid):
        time.sleep(0.01)
    program.client.close()
    server.send_signal(signal.SIGCONT)
    assert status(Program(tmp_path)) == 7


def test_a_request_that_makes_no_sense_is_refused(tmp_path: Path, server: subprocess.Popen[bytes]) -> None:
    with connect(tmp_path) as client:
        client.sendall((1).to_bytes(4, "big") + b"?")
        assert client.recv(4) == b""
    assert status(Program(tmp_path)) == 7


def test_a_client_whose_server_ends_has_failed(tmp_path: Path) -> None:
    address, client = str(tmp_path / "socket"), tmp_path / "python"
    client.write_text(
        CLIENT.format(python=sys.executable, first=[], modules=MODULES, rooms=ROOMS, own=OWN, address=address)
    )
    client.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        with subprocess.Popen([client, "-m", "dvc"]) as process, listener.accept()[0] as connection:
            connection.shutdown(socket.SHUT_WR)
            assert process.wait() == 1
