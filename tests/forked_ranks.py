"""Worlds of ranks forked one after the other from a process that has imported torch: for programs of tests."""

import multiprocessing
import os
import socket
from collections.abc import Callable


def in_ranks(world: int, work: Callable[[], None]) -> None:
    """Call `work` at every rank of a world of forked processes."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_rank, args=(number, world, port, work)) for number in range(world)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * world


def _rank(number: int, world: int, port: int, work: Callable[[], None]) -> None:
    os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    work()
