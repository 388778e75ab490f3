"""What the tests of the grader share."""

import time
from collections.abc import Callable
from contextlib import suppress

import psutil
import pytest

from mathrl.grading import warm_up


@pytest.fixture(scope="session")
def keepers() -> Callable[[], list[psutil.Process]]:
    """The processes of this process's symbolic engines: it has other children too, which serve tests of other rooms."""

    def find() -> list[psutil.Process]:
        found = []
        for child in psutil.Process().children():
            with suppress(psutil.NoSuchProcess):  # it has ended by now
                is_engine = any("grading.engine_process" in word for word in child.cmdline())
                found += [child] if is_engine and child.status() != psutil.STATUS_ZOMBIE else []
        return found

    return find


@pytest.fixture(scope="session")
def processor_seconds(keepers: Callable[[], list[psutil.Process]]) -> Callable[[], float]:
    """Processor time of this thread and of the symbolic engines, which no other process on the machine changes."""

    def measure() -> float:
        assert warm_up(), "its start would be counted"
        seconds = time.thread_time()
        for keeper in keepers():
            for process in (keeper, *keeper.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()  # with those of the workers that have ended
                    seconds += times.user + times.system + times.children_user + times.children_system
        return seconds

    return measure
