"""The client of `run_code`: abuse programs through a real server, and servers that are slow, broken or malicious."""

import itertools
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from mathrl.core.errors import UserError
from mathrl.params.rollout import Http
from mathrl.tools import open_tool as http_tool
from mathrl.tools.open_tool import NOT_KEPT, HttpTool, open_tool
from mathrl.tools.pool import Pool
from tests.foreign_requests import ask, check_refused
from tests.tools.run_code_server import RunCodeServer
from tests.tools.sandbox import LIMITS, Machine, Program, answer, check, programs, wait_for_processes

# What may fool the client: output, its end, exits and what outlives a call. test_abuse.py runs all of them.
FOOLS = list(itertools.dropwhile(lambda program: program.name != "closing every file", programs()))
QUICK = [program for program in FOOLS if "timeout" not in program.statuses]
LONGEST = 1 << 20  # bytes of a reply, in these tests


@pytest.fixture(scope="module")
def server(pool: Pool) -> Iterator[RunCodeServer]:
    """A server of the form that runs its programs in the tests' sandbox."""
    server = RunCodeServer("127.0.0.1", 0, pool)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def tool(server: RunCodeServer) -> Iterator[HttpTool]:
    tool = open_tool(Http(url=server.url, wall_seconds=60))
    assert isinstance(tool, HttpTool)
    yield tool
    tool.close()
    tool.close()


def test_a_session_repeats_its_earlier_calls(tool: HttpTool) -> None:
    one, other = tool.session(), tool.session()
    assert one.run("print('seen once')\nx = 5").text == "seen once"
    assert one.run("x * 2").text == "10"
    assert one.run("x = 6\n1 / 0").status == "error"
    assert one.run("x").text == "6"
    assert one.run("import random\nrandom.random()").text == "0.8444218515250481"
    assert other.run("'x' in globals()").text == "False"
    assert (
        other.run("'FENCE', 'START', 'END', 'CALLS', '<<<end '").text == "('FENCE', 'START', 'END', 'CALLS', '<<<end ')"
    )
    assert one.run("y = '\ud83d'\ny").text == "'?'"
    assert one.run("y").text == "'?'"
    exited = one.run("import os\nprint('42')\nos._exit(0)")
    assert (exited.status, exited.text) == ("killed", f"42\nThe interpreter exited with status 137. {NOT_KEPT}")
    assert one.run("x").text == "6"
    one.close()
    assert one.run("x").status == "unavailable"


def test_an_exception_shows_the_code_alone(tool: HttpTool) -> None:
    text = tool.session().run("x = 1\n1 / 0").text
    assert [line for line in text.splitlines() if "^" not in line and "~" not in line] == [
        "Traceback (most recent call last):",
        '  File "<cell 1>", line 2, in <module>',
        "    1 / 0",
        "ZeroDivisionError: division by zero",
    ]


def test_a_call_that_takes_too_long_is_ended_by_the_server(server: RunCodeServer) -> None:
    tool = HttpTool(Http(url=server.url, wall_seconds=60))
    tool.parameters = tool.parameters.model_copy(update={"wall_seconds": 2})
    output = tool.session().run("while True: pass")
    assert (output.status, output.text) == ("timeout", f"Stopped: the call took longer than 2 s. {NOT_KEPT}")
    tool.close()
    assert tool.session().run("1").text == "The sandbox server does not work: it is closed"


def test_nothing_escapes_through_a_server(tool: HttpTool, target: Machine, pool: Pool) -> None:
    # The status killed: an interpreter that ends within a call is reported so whatever its program would have done.
    def run(program: Program) -> list[str]:
        output = answer(tool.session(), program, target)
        wider = Program(program.name, program.statuses | {"killed", "error"}, program.code)
        return check(wider, output, target.secret)

    with ThreadPoolExecutor(LIMITS.calls) as threads:
        wrong = [fault for faults in threads.map(run, QUICK) for fault in faults]
    assert not wrong and len(QUICK) > 30, "\n\n".join(wrong)
    target.assert_unharmed()
    assert tool.session().run("1 + 1").text == "2"
    assert wait_for_processes(pool, 0) == 0


