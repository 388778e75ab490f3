"""Several processes for one stage: the first is rank 0 and starts the other ranks as copies of itself.

Without torch, so that a stage starts its processes before anything heavy is imported. Under torchrun or
DeepSpeed's launcher (WORLD_SIZE is set) nothing is started: the launcher has started all ranks.
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
ONE_MACHINE = 8  # more processes are meant for several machines
DRIVER = Path("/proc/driver/nvidia/gpus")
GRACE_SECONDS = 10.0

_children: list[subprocess.Popen[bytes]] = []
_failed: list[str] = []


def rendezvous() -> Path | None:
    """The folder through which the ranks exchange files, if `launch_ranks` made one; None under another launcher."""
    folder = Variable.RENDEZVOUS.get()
    return Path(folder) if folder else None


def launch_ranks(processes: int, device: str = "auto", *, fewer: bool = False) -> None:
    """Start ranks 1 to processes-1 as `python -m <this module> <argv>`; this process becomes rank 0.

    The other ranks die with rank 0, whatever ends it. When one of them dies first, rank 0 ends within ten
    seconds with exit status 1 and an error that names the rank. A no-op if WORLD_SIZE is set already.

    See `clamped` for `fewer`.
    """
    if "WORLD_SIZE" in os.environ:
        _die_with_parent()
        return
    processes = clamped(processes, device, fewer=fewer)
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
    """Raise if another rank has died, so that the error names that rank and not the broken connection.

    The connection may break before the death is noticed: wait up to `patience` seconds for that.

    Raises:
        UserError: a rank ended with an error.
    """
    deadline = time.monotonic() + patience
    while not _failed and time.monotonic() < deadline:
        time.sleep(0.02)
    if _failed:
        raise UserError(_failed[0])


def gather(value: Any, name: str, timeout: float = 3600.0) -> list[Any] | None:
    """The JSON-able `value` of every rank, in the order of ranks, at rank 0; None at the other ranks.

    Exchanged through files, without torch. `name` must be new at each call of a run.

    Raises:
        UserError: another rank died, or did not deliver within `timeout` seconds.
    """
    if world_size() == 1:
        return [value]
    folder = rendezvous() or _launcher_folder()
    write_text(folder / f"{name}.{rank()}.json", json.dumps(value))
    if rank() != 0:
        return None
    files = [folder / f"{name}.{sender}.json" for sender in range(world_size())]
    values = [_receive(file, sender, timeout) for sender, file in enumerate(files)]
    for file in files:
        file.unlink()
    return values


def from_rank_0(make: Callable[[], Any], name: str, timeout: float = 3600.0) -> Any:
    """The JSON-able result of `make`, called at rank 0 alone, at every rank. `name` must be new at each call.

    Raises:
        UserError: another rank died, or rank 0 did not deliver within `timeout` seconds.
    """
    if world_size() == 1:
        return make()
    file = (rendezvous() or _launcher_folder()) / f"{name}.json"
    if rank() == 0:
        value = make()
        write_text(file, json.dumps(value))
        return value
    return _receive(file, 0, timeout)


def _receive(file: Path, sender: int, timeout: float) -> Any:
    deadline = time.monotonic() + timeout
    while not file.exists():
        check_ranks()
        if time.monotonic() > deadline:
            raise UserError(f"rank {sender} did not deliver {file.name} within {timeout:.0f} s; see its output")
        time.sleep(0.01)
    return json.loads(file.read_text())


def clamped(processes: int, device: str, *, fewer: bool) -> int:
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
            "training.deepspeed.hostfile (with training.backend=deepspeed), start the stage with a launcher "
            "such as torchrun, or lower run.processes"
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
    """The exchange folder under another launcher: the processes of one machine have one parent."""
    shared = Variable.HOSTS_FOLDER.get()
    if shared:
        return Path(shared)
    local = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE") or world_size()
    if int(local) != world_size():
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
    """End with rank 0, which alone decides when to stop."""
    if rank() != 0:
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
    cause = f"signal {-status}" if status < 0 else f"exit status {status}"
    _failed.append(f"rank {number} of {world_size()} ended with {cause}; its last lines of output are above")
    time.sleep(GRACE_SECONDS)  # for the main thread to stop by itself at its next exchange
    print(f"error: {_failed[0]}", file=sys.stderr, flush=True)
    os._exit(1)


def _end_children() -> None:
    """Rank 0 has finished: the other ranks get a second to end by themselves."""
    deadline = time.monotonic() + 1.0
    for child in _children:
        try:
            child.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
