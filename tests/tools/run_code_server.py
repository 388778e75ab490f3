"""A server that speaks SandboxFusion's `run_code` and runs each program in this machine's own sandbox.

It answers the programs of this machine, but no page in a browser; with MATHRL_SANDBOX_KEY, whoever has the key.
"""

import json
import math
import secrets
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from mathrl.core.environment import Variable
from mathrl.core.request_origin import refusal
from mathrl.tools.pool import Pool
from mathrl.tools.tool import ToolOutput

LONGEST_REQUEST = 16 << 20  # bytes
EXIT_STATUS = {"ok": 0, "error": 1, "killed": 137}


class RunCodeServer(ThreadingHTTPServer):
    """Serves POST /run_code by sessions of a pool; port 0 takes a free one."""

    daemon_threads = True

    def __init__(self, host: str, port: int, pool: Pool) -> None:
        super().__init__((host, port), _Handler)
        self.pool = pool

    @property
    def url(self) -> str:
        """Its address, for `tools.url`."""
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        if fault := self._fault():
            self.close_connection = True  # the rest of the request is not read
            self.send_error(fault[0], explain=fault[1])
            return
        try:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            code, language, seconds = request["code"], request["language"], float(request.get("run_timeout", 10))
            if not isinstance(code, str):
                raise TypeError("code is not a text")
            if not 0 < seconds < math.inf:
                raise ValueError(f"run_timeout is {seconds}: give a positive number of seconds")
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
            self.send_error(422, explain=f"not a request of run_code: {error!r}")
            return
        reply = json.dumps(self._run(code, seconds) if language == "python" else _refused(language)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def _fault(self) -> tuple[HTTPStatus, str] | None:
        """The status and the reason with which a request is refused by its headers."""
        key = Variable.SANDBOX_KEY.get()
        login = self.headers.get("Authorization", "")
        if key and not secrets.compare_digest(login.encode(), f"Bearer {key}".encode()):
            return HTTPStatus.UNAUTHORIZED, f"no {Variable.SANDBOX_KEY}, or another"
        if not key and (reason := refusal(self.headers.items())):
            return HTTPStatus.FORBIDDEN, reason
        if self.path != "/run_code":
            return HTTPStatus.NOT_FOUND, "only /run_code is served"
        if self.headers.get_content_type() != "application/json":
            return HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Content-Type must be application/json"
        size = self.headers.get("Content-Length")
        if size is None:
            return HTTPStatus.LENGTH_REQUIRED, "Content-Length is missing"
        if not (size.isascii() and size.isdigit()):
            return HTTPStatus.BAD_REQUEST, f"Content-Length is {size!r}: give a number of bytes"
        if len(size) > 12 or int(size) > LONGEST_REQUEST:
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {LONGEST_REQUEST >> 20} MiB"
        return None

    def _run(self, code: str, seconds: float) -> dict[str, Any]:
        assert isinstance(self.server, RunCodeServer)
        session = self.server.pool.session()
        try:
            return _reply(session.run(code, seconds, note=""))
        finally:
            session.close()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of single requests."""


def _reply(output: ToolOutput) -> dict[str, Any]:
    if output.status == "unavailable":
        return {"status": "SandboxError", "message": output.text, "run_result": None}
    timeout = output.status == "timeout"
    result = {
        "status": "TimeLimitExceeded" if timeout else "Finished",
        "execution_time": output.seconds,
        "return_code": None if timeout else EXIT_STATUS[output.status],
        "stdout": output.text,
        "stderr": "",
    }
    return {"status": "Success" if output.status == "ok" else "Failed", "message": "", "run_result": result}


def _refused(language: object) -> dict[str, Any]:
    return {"status": "SandboxError", "message": f"language {language!r}: only python is served", "run_result": None}
