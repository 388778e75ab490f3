"""An RL run as a fork of a process that has a trainer's imports: these take longer than the steps of a short trial.

The forks are those of Python's `multiprocessing` (start method forkserver). The start method is spawn, which imports
everything again, with a GPU (torch reads its allocator's settings when it is imported), elsewhere than on Linux, and
when the installed code has changed since the first run.
"""

import multiprocessing
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing.context import ForkServerProcess, SpawnProcess
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import DupFd
from typing import IO, Any

from mathrl.core.code_values import stage_code
from mathrl.core.environment import wait_without_spinning
from mathrl.core.gpus import gpu_count
from mathrl.core.guard import SIGINT_SECONDS, SIGTERM_SECONDS

# What the stage rl imports, no module of which starts a thread, which a fork would not have; and what the program of a
# sweep's worker does, which `multiprocessing` imports once more in each process. Neither program itself: one that was
# imported before it is run prints a warning.
PRELOADED = [
    "mathrl.stages.training_stage",
    "mathrl.stages.command",
    "mathrl.trainers.rl",
    "mathrl.models.base",
    "matplotlib.figure",
    "mathrl.sweeps.report",
    "mathrl.sweeps.trial",
]


class _Inherited:
    """A file that the new process has as an open descriptor."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return _descriptor, (DupFd(self.file.fileno()),)


def _descriptor(inherited: Any) -> int:
    return int(inherited.detach())


def start_run(words: Sequence[str], environment: Mapping[str, str], log: IO[bytes], lock: IO[bytes]) -> BaseProcess:
    """Start `python -m mathrl.stages.rl WORDS` in a process group of its own, with its output in `log`.

    It holds `lock` as long as it lives. When this process ends, it is ended as `mathrl.core.guard` ends a command.
    """
    wait_without_spinning()  # before the process of the imports, of which torch is one
    if _may_fork():
        multiprocessing.set_forkserver_preload(PRELOADED)
        process: type[ForkServerProcess | SpawnProcess] = ForkServerProcess
    else:
        process = SpawnProcess
    run = process(target=_run, args=(list(words), dict(environment), _Inherited(log), _Inherited(lock)))
    run.start()
    return run


def _may_fork() -> bool:
    return sys.platform == "linux" and not gpu_count() and _code_at_start() == _installed_code()


@cache
def _code_at_start() -> tuple[str, str]:
    return _installed_code()


def _installed_code() -> tuple[str, str]:
    code = stage_code("rl")
    return code["mathrl"], code["value"]


def _run(words: list[str], environment: dict[str, str], log: int, lock: int) -> None:
    os.setsid()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.set_inheritable(lock, True)  # the ranks that it starts hold the lock too
    os.environ.clear()
    os.environ.update(environment)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.argv[1:] = words
    # Curation may have started the server of forks, which then has all that its program had imported.
    sys.modules.pop("mathrl.stages.rl", None)
    runpy.run_module("mathrl.stages.rl", run_name="__main__", alter_sys=True)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    for number, seconds in ((signal.SIGINT, SIGINT_SECONDS), (signal.SIGTERM, SIGTERM_SECONDS), (signal.SIGKILL, 0.0)):
        os.killpg(0, number)
        time.sleep(seconds)
