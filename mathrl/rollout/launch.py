"""The ranks of a stage or an evaluation on this machine: forks, started and watched by torch's elastic multiprocessing.

The process that runs the stage imports torch once, for all ranks (without a GPU transformers too), and keeps the
stage's lock, record and clean-up. It never asks CUDA for anything: a fork of a process that has done so cannot use
CUDA. torchrun's agent does ask, and its store listens on every interface; therefore the ranks are started below the
agent, and meet on loopback (below).
On several machines the job file of `mathrl launch` starts torchrun, which sets WORLD_SIZE; nothing is started here.
"""

import logging
import os
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from mathrl.core.environment import Variable, named_servers, rank
from mathrl.core.errors import EXIT_STOPPED, UserError
from mathrl.core.gpus import gpu_count
from mathrl.core.guard import die_with_parent
from mathrl.core.paths import is_loopback
from mathrl.params import Params
from mathrl.params.run import Run
from mathrl.params.schema import READS, hands_over
from mathrl.params.training import Verl

SLOTS_PER_CORE = 4
ONE_MACHINE = 8  # more processes are meant for several machines
LOOPBACK = "127.0.0.1"
STOP_SECONDS = 10  # for the ranks to write a checkpoint and end, before they are killed
LAST_SECONDS = 1  # for a rank to end after rank 0
KILL_SECONDS = 30  # after which torch kills the ranks that do not end when one has failed
STOPPING = (signal.SIGINT, signal.SIGTERM)
TAIL_LINES = 20


class RankFailed(SystemExit):
    """A rank above 0 failed, or any rank was killed: the stage's exit status, and a sentence that names the rank."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status)
        self.message = message


def run_ranks(processes: int, work: Callable[[], None], logs: Path, *, import_models: bool = True) -> None:
    """Run `work` in forked processes with ranks 0 to processes-1; returns when all have finished.

    Rank 0 writes to this process's output, the others to files in `logs`. All ranks die with this process. When one
    ends with an error, the others are ended within ten seconds. With `import_models` this process imports transformers
    for all; TRL's ranks need one of their own, with accelerate.

    Raises:
        RankFailed: a rank failed whose output is not on the terminal, or was killed.
        SystemExit: rank 0 ended with this status, and has said why; EXIT_STOPPED after SIGTERM.
        KeyboardInterrupt: after SIGINT, when the ranks have ended.
    """
    shutil.rmtree(logs, ignore_errors=True)  # of an earlier attempt
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    # torch: only here, so that stages without ranks start at once.
    from torch.distributed import TCPStore  # type: ignore[attr-defined]
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std, start_processes

    if import_models and not gpu_count():  # then nothing that it imports can ask CUDA
        import mathrl.models.transformers_import  # noqa: F401  # two seconds, once for all ranks

    for name in list(logging.root.manager.loggerDict):
        if name.startswith(("torch.distributed.elastic", "torch.multiprocessing")):  # this file says what happened
            logging.getLogger(name).setLevel(logging.CRITICAL)
    handlers = {number: signal.getsignal(number) for number in STOPPING}
    listening = socket.create_server((LOOPBACK, 0), backlog=2 * processes)
    port = listening.getsockname()[1]
    try:
        ranks = start_processes(
            "rank",
            _run_rank,
            args={number: (work, os.getpid(), listening) for number in range(processes)},
            envs={number: _environment(number, processes, port) for number in range(processes)},
            logs_specs=DefaultLogsSpecs(str(logs), redirects=dict.fromkeys(range(1, processes), Std.ALL)),
            start_method="fork",
        )
        try:
            # After the last fork, which would copy locks of the store's threads as held. Ranks that are earlier wait.
            store = TCPStore(
                LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
            )
            looked = time.monotonic()
            while (result := ranks.wait(timeout=0)) is None:
                time.sleep(0.1)
                looked = time.monotonic()
            killed_by_torch = time.monotonic() - looked > KILL_SECONDS
            del store
        except BaseException as error:
            sent = getattr(error, "sigval", signal.SIGTERM)
            forks = ranks._pc.processes  # type: ignore[attr-defined]
            for process in forks:
                if process.is_alive():
                    os.kill(process.pid, sent)
            forks[0].join(STOP_SECONDS)  # its checkpoint may need the others; then nothing keeps them
            ranks.close(sent, LAST_SECONDS)
            raise
    except SignalException as stopped:
        if stopped.sigval == signal.SIGINT:
            raise KeyboardInterrupt from None
        sys.exit(EXIT_STOPPED)
    finally:
        listening.close()
        for stopping, handler in handlers.items():
            signal.signal(stopping, handler)
    if result.failures:
        ((number, failure),) = result.failures.items()
        status = failure.exitcode
        if status > 0 and status != EXIT_STOPPED and not killed_by_torch:
            # Of several that ended between two looks torch names the lowest: it may have failed for want of another.
            endings = [process.exitcode for process in ranks._pc.processes]  # type: ignore[attr-defined]
            if -signal.SIGKILL in endings:
                number, status = endings.index(-signal.SIGKILL), -signal.SIGKILL
        _fail(number, status, processes, logs)


def _environment(number: int, processes: int, port: int) -> dict[str, str]:
    """What `init_process_group` reads at a rank, as torchrun sets it."""
    return {
        Variable.RANK: str(number),
        Variable.LOCAL_RANK: str(number),
        Variable.WORLD_SIZE: str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RUN_ID": "ranks",
    }


def _fail(number: int, status: int, processes: int, logs: Path) -> NoReturn:
    """End as rank `number` has, the first that failed, with a sentence where the terminal does not show why."""
    if status == EXIT_STOPPED or (number == 0 and status > 0):
        sys.exit(status)
    cause = f"signal {-status}" if status < 0 else f"exit status {status}"
    message = f"rank {number} of {processes} ended with {cause}"
    if number:
        (log,) = logs.glob(f"*/*/{number}/stderr.log")
        print(*log.read_text(errors="replace").splitlines()[-TAIL_LINES:], sep="\n", file=sys.stderr)
        message += f"; its output is in {log}"
    print(f"error: {message}", file=sys.stderr, flush=True)
    raise RankFailed(status if status > 0 else 128 - status, message)


def _run_rank(work: Callable[[], None], parent: int, listening: socket.socket) -> None:
    """The life of a rank."""
    die_with_parent()
    if os.getppid() != parent:  # it died before that
        os._exit(EXIT_STOPPED)
    listening.close()
    for number in (signal.SIGHUP, signal.SIGQUIT):  # torch's handlers, inherited by the fork
        signal.signal(number, signal.SIG_DFL)
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
        for number in STOPPING:  # a terminal and the agent both send it
            signal.signal(number, signal.SIG_IGN)
        if rank() == 0:
            sys.exit(EXIT_STOPPED)
        timer = threading.Timer(STOP_SECONDS, os._exit, [EXIT_STOPPED])
        timer.daemon = True
        timer.start()

    for number in STOPPING:
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


def can_fork_ranks() -> bool:
    """Whether this process can start ranks: not once it has used CUDA, nor in a notebook, whose output is no file."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return False
    try:
        return sys.stdout.fileno() >= 0 and sys.stderr.fileno() >= 0
    except (AttributeError, OSError, ValueError):
        return False


