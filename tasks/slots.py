"""How many flows may compute at a time: Prefect's global concurrency limit `mathrl-slots`.

A slot is a GPU, or on a machine without one a share of its cores. `mathrl ui` makes the limit; without a
server there is one flow, and nothing to limit.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from prefect.concurrency.sync import concurrency

SLOTS = "mathrl-slots"


@contextmanager
def slot() -> Iterator[None]:
    """Wait until a slot is free and hold it; a flow that dies gives it back when its lease ends."""
    if not os.environ.get("PREFECT_API_URL") or os.environ.get("MATHRL_OWN_SERVER"):
        yield
        return
    with concurrency(SLOTS, occupy=1):
        yield
