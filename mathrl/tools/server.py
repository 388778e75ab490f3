"""A server that speaks SandboxFusion's `run_code` and runs each program in this machine's own sandbox.

    python -m mathrl.tools.server --port 8080

For a team with one machine for the model's code, and for tests. It has no login: it listens on loopback unless told
otherwise, and whoever reaches it can use the sandbox's processor time, and nothing else of the machine.
"""

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from mathrl.core.errors import exit_on_user_error
from mathrl.params.tools import Bubblewrap
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
        size = int(self.headers.get("Content-Length") or 0)
        if self.path != "/run_code" or size > LONGEST_REQUEST:
            self.close_connection = True
            self.send_error(404 if self.path != "/run_code" else 413)
            return
        try:
            request = json.loads(self.rfile.read(size))
            code, language, seconds = request["code"], request["language"], float(request.get("run_timeout", 10))
            if not isinstance(code, str):
                raise TypeError("code is not a text")
        except (ValueError, KeyError, TypeError) as error:
            self.send_error(422, explain=f"not a request of run_code: {error!r}")
            return
        reply = json.dumps(self._run(code, seconds) if language == "python" else _refused(language)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

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


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve SandboxFusion's run_code from this machine's sandbox.")
    parser.add_argument("--host", default="127.0.0.1", help="Address to listen on; any other is reachable by others.")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--wall-seconds", type=float, default=60.0, help="Longest run_timeout that is granted.")
    options = parser.parse_args()
    limits = Bubblewrap(
        wall_seconds=options.wall_seconds, cpu_seconds=int(options.wall_seconds), output_characters=100_000
    )
    pool = Pool(limits)
    server = RunCodeServer(options.host, options.port, pool)
    print(f"run_code at {server.url}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()
        pool.close()


if __name__ == "__main__":
    exit_on_user_error(main)