def local_slots(device: str) -> tuple[int, str]:
    """The number of processes that a stage may start on this machine, and the hardware that sets it.

    One process per GPU (see `gpu_count`), or `SLOTS_PER_CORE` per core without a GPU.
    """
    gpus = 0 if device == "cpu" else gpu_count()
    if gpus:
        return gpus, f"{gpus} GPU{'s' if gpus > 1 else ''}"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return SLOTS_PER_CORE * cores, f"{cores} cores and no GPU"


GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"


def loopback_variables(stage: str, params: Params, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of gloo and NCCL that keep the ranks of a stage on loopback; those that a person has set stay.

    None if ranks are on several machines. Rank 0 sends weights to vLLM's servers by NCCL as well: with servers on
    other machines it chooses its network itself.
    """
    loopbacks = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    if not loopbacks or not _on_this_machine(stage, params, environment):
        return {}
    names = [GLOO] if _samples_elsewhere(stage, params, environment) else [GLOO, NCCL]
    return {name: loopbacks[0] for name in names if name not in environment}


def listen_on_loopback(stage: str, params: Params) -> None:
    """Set `loopback_variables` for this process and all that it starts: ranks, vLLM's servers, verl with Ray."""
    os.environ |= loopback_variables(stage, params, os.environ)


def _on_this_machine(stage: str, params: Params, environment: Mapping[str, str]) -> bool:
    engine = params.rl.engine if hands_over(stage, params) else None
    if isinstance(engine, Verl):
        return engine.nodes == 1 and engine.ray_address is None
    ranks = environment.get(Variable.WORLD_SIZE)  # of torchrun, or of no one
    return ranks is None or ranks == environment.get("LOCAL_WORLD_SIZE")


def _samples_elsewhere(stage: str, params: Params, environment: Mapping[str, str]) -> bool:
    if "rollout" not in READS[stage] or params.rollout.engine != "vllm_server":
        return False
    urls = named_servers(params.rollout.servers.urls, environment)
    return not all(is_loopback(urlsplit(url).hostname or "") for url in urls)
