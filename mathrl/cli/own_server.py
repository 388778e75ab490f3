"""A Prefect server for one command, if no other is running.

Prefect would start one itself, but it first imports its server into the flow's process and takes 3.4 s each time.
Here the server starts while the flow is imported, and ends with the process that started it, however that ends.
"""

import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mathrl.core.environment import Variable
from mathrl.core.errors import UserError
from mathrl.core.paths import home

START_SECONDS = 120.0  # the first start creates a database, which takes long on a busy machine
# The settings of Prefect's own temporary server.
SETTINGS = {
    "PREFECT_UI_ENABLED": "0",
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT__SERVER_FINAL": "1",
    "PREFECT_SERVER_EVENTS_PROACTIVE_GRANULARITY": "PT60S",
    "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": "",  # it has no page
    "PREFECT_API_BLOCKS_REGISTER_ON_START": "0",  # none is used, and the first start would write some fifty
}


@contextmanager
def own_server() -> Iterator[Callable[[], None]]:
    """Start a server unless PREFECT_API_URL or a Prefect profile names one; yield a function that waits for it.

    Raises:
        UserError: from that function: the server did not start.
    """
    if os.environ.get("PREFECT_API_URL") or (Path(os.environ["PREFECT_HOME"]) / "profiles.toml").exists():
        yield lambda: None
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    login = f"mathrl:{secrets.token_urlsafe(32)}"  # other users of this machine reach the port
    log = home() / "logs" / "prefect-run.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = os.environ | SETTINGS | {"PREFECT_SERVER_API_AUTH_STRING": login}
    with log.open("wb") as output:
        # In a new session: Ctrl-C in the terminal must reach only the flow, which still reports to the server.
        child = subprocess.Popen(
            [sys.executable, "-m", "mathrl.core.guard", sys.executable, "-m", "uvicorn", "--factory",
             "mathrl.tasks.prefect_server:app_of_a_command", "--host", "127.0.0.1", "--port", str(port),
             "--log-level", "error", "--lifespan", "on"],
            env=environment, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    url = f"http://127.0.0.1:{port}/api"
    variables = {"PREFECT_API_URL": url, "PREFECT_API_AUTH_STRING": login, Variable.OWN_SERVER: "1"}
    before = {name: os.environ.get(name) for name in variables}
    os.environ |= variables
    try:
        yield lambda: _wait(url, child, log)
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        assert child.stdin is not None
        child.stdin.close()  # the guard ends the server; nobody needs to wait


def _wait(url: str, child: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while child.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.05)
    raise UserError(f"Prefect's server did not start; see {log}")
