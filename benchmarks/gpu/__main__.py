"""Everything worth asking a GPU, in parts of at most nine minutes that need only what is installed.

    make gpu                                  # all parts, then docs/gpu.md's tables
    python -m benchmarks.gpu                  # the same, without touching docs/gpu.md
    python -m benchmarks.gpu correctness update-0.5B --out results
    python -m benchmarks.gpu --toy            # the same programs at sizes for a CPU (two minutes)
    python -m benchmarks.gpu --page results   # write docs/gpu.md's tables from results

Correctness comes first. Each part is a process of its own: what it returns is in OUT/PART.json, what it printed in
OUT/PART.log. A part whose packages are missing is skipped and says so. Python 3.12, torch 2.11 and transformers
5.17 are enough for most; packages for a machine without a network are carried with `make gpu-packages`.
"""

import argparse
import importlib
import importlib.util
import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CARRIED = ROOT / "build/gpu-packages"
LIMIT = 540  # seconds


@dataclass(frozen=True)
class Part:
    """A module of this folder and the arguments of its `main`; `needs` are packages that it cannot do without."""

    module: str
    options: dict[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()


PARTS = {
    "machine": Part("machine"),
    "correctness": Part("correctness"),
    "zero": Part("zero", needs=("deepspeed",)),
    "update-0.5B": Part("update", {"shape": "0.5B"}),
    "update-1.5B": Part("update", {"shape": "1.5B"}),
    "update-7B": Part("update", {"shape": "7B"}),
    "step-torch": Part("step", {"engine": "torch"}),
    "step-vllm": Part("step", {"engine": "vllm"}, needs=("vllm",)),
    "verl": Part("verl", needs=("verl", "ray", "transfer_queue", "vllm")),
}
TOY_PARTS = ("machine", "correctness", "update-0.5B", "step-torch")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (default: all)")
    parser.add_argument("--out", type=Path, default=ROOT / "build/gpu", help="folder of the results")
    parser.add_argument("--toy", action="store_true", help="small sizes, on the CPU where there is no GPU")
    parser.add_argument("--page", type=Path, metavar="RESULTS", help="only write docs/gpu.md's tables from a folder")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.path.append(str(CARRIED))  # only for what is not installed
    if options.inside:
        run(options.inside, options.out, options.toy)
        return
    if options.page:
        write_page(options.page)
        return
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    check_packages(options.toy)
    options.out.mkdir(parents=True, exist_ok=True)
    failed = [name for name in options.parts or (TOY_PARTS if options.toy else PARTS) if not start(name, options)]
    if failed:
        sys.exit(f"error: {', '.join(failed)} failed; see the logs in {options.out}")


def check_packages(toy: bool) -> None:
    for package in ("torch", "transformers", "pydantic", "ruamel.yaml", "sympy"):
        try:
            importlib.import_module(package)
        except ImportError:
            sys.exit(
                f"error: {package} is missing; run make install, or, for a machine without a network, run "
                "make gpu-packages on one with a network and copy build/gpu-packages"
            )
    import torch

    if not (toy or torch.cuda.is_available()):
        sys.exit("error: torch finds no GPU; --toy runs the same programs at a small size on the CPU")


def start(name: str, options: argparse.Namespace) -> bool:
    """Run one part as a process; whether it ended well."""
    missing = [package for package in PARTS[name].needs if importlib.util.find_spec(package) is None]
    if missing:
        print(f"{name:<12} skipped: {', '.join(missing)} is not installed", flush=True)
        return True
    command = [sys.executable, "-m", "benchmarks.gpu", "--inside", name, "--out", str(options.out.resolve())]
    begun, log = time.perf_counter(), options.out / f"{name}.log"
    with log.open("w", encoding="utf-8") as output:
        try:
            done = subprocess.run(
                [*command, *(["--toy"] if options.toy else [])],
                cwd=ROOT,
                stdout=output,
                stderr=output,
                timeout=LIMIT,
                check=False,
            )
            status = "done" if done.returncode == 0 else f"failed with exit status {done.returncode}"
        except subprocess.TimeoutExpired:
            status = f"stopped after {LIMIT} s"
    print(f"{name:<12} {status}, {time.perf_counter() - begun:.0f} s", flush=True)
    result = options.out / f"{name}.json"
    if status != "done":
        print("".join(log.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)[-15:]), flush=True)
        return False
    result_failed = json.loads(result.read_text(encoding="utf-8")).get("failed", [])
    for line in result_failed:
        print(f"{'':<12} outside its limit: {line}", flush=True)
    return not result_failed


def run(name: str, out: Path, toy: bool) -> None:
    """The part itself, in its own process; results appear at once, or not at all."""
    import torch

    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cpu":
        torch.set_num_threads(1)
    part = PARTS[name]
    options = dict(part.options)
    if part.module == "update" and name == "update-0.5B":
        options["profile"] = out / "profile.txt"
    result = importlib.import_module(f"benchmarks.gpu.{part.module}").main(device, toy, **options)
    aside = out / f".{name}.json"
    aside.write_text(json.dumps(result, indent=1, allow_nan=False), encoding="utf-8")
    aside.replace(out / f"{name}.json")


def write_page(results: Path) -> None:
    from benchmarks.gpu.page import write_tables

    write_tables(results, ROOT / "docs/gpu.md")


if __name__ == "__main__":
    main()
