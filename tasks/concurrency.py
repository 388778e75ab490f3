"""How many flows may compute at a time: Prefect's global concurrency limit `mathrl-slots`.

A slot is a GPU, or on a machine without one a share of its cores. `mathrl ui` makes the limit; without a
server there is one flow, and nothing to limit.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from mathrl.core.environment import Variable

SLOTS = "mathrl-slots"
SILENT_SECONDS = 1


@contextmanager
def slot(show: Callable[[str], None]) -> Iterator[None]:
    """Wait until a slot is free, which is said, and hold it; a flow that dies gives it back when its lease
    ends."""
    from prefect.concurrency.sync import concurrency  # 1 s, and the command line needs the name alone

    with ExitStack() as held:
        if os.environ.get("PREFECT_API_URL") and not Variable.OWN_SERVER.get():
            try:
                held.enter_context(concurrency(SLOTS, timeout_seconds=SILENT_SECONDS))
            except TimeoutError:
                show(f"all slots of {SLOTS} are taken: waiting\n")
                held.enter_context(concurrency(SLOTS))
        yield
