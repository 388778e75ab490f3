"""What the tests of the grader share."""

import time
from collections.abc import Callable

import psutil
import pytest

from mathrl.grading.engine import default_engine


@pytest.fixture(scope="session")
def processor_seconds() -> Callable[[], float]:
    """Processor time of this thread and of the symbolic engine, which no other process on the machine changes."""

    def spent() -> float:
        process = default_engine()._process
        seconds = time.thread_time()
        if process is not None:
            keeper = psutil.Process(process.pid)
            for each in (keeper, *keeper.children()):  # the keeper's times have those of the workers that it has ended
                times = each.cpu_times()
                seconds += times.user + times.system + times.children_user + times.children_system
        return seconds

    return spent
