"""The ranks of a stage on this machine: new processes, started and watched by torchrun's elastic agent.

The process that runs the stage becomes the agent, and keeps the stage's lock, record and clean-up. The agent asks CUDA
for the GPUs, and a fork of a process that has done so cannot use CUDA: ranks are spawned. On several machines the job
file of `mathrl launch` starts torchrun, which sets WORLD_SIZE; then nothing is started here.
"""

import logging
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from mathrl.core.environment import Variable, rank
from mathrl.core.errors import UserError
from mathrl.core.exit_status import EXIT_STOPPED
from mathrl.core.gpus import gpu_count
from mathrl.core.parent import die_with_parent
from mathrl.params.run import Run

SLOTS_PER_CORE = 4
ONE_MACHINE = 8  # more processes are meant for several machines
STOP_SECONDS = 10  # for the ranks to write a checkpoint and end, before they are killed
TAIL_LINES = 20


class RankFailed(SystemExit):
    """A rank above 0 failed, or any rank was killed: the stage's exit status, and a sentence that names the rank."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status)
        self.message = message


def run_ranks(processes: int, work: Callable[[], None], logs: Path) -> None:
    """Run `work` in new processes with ranks 0 to processes-1; returns when all have finished.

    `work` is pickled: a function that a module defines, or a `partial` of one. Rank 0 writes to this process's output,
    the others to files in `logs`. All ranks die with this process. When one ends with an error, the others are ended
    within ten seconds.

    Raises:
        RankFailed: a rank failed whose output is not on the terminal, or was killed.
        SystemExit: rank 0 ended with this status, and has said why; EXIT_STOPPED after SIGTERM.
        KeyboardInterrupt: after SIGINT, when the ranks have ended.
    """
    shutil.rmtree(logs, ignore_errors=True)  # of an earlier attempt
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    # torch: only here, so that stages without ranks start at once.
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, launch_agent

    for name in list(logging.root.manager.loggerDict):
        if name.startswith(("torch.distributed.elastic", "torch.multiprocessing")):  # this file says what happened
            logging.getLogger(name).setLevel(logging.CRITICAL)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id="ranks",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        start_method="spawn",
        shutdown_timeout=STOP_SECONDS,
        logs_specs=DefaultLogsSpecs(str(logs), redirects=dict.fromkeys(range(1, processes), Std.ALL)),
    )
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        launch_agent(config, _run_rank, [work])
    except SignalException as stopped:
        if stopped.sigval == signal.SIGINT:
            raise KeyboardInterrupt from None
        sys.exit(EXIT_STOPPED)
    except ChildFailedError as failed:
        number, failure = failed.get_first_failure()
        status = failure.exitcode
        if status == EXIT_STOPPED or (number == 0 and status > 0):
            sys.exit(status)
        cause = f"signal {-status}" if status < 0 else f"exit status {status}"
        message = f"rank {number} of {processes} ended with {cause}"
        if number:
            (log,) = logs.glob(f"*/*/{number}/stderr.log")
            print(*log.read_text(errors="replace").splitlines()[-TAIL_LINES:], sep="\n", file=sys.stderr)
            message += f"; its output is in {log}"
        print(f"error: {message}", file=sys.stderr, flush=True)
        raise RankFailed(status if status > 0 else 128 - status, message) from None
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _run_rank(work: Callable[[], None]) -> None:
    """The life of a rank."""
    die_with_parent()
    agent = multiprocessing.parent_process()
    if agent is None or os.getppid() != agent.pid:  # it died while this process started
        os._exit(EXIT_STOPPED)
    receive_signals()
    try:
        work()
    except Exception:
        traceback.print_exc()
        sys.exit(1)


def receive_signals() -> None:
    """Rank 0 decides when to stop: a signal ends it with EXIT_STOPPED (trainers put a gentler handler over this one);
    the others go on until it ends, for at most `STOP_SECONDS`."""

    def leave(*_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):  # a terminal and the agent both send it
            signal.signal(number, signal.SIG_IGN)
        if rank() == 0:
            sys.exit(EXIT_STOPPED)
        timer = threading.Timer(STOP_SECONDS, os._exit, [EXIT_STOPPED])
        timer.daemon = True
        timer.start()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)


def process_count(run: Run, *, fewer: bool) -> int:
    """How many ranks to start here: run.processes, at most the slots of this machine, with a notice if it was lowered.

    None are started under torchrun, which has started them. More than `ONE_MACHINE` are meant for several machines;
    only a stage that allows `fewer` then runs on one.

    Raises:
        UserError: the processes are meant for several machines, and the stage does not allow fewer.
    """
    if Variable.WORLD_SIZE in os.environ:
        return 1
    slots, hardware = local_slots(run.device)
    if run.processes <= slots:
        return run.processes
    if run.processes > ONE_MACHINE and not fewer:
        raise UserError(
            f"run.processes={run.processes} but this machine has {hardware}: run the stage on several with the job "
            "file of `mathrl launch` (by torchrun), or lower run.processes"
        )
    using = f"{slots} process" if slots == 1 else f"{slots} processes"
    print(f"run.processes={run.processes} but this machine has {hardware}; using {using}", file=sys.stderr)
    return slots


def local_slots(device: str) -> tuple[int, str]:
    """The number of processes that a stage may start on this machine, and the hardware that sets it.

    One process per GPU (see `gpu_count`), or `SLOTS_PER_CORE` per core without a GPU.
    """
    gpus = 0 if device == "cpu" else gpu_count()
    if gpus:
        return gpus, f"{gpus} GPU{'s' if gpus > 1 else ''}"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return SLOTS_PER_CORE * cores, f"{cores} cores and no GPU"
