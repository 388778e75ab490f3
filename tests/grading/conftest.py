"""What the tests of the grader share."""

import time
from collections.abc import Callable

import psutil
import pytest


@pytest.fixture(scope="session")
def keepers() -> Callable[[], list[psutil.Process]]:
    """The processes of this process's symbolic engines: it has other children too, which serve tests of other rooms."""

    def find() -> list[psutil.Process]:
        children = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
        return [child for child in children if any("grading.engine_process" in word for word in child.cmdline())]

    return find


@pytest.fixture(scope="session")
def processor_seconds(keepers: Callable[[], list[psutil.Process]]) -> Callable[[], float]:
    """Processor time of this thread and of the symbolic engines, which no other process on the machine changes."""

    def measure() -> float:
        seconds = time.thread_time()
        for keeper in keepers():
            for process in (keeper, *keeper.children(recursive=True)):
                times = process.cpu_times()  # with those of the workers that have ended
                seconds += times.user + times.system + times.children_user + times.children_system
        return seconds

    return measure