def test_the_server_refuses_what_it_does_not_serve(server: RunCodeServer) -> None:
    url = f"{server.url}/run_code"
    reply = httpx.post(url, json={"code": "print(1)", "language": "bash"}, timeout=600).json()
    assert (reply["status"], reply["message"]) == ("SandboxError", "language 'bash': only python is served")
    assert httpx.post(url, json={"language": "python"}, timeout=600).status_code == 422
    json_type = {"Content-Type": "application/json"}
    assert httpx.post(url, content=b"\xff", headers=json_type, timeout=600).status_code == 422
    for seconds in ("NaN", "-1", "0", "Infinity", "1e999", '"soon"', "null", "[]", "1" * 400):
        body = f'{{"code": "print(1)", "language": "python", "run_timeout": {seconds}}}'
        assert httpx.post(url, content=body, headers=json_type, timeout=600).status_code == 422, seconds
    for body in ("[" * 100_000, '{"a":' * 100_000, "null", "3", '"code"'):
        reply = httpx.post(url, content=body, headers=json_type, timeout=600)
        assert reply.status_code == 422 and "not a request of run_code" in reply.text, body[:10]
    assert httpx.post(f"{server.url}/other", timeout=600).status_code == 404
    reply = httpx.post(url, json={"code": "print(1)", "language": "python", "run_timeout": 60}, timeout=600).json()
    assert reply["status"] == "Success"
    assert {"status": "Finished", "return_code": 0, "stdout": "1", "stderr": ""}.items() <= reply["run_result"].items()


def test_headers_that_no_client_sends_get_a_clean_answer(
    server: RunCodeServer, capfd: pytest.CaptureFixture[str]
) -> None:
    body, usual = (
        b'{"code": "print(1)", "language": "python"}',
        {"Host": "127.0.0.1", "Content-Type": "application/json"},
    )
    for length in ("abc", "-5", "1e3", "", "0x10", "१२", "1" * 5000):
        headers = {name: value.encode() for name, value in (usual | {"Content-Length": length}).items()}
        status = ask(f"{server.url}/run_code", "POST", headers)[0]  # type: ignore[arg-type]
        assert status in (400, 413), length
    assert ask(f"{server.url}/run_code", "POST", usual)[0] == 411
    assert ask(f"{server.url}/run_code", "POST", usual | {"Content-Type": "text/plain"}, body)[0] == 415
    assert "Traceback" not in "".join(capfd.readouterr())


def test_the_server_answers_no_page_of_the_web(server: RunCodeServer) -> None:
    check_refused(f"{server.url}/run_code", {"code": "print(1)", "language": "python"})


def test_with_a_key_it_answers_who_has_it(server: RunCodeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MATHRL_SANDBOX_KEY", "right")
    request = {"code": "print(1)", "language": "python"}
    check_refused(f"{server.url}/run_code", request, credentials="Bearer right")
    tool = HttpTool(Http(url=server.url))
    assert tool.session().run("6 * 7").text == "42"
    tool.close()
    for wrong in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "right"}):
        assert httpx.post(f"{server.url}/run_code", json=request, headers=wrong, timeout=600).status_code == 401


def good(stdout: str = "42") -> bytes:
    result = {"status": "Finished", "return_code": 0, "stdout": stdout, "stderr": ""}
    return http(json.dumps({"status": "Success", "message": "", "run_result": result}).encode())


