"""What the tests of the grader share."""

import time
from collections.abc import Callable

import psutil
import pytest


@pytest.fixture(scope="session")
def processor_seconds() -> Callable[[], float]:
    """Processor time of this thread and of the symbolic engines, which no other process on the machine changes."""

    def measure() -> float:
        seconds = time.thread_time()
        for process in psutil.Process().children(recursive=True):  # with the workers that a keeper has ended
            times = process.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
        return seconds

    return measure
