"""What the tests of the grader share."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from mathrl.grading import warm_up


def children(parent: int) -> Iterator[psutil.Process]:
    """Its children as Linux lists them: psutil looks at every process of the machine."""
    for file in Path(f"/proc/{parent}/task").glob("*/children"):
        for number in file.read_text().split():
            with suppress(psutil.NoSuchProcess):  # it has ended by now
                yield psutil.Process(int(number))


@pytest.fixture(scope="session")
def keepers() -> Callable[[], list[psutil.Process]]:
    """The processes of this process's symbolic engines: it has other children too, which serve tests of other rooms."""

    def find() -> list[psutil.Process]:
        found = []
        for child in children(psutil.Process().pid):
            with suppress(psutil.NoSuchProcess):
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
            for process in (keeper, *children(keeper.pid)):
                with suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()  # with those of the workers that have ended
                    seconds += times.user + times.system + times.children_user + times.children_system
        return seconds

    return measure
