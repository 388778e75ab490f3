"""The number of flows that may compute at a time: Prefect's global concurrency limit `mathrl-slots`.

A slot is a GPU, or on a machine without one a share of its cores. `mathrl ui` makes the limit; without a
server there is one flow, and nothing to limit.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from mathrl.core.environment import Variable

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