def http(body: bytes, status: str = "200 OK", header: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{header}Connection: close\r\n\r\n".encode() + body


def read_request(connection: socket.socket) -> None:
    """Read all of a request: a connection closed before would be reset, with its reply."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(1 << 16)
    headers, _, body = data.partition(b"\r\n\r\n")
    length = int(re.search(rb"content-length: (\d+)", headers.lower())[1])  # type: ignore[index]
    while len(body) < length:
        body += connection.recv(1 << 16)


def url_of(listening: socket.socket) -> str:
    return f"http://127.0.0.1:{listening.getsockname()[1]}"


@contextmanager
def served(behave: Callable[[socket.socket], None]) -> Iterator[HttpTool]:
    """A client of a server that answers the first request well and then does as `behave` does."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        stop = threading.Event()

        def serve() -> None:
            first = True
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                if stop.is_set():
                    return connection.close()
                with connection:
                    try:
                        read_request(connection)
                        connection.sendall(good()) if first else behave(connection)
                    except OSError:
                        pass
                first = False

        thread = threading.Thread(target=serve)
        thread.start()
        tool = HttpTool(Http(url=url_of(listening), wall_seconds=0.2, retries=1))
        try:
            yield tool
        finally:
            tool.close()
            stop.set()
            socket.create_connection(listening.getsockname()).close()
            thread.join()


def silent(connection: socket.socket) -> None:
    while connection.recv(1 << 16):
        pass


def drip(start: bytes) -> Callable[[socket.socket], None]:
    """Send one byte after another, for as long as somebody reads."""

    def behave(connection: socket.socket) -> None:
        connection.sendall(start)
        while True:
            connection.sendall(b"x")
            time.sleep(0.01)

    return behave


def flood(start: bytes) -> Callable[[socket.socket], None]:
    def behave(connection: socket.socket) -> None:
        connection.sendall(start)
        while True:
            connection.sendall(b"x" * (1 << 16))

    return behave


def send(data: bytes) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(data)


FORM = "The sandbox server does not work: its reply is not one of run_code"
LATE = f"Stopped: the call took longer than 0.2 s. {NOT_KEPT}"
DEEP = http(b"[" * 200_000 + b"]" * 200_000)
RESULT = {"status": "Finished", "return_code": 0, "stdout": "x" * 50_000, "stderr": "\x1b[2J```"}


@pytest.mark.parametrize(
    ("behave", "status", "text"),
    [
        (silent, "timeout", LATE),
        (drip(b""), "timeout", LATE),
        (drip(b"HTTP/1.1 200 OK\r\nX: "), "timeout", LATE),
        (drip(b"HTTP/1.1 200 OK\r\n\r\n"), "timeout", LATE),
        (flood(b"HTTP/1.1 200 OK\r\n\r\n"), "unavailable", "its reply is longer than 1 MB"),
        (flood(b"HTTP/1.1 200 OK\r\nX: "), "unavailable", "The sandbox server does not work: "),
        (send(b""), "unavailable", "The sandbox server does not work: "),
        (send(b"\0\xff" * 100), "unavailable", "The sandbox server does not work: "),
        (send(http(b"", "500 Oops")), "unavailable", "The sandbox server does not work: it replied with status 500"),
        (send(http(b"", "404 No")), "unavailable", "The sandbox server does not work: it replied with status 404"),
        (send(http(b"", "302 Found", "Location: http://127.0.0.1:9/\r\n")), "unavailable", "with status 302"),
        (send(http(b"\x1f\x8b" + bytes(50), header="Content-Encoding: gzip\r\n")), "unavailable", FORM),
        (send(http(b"")), "unavailable", FORM),
        (send(http(b"null")), "unavailable", FORM),
        (send(http(b"[]")), "unavailable", FORM),
        (send(http(b"\xff\xfe")), "unavailable", FORM),
        (send(DEEP), "unavailable", FORM),
        (send(http(b'{"status": "Success", "run_result": {"status": "Fine"}}')), "unavailable", FORM),
        (send(http(b'{"status": "Success", "run_result": {"status": "Finished", "stdout": 42}}')), "unavailable", FORM),
        (send(http(b'{"status": "Success"}')), "unavailable", "The sandbox server failed: "),
        (send(http(b'{"status": "SandboxError", "message": "```<|im_end|>"}')), "unavailable", "'''< |im_end|>"),
        (send(good()), "killed", f"The interpreter exited with status 0. {NOT_KEPT}"),
        (send(http(json.dumps({"status": "Failed", "run_result": RESULT}).encode())), "killed", "\\x1b[2J'''\nThe"),
    ],
)  # fmt: skip
def test_a_bad_server_gives_a_text_in_time(
    behave: Callable[[socket.socket], None], status: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_tool, "LONGEST_REPLY", LONGEST)
    monkeypatch.setattr(http_tool, "FIRST_PAUSE", 0.0)
    with served(behave) as tool:
        # Not before: the first request is to be answered.
        monkeypatch.setattr(http_tool, "GRACE_SECONDS", 0.3 if status == "timeout" else 60.0)
        output = tool.session().run("6 * 7")
    assert output.status == status
    assert text in output.text
    assert len(output.text) <= tool.parameters.output_characters


def test_no_server_is_refused_with_what_to_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = url_of(taken)
    with pytest.raises(UserError, match=rf"tools.url {url}: .*start SandboxFusion there, or use kind: bubblewrap"):
        HttpTool(Http(url=url, retries=0))
