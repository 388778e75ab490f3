"""Prefect's server as mathrl starts it: `uvicorn --factory mathrl.tasks.prefect_server:app`, or `:app_of_a_command`;
and its slots, the number of flows that may compute at a time.

Prefect's own answers every web page that a browser shows (CORS `*`) under every host name, and has no setting for the
second. Whoever reaches it can run code, so requests of other pages are refused here. A slot is a GPU, or on a machine
without one a share of its cores. `mathrl ui` makes the global concurrency limit `mathrl-slots`; without a server there
is one flow, and nothing to limit.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

from mathrl.core.environment import Variable, without_collections
from mathrl.core.hashing import digest
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
    """Let Prefect accept a schema that it has accepted before: that of a flow with all parameters has 5,000 parts,
    whose check takes a second, and Prefect repeats it for each deployment, run and automation.
    """
    from prefect.utilities.schema_tools.validation import _VALIDATOR

    check, accepted = _VALIDATOR.check_schema, set[tuple[str, ...]]()

    def check_once(schema: Any, **options: Any) -> None:
        key = (digest(schema), *options)
        if key not in accepted:
            check(schema, **options)
            accepted.add(key)

    _VALIDATOR.check_schema = staticmethod(check_once)  # type: ignore[method-assign,assignment]


def _guard(server: Any) -> Any:
    check_schemas_once()
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
