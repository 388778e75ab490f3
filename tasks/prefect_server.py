"""Prefect's server as mathrl starts it: `uvicorn --factory mathrl.tasks.prefect_server:app`, or `:app_of_a_command`;
and its slots, the number of flows that may compute at a time.

Prefect's own answers every web page that a browser shows (CORS `*`) under every host name, and has no setting for the
second. Whoever reaches it can run code, so requests of other pages are refused here. A slot is a GPU, or on a machine
without one a share of its cores. `mathrl ui` makes the global concurrency limit `mathrl-slots`; without a server there
is one flow, and nothing to limit.
"""

import asyncio
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from mathrl.core.environment import Variable, without_collections
from mathrl.core.errors import UserError
from mathrl.core.hashing import digest
from mathrl.core.paths import home
from mathrl.core.request_origin import OwnRequests

ORIGINS = "PREFECT_SERVER_CORS_ALLOWED_ORIGINS"  # of the pages that it answers
CHECK_EVERY = timedelta(seconds=5)


def app() -> Any:
    """The server of `mathrl ui`."""
    from prefect.server.api.server import create_app

    return _guard(create_app(final=True))


def app_of_a_command() -> Any:
    """The server of one command, with fewer polls: its background work (removing old events, triggers that wait for
    something not to happen) would poll eight times a second, a third of the server's CPU time."""
    with without_collections():
        from prefect.server.api import background_workers

        worker = background_workers.Worker  # type: ignore[attr-defined]
        background_workers.Worker = partial(  # type: ignore[misc,assignment,attr-defined]
            worker, minimum_check_interval=CHECK_EVERY, scheduling_resolution=CHECK_EVERY
        )
        from prefect.server.api.server import create_app

    return _guard(create_app())


def check_schemas_once() -> None:
    """Let Prefect check a definition within a schema once.

    The schema of a flow with all parameters has 5,000 parts in 200 definitions, and its check takes a second. Prefect
    checks it twice for each deployment, and again for each run and automation; all flows have the same definitions.
    """
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
    from prefect.utilities.schema_tools.validation import _VALIDATOR

    for validator in (Draft202012Validator, _VALIDATOR):
        validator.check_schema = staticmethod(_checked_once(validator.check_schema))  # type: ignore[method-assign,assignment]


def _checked_once(check: Callable[..., None]) -> Callable[..., None]:
    from jsonschema import SchemaError  # type: ignore[import-untyped]

    accepted = set[tuple[str, ...]]()

    def check_once(schema: Any, **options: Any) -> None:
        parts = [schema]
        if isinstance(schema, Mapping) and isinstance(definitions := schema.get("definitions"), Mapping):
            parts = [{**schema, "definitions": {}}, *definitions.values()]
        for part in parts:
            key = (digest(part), *options)
            if key in accepted:
                continue
            try:
                check(part, **options)
            except SchemaError:
                if part is not schema:
                    check(schema, **options)  # whose error names the place in the whole
                raise
            accepted.add(key)

    return check_once


def load_automations_later() -> None:
    """Let Prefect load a changed automation without waiting for it.

    Prefect up to 3.8.5 lets the server's event loop wait until a thread has loaded it. The thread waits for a lock, and
    when a task of the event loop holds that, the server never answers again (PrefectHQ/prefect#23055). Later versions
    do what this does, but need a FastAPI that vLLM 0.32 refuses.
    """
    from prefect.server.events.models import automations
    from prefect.utilities.asyncutils import create_task

    in_a_thread = automations.run_coro_as_sync  # type: ignore[attr-defined]

    def load(changed: Coroutine[Any, Any, None]) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            in_a_thread(changed)
        else:
            create_task(changed)

    automations.run_coro_as_sync = load  # type: ignore[attr-defined,assignment]


def _guard(server: Any) -> Any:
    check_schemas_once()
    load_automations_later()
    origins = [origin.strip().lower() for origin in os.environ.get(ORIGINS, "").split(",")]
    # Around the application and not a middleware of it: Prefect's services ask it in memory, under another host name.
    return OwnRequests(server, [origin for origin in origins if origin])


SLOTS = "mathrl-slots"
SECONDS_BEFORE_NOTICE = 1


@contextmanager
def slot(show: Callable[[str], None]) -> Iterator[None]:
    """Wait for a free slot (with a notice) and hold it; the slot of a flow that dies is free when its lease ends."""
    from prefect.concurrency.sync import concurrency  # 1 s, and the command line needs the name alone

    with ExitStack() as held:
        if os.environ.get("PREFECT_API_URL") and not Variable.OWN_SERVER.get():
            try:
                held.enter_context(concurrency(SLOTS, timeout_seconds=SECONDS_BEFORE_NOTICE))
            except TimeoutError:
                show(f"all slots of {SLOTS} are taken: waiting\n")
                held.enter_context(concurrency(SLOTS))
        yield


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
    """Start a server for one command unless PREFECT_API_URL or a Prefect profile names one; yield a function that waits
    for it.

    Prefect would start one itself, but it first imports its server into the flow's process and takes 3.4 s each time.
    Here the server starts while the flow is imported, and ends with the process that started it, however that ends.

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
