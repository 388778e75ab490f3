"""Worlds of gloo ranks on the CPU, forked from a process that has imported torch, for programs of tests.

`python -m tests.forked_ranks MODULE FOLDER RANKS [FOLDER RANKS …]` imports the module once and calls its `main(folder)`
at every rank of each world, one world after the other. The packages that the module names in BEFORE_FORKS are imported
too. What rank N prints goes to FOLDER/rank-N.log.
"""

import importlib
import multiprocessing
import os
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path

from mathrl.core.guard import die_with_parent


def in_ranks(world: int, work: Callable[[], None], logs: Path | None = None) -> None:
    """Call `work` at every rank of a world of forked processes; the first that fails ends the others."""
    assert threading.active_count() == 1, "a process with threads must not fork"
    with socket.socket() as held:  # no other program gets its port; rank 0 may listen there, with SO_REUSEADDR too
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        context, port = multiprocessing.get_context("fork"), held.getsockname()[1]
        ranks = [context.Process(target=_rank, args=(number, world, port, work, logs)) for number in range(world)]
        for process in ranks:
            process.start()
        running = {process.sentinel: process for process in ranks}
        while running:
            for sentinel in wait(list(running)):
                process = running.pop(sentinel)  # type: ignore[call-overload]
                process.join()
                if process.exitcode:
                    for other in running.values():
                        other.kill()
    assert [process.exitcode for process in ranks] == [0] * world


def _rank(number: int, world: int, port: int, work: Callable[[], None], logs: Path | None) -> None:
    die_with_parent()
    os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if logs is not None:
        log = os.open(logs / f"rank-{number}.log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
    if torch := sys.modules.get("torch"):
        # After a fork PyTorch makes its pool of threads anew, and aborts ("Invalid thread pool!") where two threads ask
        # for it at the same time. So it is made here, before there is a second thread.
        torch.set_num_threads(torch.get_num_threads())
    work()


def main(name: str, *worlds: str) -> None:
    module = importlib.import_module(name)
    for package in getattr(module, "BEFORE_FORKS", ()):
        importlib.import_module(package)
    for folder, world in zip(worlds[::2], worlds[1::2], strict=True):
        in_ranks(int(world), partial(module.main, Path(folder)), Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
