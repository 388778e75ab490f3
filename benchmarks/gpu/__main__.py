"""Everything worth asking a GPU, in parts of at most nine minutes that need only what is installed.

    make gpu                                  # all parts, then benchmarks/gpu/README.md's tables
    python -m benchmarks.gpu                  # the same, without touching benchmarks/gpu/README.md
    python -m benchmarks.gpu correctness update-0.5B --out results --minutes 10    # ends within ten minutes
    python -m benchmarks.gpu --toy            # the same programs at sizes for a CPU (two minutes)
    python -m benchmarks.gpu --page results   # write benchmarks/gpu/README.md's tables from results

Correctness comes first. Each part is a process of its own: what it returns is in OUT/PART.json, what it printed in
OUT/PART.log, also where the command is ended. With --minutes no part runs beyond that time, and the command that goes
on with the parts that were not started is printed. A part whose packages are missing is skipped and says so. Python
3.12, torch 2.11 and transformers 5.17 are enough for most; packages for a machine without a network are carried with
`make gpu-packages`.
"""

import argparse
import importlib
import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CARRIED = ROOT / "build/gpu-packages"
LIMIT = 540  # seconds of a part
LEAST = 30  # seconds: with fewer left no part is started


@dataclass(frozen=True)
class Part:
    """A module of this folder and the arguments of its `main`; `needs` are packages that it cannot do without."""

    module: str
    options: dict[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()


PARTS = {
    "machine": Part("machine"),
    "correctness": Part("correctness"),
    "fsdp": Part("zero", {"backend": "fsdp"}),
    "zero": Part("zero", {"backend": "deepspeed"}, needs=("deepspeed",)),
    "update-0.5B": Part("update", {"shape": "0.5B"}),
    "update-1.5B": Part("update", {"shape": "1.5B"}),
    "update-7B": Part("update", {"shape": "7B", "rows": (16384, 65536, 2048)}),
    "small": Part("small_hardware", needs=("bitsandbytes", "peft")),
    "step-torch": Part("step", {"engine": "torch"}),
    "step-vllm": Part("step", {"engine": "vllm"}, needs=("vllm",)),
    "transfer": Part("transfer", needs=("vllm",)),
    "verl": Part("verl", needs=("verl", "ray", "transfer_queue", "vllm")),
}
TOY_PARTS = ("machine", "correctness", "fsdp", "update-0.5B", "step-torch")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (default: all)")
    parser.add_argument("--out", type=Path, default=ROOT / "build/gpu", help="folder of the results")
    parser.add_argument("--toy", action="store_true", help="small sizes, on the CPU where there is no GPU")
    parser.add_argument(
        "--page", type=Path, metavar="RESULTS", help="only write benchmarks/gpu/README.md's tables from a folder"
    )
    parser.add_argument("--minutes", type=float, help="end within this time, with what was measured in --out")
    parser.add_argument("--seconds", type=float, default=LIMIT, help=argparse.SUPPRESS)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    # Only for what is not installed; but pydantic takes what was carried with it, and not an older typing_extensions.
    sys.path.insert(len(sys.path) if importlib.util.find_spec("pydantic") else 0, str(CARRIED))
    if options.inside:
        run(options.inside, options.out, options.toy, options.seconds)
        return
    if options.page:
        write_page(options.page)
        return
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    on_gpu = check_packages(options.toy)
    options.out.mkdir(parents=True, exist_ok=True)
    chosen = options.parts or (TOY_PARTS if options.toy else PARTS)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # with the part that runs
    end = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
    failed, waiting = [], []
    for name in chosen:
        left = end - time.monotonic() - 5  # to end the part and write the page
        if left < LEAST:
            waiting.append(name)
        elif not start(name, options, on_gpu, min(LIMIT, left)):
            failed.append(name)
    if waiting:
        words = [*waiting, "--out", str(options.out), *(["--toy"] if options.toy else [])]
        print(f"not started, go on with: python -m benchmarks.gpu {shlex.join(words)} --minutes {options.minutes:g}")
    if failed:
        sys.exit(f"error: {', '.join(failed)} failed; see the logs in {options.out}")


def check_packages(toy: bool) -> bool:
    """Whether torch finds a GPU; ends the program where a package is missing, or a GPU that is needed."""
    for package in ("torch", "transformers", "pydantic", "ruamel.yaml", "sympy", "xxhash", "httpx"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            sys.exit(
                f"error: {package} cannot be imported ({error}); run make install, or, for a machine without a "
                "network, run make gpu-packages on one with a network and copy build/gpu-packages"
            )
    import torch

    on_gpu = torch.cuda.is_available()
    if not (toy or on_gpu):
        sys.exit("error: torch finds no GPU; --toy runs the same programs at a small size on the CPU")
    return on_gpu


def start(name: str, options: argparse.Namespace, on_gpu: bool, limit: float = LIMIT) -> bool:
    """Run one part as a process; whether it ended well. A result of an earlier run is removed first."""
    result, log = options.out / f"{name}.json", options.out / f"{name}.log"
    result.unlink(missing_ok=True)
    missing = [package for package in PARTS[name].needs if importlib.util.find_spec(package) is None]
    if missing:
        reason = f"{', '.join(missing)} is not installed"
        print(f"{name:<12} skipped: {reason}", flush=True)
        write(result, {"skipped": f"{name}: {reason}"})
        return True
    begun = time.perf_counter()
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command_of(name, options, limit),
            cwd=ROOT,
            env=environment(on_gpu),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            returned = process.wait(limit)
            status = "done" if returned == 0 else f"failed with exit status {returned}"
        except subprocess.TimeoutExpired:
            status = f"stopped after {limit:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with what it has started
            process.wait()
    print(f"{name:<12} {status}, {time.perf_counter() - begun:.0f} s", flush=True)
    if status != "done":
        print("".join(log.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)[-15:]), flush=True)
        return False
    found = json.loads(result.read_text(encoding="utf-8"))
    for line in found.get("failed", []):
        print(f"{'':<12} outside its limit: {line}", flush=True)
    if "skipped" in found:
        print(f"{'':<12} skipped: {found['skipped']}", flush=True)
    return not found.get("failed")


def command_of(name: str, options: argparse.Namespace, limit: float) -> list[str]:
    command = [sys.executable, "-m", "benchmarks.gpu", "--inside", name, "--out", str(options.out.resolve())]
    command += ["--seconds", str(limit)]
    return [*command, "--toy"] if options.toy else command


def environment(on_gpu: bool) -> dict[str, str]:
    """A part's variables: no look-ups on the hub, and the device that DeepSpeed takes; DeepSpeed compiles nothing."""
    return {"HF_HUB_OFFLINE": "1", "DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cuda" if on_gpu else "cpu", **os.environ}


def run(name: str, out: Path, toy: bool, seconds: float) -> None:
    """The part itself, in its own process, which has so many seconds."""
    from mathrl.core.gpus import gpu_count, use_expandable_segments
    from mathrl.core.guard import die_with_parent

    die_with_parent()  # where the command is killed
    if gpu_count():
        use_expandable_segments()  # as a training stage does, before torch is imported
    import torch

    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cpu":
        torch.set_num_threads(1)
    part, result = PARTS[name], out / f"{name}.json"
    options = dict(part.options)
    if part.module in ("step", "update", "small_hardware"):
        options["note"] = lambda found: write(result, found)  # what there is if the part runs out of time
    if part.module == "update":
        options["seconds"] = seconds
        options["profile"] = out / f"profile-{name}.txt"
    write(result, importlib.import_module(f"benchmarks.gpu.{part.module}").main(device, toy, **options))


def write(file: Path, result: dict[str, Any]) -> None:
    """The file appears at once, or not at all."""
    aside = file.with_suffix(".part")
    aside.write_text(json.dumps(result, indent=1, allow_nan=False), encoding="utf-8")
    aside.replace(file)


def write_page(results: Path) -> None:
    from benchmarks.gpu.page import write_tables

    write_tables(results, ROOT / "benchmarks/gpu/README.md")


if __name__ == "__main__":
    main()
