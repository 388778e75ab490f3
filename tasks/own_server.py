"""Prefect's server of one command, for uvicorn: `--factory tasks.own_server:app`."""

from datetime import timedelta
from functools import partial
from typing import Any

CHECK_EVERY = timedelta(seconds=5)


def app() -> Any:
    """Prefect's own, less eager: for what it does beside answering (removing old events, triggers that wait
    for something not to happen) it would look eight times a second, which is a third of all it costs."""
    from prefect.server.api import background_workers

    background_workers.Worker = partial(  # type: ignore[misc,assignment]
        background_workers.Worker, minimum_check_interval=CHECK_EVERY, scheduling_resolution=CHECK_EVERY
    )
    from prefect.server.api.server import create_app

    return create_app()
