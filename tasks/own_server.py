"""The Prefect server of one command, for uvicorn: `--factory tasks.own_server:app`."""

from datetime import timedelta
from functools import partial
from typing import Any

from mathrl.core.imports import without_collections

CHECK_EVERY = timedelta(seconds=5)


def app() -> Any:
    """Prefect's server with fewer polls: its background work (removing old events, triggers that wait for
    something not to happen) would poll eight times a second, a third of the server's CPU time."""
    with without_collections():
        from prefect.server.api import background_workers

        background_workers.Worker = partial(  # type: ignore[misc,assignment]
            background_workers.Worker, minimum_check_interval=CHECK_EVERY, scheduling_resolution=CHECK_EVERY
        )
        from prefect.server.api.server import create_app

    return create_app()
