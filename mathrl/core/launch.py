"""Several processes for one stage: the stage's own is rank 0 and starts the others as copies of itself.

Without torch, so that a stage decides on its processes before anything heavy is imported. Under torchrun or
the deepspeed launcher (WORLD_SIZE is set) nothing is started: the launcher did it.
"""

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mathrl.core.environment import Variable
from mathrl.core.environment import rank as rank
from mathrl.core.environment import world_size as world_size
from mathrl.core.errors import UserError
from mathrl.core.files import write_text
from mathrl.core.parent import die_with_parent

SLOTS_PER_CORE = 4
ONE_MACHINE = 8  # more processes than that are meant for several
DRIVER = Path("/proc/driver/nvidia/gpus")
GRACE_SECONDS = 10.0

_children: list[subprocess.Popen[bytes]] = []
_failed: list[str] = []


def rendezvous() -> Path | None:
    """The folder that the ranks share, where `launch_ranks` made one; None under another launcher."""
    folder = Variable.RENDEZVOUS.get()
    return Path(folder) if folder else None


def launch_ranks(processes: int, device: str = "auto", *, fewer: bool = False) -> None:
    """Start ranks 1 to processes-1 as `python -m <this module> <argv>`; this process becomes rank 0.

    A child dies when rank 0 does, whatever ends it. When a child dies first, rank 0 ends within ten seconds
    with exit status 1 and a sentence that names the rank. A no-op where WORLD_SIZE is set already.

    See `fitting` for `fewer`.
    """
    if "WORLD_SIZE" in os.environ:
        _die_with_parent()
        return
    processes = fitting(processes, device, fewer=fewer)
    if processes <= 1:
        return
    folder = Path(tempfile.mkdtemp(prefix="mathrl-ranks-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    shared = {
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        Variable.RENDEZVOUS: str(folder),
        Variable.PARENT: str(os.getpid()),
    }
    os.environ.update(shared)
    main = sys.modules["__main__"].__spec__
    command = [sys.executable, "-m", main.name] if main is not None else [sys.executable, sys.argv[0]]
    for number in range(1, processes):
        child_environment = os.environ | {"RANK": str(number), "LOCAL_RANK": str(number)}
        _children.append(subprocess.Popen([*command, *sys.argv[1:]], env=child_environment))
    os.environ.update({"RANK": "0", "LOCAL_RANK": "0"})
    atexit.register(_end_children)
    for number, child in enumerate(_children, start=1):
        threading.Thread(target=_watch, args=(number, child), daemon=True).start()


def check_ranks(patience: float = 0.0) -> None:
    """Raise where another rank has died, so that its death is named and not the broken connection.

    The connection may break before the death is noticed: `patience` seconds are waited for that.

    Raises:
        UserError: a rank ended with an error.
    """
    deadline = time.monotonic() + patience
    while not _failed and time.monotonic() < deadline:
        time.sleep(0.02)
    if _failed:
        raise UserError(_failed[0])


def gather(value: Any, name: str, timeout: float = 3600.0) -> list[Any] | None:
    """The JSON-able `value` of every rank, in the order of ranks, at rank 0; None at the others.

    Through files, without torch. `name` must be new at each call of a run.

    Raises:
        UserError: another rank died, or did not deliver within `timeout` seconds.
    """
    if world_size() == 1:
        return [value]
    folder = rendezvous() or _launcher_folder()
    mine = folder / f"{name}.{rank()}.json"
    write_text(mine, json.dumps(value))
    if rank() != 0:
        return None
    values, deadline = [], time.monotonic() + timeout
    for number in range(world_size()):
        file = folder / f"{name}.{number}.json"
        while not file.exists():
            check_ranks()
            if time.monotonic() > deadline:
                raise UserError(f"rank {number} did not deliver {name} in {timeout:.0f} s; see its output")
            time.sleep(0.01)
        values.append(json.loads(file.read_text()))
        file.unlink()
    return values


def from_rank_0(make: Callable[[], Any], name: str, timeout: float = 3600.0) -> Any:
    """What `make` gives at rank 0, at every rank; JSON-able, through a file. `name` must be new at each call.

    Raises:
        UserError: another rank died, or rank 0 was not there within `timeout` seconds.
    """
    if world_size() == 1:
        return make()
    file = (rendezvous() or _launcher_folder()) / f"{name}.json"
    if rank() == 0:
        value = make()
        write_text(file, json.dumps(value))
        return value
    deadline = time.monotonic() + timeout
    while not file.exists():
        check_ranks()
        if time.monotonic() > deadline:
            raise UserError(f"rank 0 did not deliver {name} in {timeout:.0f} s; see its output")
        time.sleep(0.01)
    return json.loads(file.read_text())


def fitting(processes: int, device: str, *, fewer: bool) -> int:
    """Clamp `processes` (`run.processes`) to the slots of this machine, with a notice if it was lowered.

    More than `ONE_MACHINE` are meant for several machines; only a stage that allows `fewer` then runs on one.

    Raises:
        UserError: the processes are meant for several machines, and the stage does not allow fewer.
    """
    slots, hardware = local_slots(device)
    if processes <= slots:
        return processes
    if processes > ONE_MACHINE and not fewer:
        raise UserError(
            f"run.processes={processes} but this machine has {hardware}: name the machines in "
            "training.deepspeed.hostfile (with training.backend deepspeed), start the stage by a launcher of "
            "your own such as torchrun, or lower run.processes"
        )
    using = f"{slots} process" if slots == 1 else f"{slots} processes"
    print(f"run.processes={processes} but this machine has {hardware}; using {using}", file=sys.stderr)
    return slots


def local_slots(device: str) -> tuple[int, str]:
    """The number of processes that a stage may start on this machine, and the hardware that sets it.

    One process per GPU, or `SLOTS_PER_CORE` per core without a GPU. GPUs are counted without torch: by
    CUDA_VISIBLE_DEVICES, or by what NVIDIA's driver lists.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    installed = len(list(DRIVER.glob("*")))
    gpus = installed if visible is None else len([gpu for gpu in visible.split(",") if gpu.strip()])
    if device != "cpu" and installed and gpus:
        return gpus, f"{gpus} GPU{'s' if gpus > 1 else ''}"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return SLOTS_PER_CORE * cores, f"{cores} cores and no GPU"


def _launcher_folder() -> Path:
    """Where the ranks of another launcher meet: the processes of one machine have one parent."""
    shared = Variable.HOSTS_FOLDER.get()
    if shared:
        return Path(shared)
    here = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE") or world_size()
    if int(here) != world_size():
        raise UserError(
            "this stage exchanges files between its processes, which are on several machines: start it with "
            f"training.deepspeed.hostfile, or set {Variable.HOSTS_FOLDER} at every process to a new folder that all "
            "of them share"
        )
    parent = os.getppid()
    stat = Path(f"/proc/{parent}/stat")
    started = stat.read_text().rpartition(")")[2].split()[19] if stat.exists() else "0"
    folder = Path(tempfile.gettempdir()) / f"mathrl-ranks-{os.getuid()}-{parent}-{started}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _die_with_parent() -> None:
    """Have the kernel kill this process when the one that started it dies (Linux)."""
    if rank() != 0:
        # Rank 0 alone decides when to stop; the others follow it or die with it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    parent = Variable.PARENT.get()
    if not parent:
        return
    die_with_parent()
    if os.getppid() != int(parent):  # it died before the request was made
        os._exit(1)


def _watch(number: int, child: subprocess.Popen[bytes]) -> None:
    status = child.wait()
    if status == 0:
        return
    how = f"signal {-status}" if status < 0 else f"exit status {status}"
    _failed.append(f"rank {number} of {world_size()} ended with {how}; its last lines are above")
    time.sleep(GRACE_SECONDS)  # for the main thread to stop by itself at its next exchange
    print(f"error: {_failed[0]}", file=sys.stderr, flush=True)
    os._exit(1)


def _end_children() -> None:
    """Rank 0 is through: the others have nothing left to do, and get a moment to end by themselves."""
    deadline = time.monotonic() + 1.0
    for child in _children:
        try:
            child.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
