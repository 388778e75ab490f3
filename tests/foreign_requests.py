"""Requests as a page of the web can let a browser send them: each must be refused, and its reply unreadable."""

import http.client
import json
import time
import urllib.parse
from typing import Any

FOREIGN = "http://evil.example"


def ask(url: str, method: str, headers: dict[str, str], body: bytes | None = None) -> tuple[int, dict[str, str], bytes]:
    """The reply to one request with exactly these headers: status, headers and body."""
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    try:
        address = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
        connection.putrequest(method, address, skip_host=True, skip_accept_encoding=True)
        for name, value in (headers | ({"Content-Length": str(len(body))} if body is not None else {})).items():
            connection.putheader(name, value)
        connection.endheaders(body)
        reply = connection.getresponse()
        return reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read()
    finally:
        connection.close()


def check_refused(
    url: str, json_body: Any = None, *, method: str = "", credentials: str = "", trusts_loopback: bool = False
) -> None:
    """Refused are requests of foreign pages, under foreign host names and, if it asks for any, without credentials.

    The same request of a program is answered, so that nothing else refused it. With `trusts_loopback` the server
    answers the pages of all servers of this machine.
    """
    body = None if json_body is None else json.dumps(json_body).encode()
    method = method or ("GET" if body is None else "POST")
    host = urllib.parse.urlsplit(url).netloc
    port = host.rpartition(":")[2]
    usual = {"Host": host, **({} if body is None else {"Content-Type": "application/json"})}
    login = {"Authorization": credentials} if credentials else {}
    foreign = [
        {"Origin": "http://127.0.0.1:1"},  # a page of another server of this machine
        {"Origin": FOREIGN},
        {"Origin": "null"},  # a file, or a frame in a sandbox
        {"Origin": f"http://127.0.0.1.evil.example:{port}"},
        {"Host": f"evil.example:{port}"},
        {"Host": f"evil.example:{port}", "Origin": f"http://evil.example:{port}"},  # DNS rebinding
        {"Host": f"127.0.0.1.evil.example:{port}"},
        {"Origin": FOREIGN, "Content-Type": "text/plain"},  # without a preflight
        {"Origin": FOREIGN, "Content-Type": "application/x-www-form-urlencoded"},
    ]
    for changes in foreign[trusts_loopback:]:
        status, headers, reply = ask(url, method, usual | changes, body)
        assert status in (401, 403), f"{method} {url} with {changes}: {status} {reply[:200]!r}"
        assert headers.get("access-control-allow-origin") not in ("*", changes.get("Origin", "")), (url, headers)
    preflight = {"Host": host, "Origin": FOREIGN, "Access-Control-Request-Method": method}
    status, headers, _ = ask(url, "OPTIONS", preflight | {"Access-Control-Request-Headers": "content-type"})
    assert "access-control-allow-origin" not in headers, f"{url} lets {FOREIGN} ask: {status} {headers}"
    if login:
        assert ask(url, method, usual, body)[0] == 401, f"{method} {url} without credentials"
    for _ in range(60):  # 503 of Prefect: its database is locked for the moment
        status, _, reply = ask(url, method, usual | login, body)
        if status != 503:
            break
        time.sleep(0.5)
    assert status < 300, f"{method} {url} of a program: {status} {reply[:300]!r}"
