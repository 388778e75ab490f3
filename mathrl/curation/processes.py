"""Work on many rows by as many processes as there are cores, with the same results for any number of them."""

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import chain, islice
from multiprocessing import get_context, parent_process
from multiprocessing.context import ForkServerContext
from typing import Any, TypeVar

Shared = TypeVar("Shared")
Task = TypeVar("Task")
Result = TypeVar("Result")
FEWEST = 3  # with fewer tasks a second process costs more than it saves
_shared: list[Any] = []  # of a worker process: what all its tasks share


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(work: Callable[[Shared, Task], Result], shared: Shared, tasks: Iterable[Task]) -> Iterator[Result]:
    """`work(shared, task)` for every task, in their order.

    Few tasks wait at a time, so `tasks` may be a stream that does not fit into memory. An error in the stream is
    raised after the results of the tasks before it. `work` must be picklable; `shared` is sent to each process once.
    """
    stream = _catch_error(tasks)
    first = list(islice(stream, FEWEST))
    processes = cores()
    if processes == 1 or len(first) < FEWEST:
        for task, error in chain(first, stream):
            if error:
                raise error
            yield work(shared, task)
        return
    pool = ProcessPoolExecutor(processes, mp_context=_context(work), initializer=_start, initargs=(shared,))
    waiting: deque[Future[Result]] = deque()
    try:
        for task, error in chain(first, stream):
            if error:
                yield from (future.result() for future in waiting)
                raise error
            waiting.append(pool.submit(_do, work, task))
            if len(waiting) > processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _context(work: Callable[..., Any]) -> ForkServerContext:
    """Not fork: the stage has threads (MLflow, numpy), which a forked child would not have.

    The server imports what this program has imported of mathrl: each worker of each pool would take seconds for it.
    Not the program's own module, which Python runs again in every worker.
    """
    context = get_context("forkserver")
    program = getattr(sys.modules["__main__"], "__spec__", None)
    imported = [name for name in sys.modules if name.startswith("mathrl.") and name != (program and program.name)]
    context.set_forkserver_preload([work.__module__, *imported])
    return context


def _catch_error(tasks: Iterable[Task]) -> Iterator[tuple[Any, Exception | None]]:
    """The tasks, each without an error, and last the error with which they ended, if they did."""
    try:
        for task in tasks:
            yield task, None
    except Exception as error:
        yield None, error


def _start(shared: Any) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _shared[:] = [shared]


def _end_with_parent() -> None:
    """End this process when the one that started the pool is gone: it would wait for tasks for ever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _do(work: Callable[[Any, Any], Result], task: Any) -> Result:
    return work(_shared[0], task)
