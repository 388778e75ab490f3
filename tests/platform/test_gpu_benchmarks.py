"""`make gpu` at its small size on this machine: the parts run, faults are seen, the page's tables are written."""

import json
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
# Imports benchmarks.gpu where only torch, transformers, what they need and the carried packages are installed.
BARE = """
import importlib, importlib.metadata as metadata, sys
from pathlib import Path
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

there, wanted = set(map(canonicalize_name, sys.argv[1:])), ["torch", "transformers"]
while wanted:
    name = canonicalize_name(wanted.pop())
    if name in there:
        continue
    there.add(name)
    try:
        needs = map(Requirement, metadata.requires(name) or [])
    except metadata.PackageNotFoundError:
        continue
    wanted += [need.name for need in needs if not need.marker or need.marker.evaluate({"extra": ""})]
for module, distributions in metadata.packages_distributions().items():
    if not there & set(map(canonicalize_name, distributions)) and module not in ("mathrl", "benchmarks", "packaging"):
        sys.modules[module] = None
for file in sorted(Path("benchmarks/gpu").glob("[a-z]*.py")):
    if file.stem != "transfer":  # a part that needs vLLM
        importlib.import_module(f"benchmarks.gpu.{file.stem}")
        print(file.stem)
from benchmarks.gpu.workload import preset_params, run_params
from mathrl.models.base import character_tokenizer
print(run_params(Path(sys.argv[0])) is not None, preset_params("qwen2.5-0.5b-gsm8k", Path(sys.argv[0])) is not None)
"""
PAGE = runpy.run_path(str(ROOT / "benchmarks/gpu/page.py"))
NOTHING, tables, write_tables = (PAGE[name] for name in ("NOTHING", "tables", "write_tables"))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, warm_python: Path) -> Path:
    folder = tmp_path_factory.mktemp("gpu")
    parts = ["machine", "correctness", "fsdp", "step-torch", "--toy", "--out", str(folder)]
    command = [warm_python / "python", "-m", "benchmarks.gpu", *parts]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_checks_are_within_their_limits_and_not_empty(results: Path) -> None:
    checks = json.loads((results / "correctness.json").read_text())["checks"]
    assert len(checks) >= 12
    assert all(row["value"] <= row["limit"] for row in checks)
    # In bfloat16 something is rounded: a comparison of a model with itself would give 0.
    assert any(row["value"] > 1e-4 for row in checks if row["name"].startswith("bfloat16"))
    checks = json.loads((results / "fsdp.json").read_text())["checks"]  # which needs no DeepSpeed
    assert [row["name"] for row in checks] == [
        f"{precision}, {backend}" for precision in ("float32", "bfloat16") for backend in ("torch", "FSDP")
    ]
    assert all(row["value"] <= row["limit"] for row in checks)


def test_the_command_ends_within_its_minutes_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import benchmarks.gpu.__main__ as command

    def writes_and_sleeps(name: str, *_: Any) -> list[str]:
        (tmp_path / f"{name}.json").write_text('{"rows": [1]}')
        return ["sleep", "60"]

    monkeypatch.setattr(command, "command_of", writes_and_sleeps)
    monkeypatch.setattr(command, "LEAST", 1)
    monkeypatch.setattr(command, "check_packages", lambda toy: False)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    words = ["update-0.5B", "update-7B", "--out", str(tmp_path), "--toy", "--minutes", "0.15"]
    monkeypatch.setattr(sys, "argv", ["benchmarks.gpu", *words])
    with pytest.raises(SystemExit, match=r"update-0\.5B failed"):
        command.main()
    printed = capsys.readouterr().out
    assert re.search(r"update-0\.5B  stopped after \d s", printed) and (tmp_path / "update-0.5B.json").exists()
    words = f"update-7B --out {tmp_path} --toy --minutes 0.15"
    assert printed.endswith(f"not started, go on with: python -m benchmarks.gpu {words}\n")
    monkeypatch.setattr(sys, "argv", ["benchmarks.gpu", "updates"])
    with pytest.raises(SystemExit, match="2"):
        command.main()
    assert "no such part: updates; there are machine, correctness" in capsys.readouterr().err


def test_the_carried_packages_torch_and_transformers_suffice_for_the_parts_of_the_bare_image() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", "")
    carried = re.search(r"--no-deps (pydantic .*)", makefile)
    assert carried
    done = subprocess.run(
        [sys.executable, "-c", BARE, *carried[1].split()], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert {"correctness", "step", "update", "zero"} <= set(done.stdout.split())


def test_the_page_holds_a_table_per_part(results: Path, tmp_path: Path) -> None:
    page = tmp_path / "gpu.md"
    page.write_text("Before.\n\n<!-- measured by make gpu -->\nold\n<!-- end -->\nAfter.\n")
    write_tables(results, page)
    text = page.read_text()
    assert text.startswith("Before.") and text.endswith("After.\n") and "old" not in text
    assert "### Correctness" in text and "### A GRPO step" in text and "Measured on 20" in text
    write_tables(results, page)
    assert page.read_text() == text and tables(tmp_path) == NOTHING


def test_goals_are_reached_by_figures_and_not_by_their_absence(tmp_path: Path) -> None:
    def row(shape: str, length: int, mfu: float, peak: float = 50.0) -> dict[str, Any]:
        return {"shape": shape, "row": length, "mfu": 0.9, "mfu_nominal": mfu, "peak_gib": peak}

    goals = PAGE["goal_table"]
    lines = goals({}).splitlines()[2:]
    assert len(lines) == 4 and all(line.endswith("| not measured |") for line in lines)
    found = {
        "update-0.5B": {"rows": [row("0.5B", 2048, 0.19), row("0.5B", 8192, 0.5)]},
        "update-1.5B": {"rows": [row("1.5B", 32768, 0.41, 70.0), {"shape": "1.5B", "row": 65536, "refused": "memory"}]},
        "update-7B": {"rows": [], "skipped": "too large"},
        "step-torch": {"engine": "torch", "seconds": {"step": 11.0, "sync": 2.0}},
        "step-vllm": {"skipped": "step-vllm: vllm is not installed"},
    }
    lines = goals(found).splitlines()[2:]
    assert [line.split("|")[2:4] for line in lines] == [
        [" 19% ", " **no** "], [" 41% ", " yes "], [" 13.0 s ", " **no** "], [" 70 GiB ", " yes "],
    ]  # fmt: skip


def test_a_model_too_large_for_the_gpu_loses_layers_and_keeps_its_widths() -> None:
    """Qwen2-7B has 7.6 billion weights in 28 layers, 1.09 of them outside: 18 bytes each with AdamW."""
    from benchmarks.gpu.update import most_layers  # torch: seconds

    assert most_layers("7B", 140e9) == 28
    assert most_layers("7B", 0.62 * 85e9) == 7  # (52.7e9 / 18 - 1.09e9) / 0.233e9 = 7.9
    assert most_layers("7B", 18e9) == 0


def test_a_wrong_value_fails_its_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks compare, they do not only print."""
    import torch  # seconds

    from benchmarks.gpu import correctness

    device, right = torch.device("cpu"), correctness.response_logprobs
    monkeypatch.setattr(
        correctness, "response_logprobs", lambda *arguments: tuple(value * 1.05 for value in right(*arguments))
    )
    source = correctness.write_model(tmp_path, "toy", device)
    groups = correctness._groups(12, 6, 8192)
    expected = 12, 6, *correctness.plain_logprobs(source, device, groups)
    rows = correctness.packed_against_plain(source, device, expected)
    failed = {row["name"].partition(": ")[2] for row in rows if row["value"] > row["limit"]}
    assert "log-probs, largest difference" in failed


def test_the_control_plane_of_one_rank_runs_at_a_small_size(warm_python: Path) -> None:
    sizes = ["--responses=64", "--tokens=50", "--ranks=4", "--minibatches=1", "--repeat=1"]
    command = [warm_python / "python", "-m", "benchmarks.control_plane", *sizes, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["packed"] > 64 // 4 * 50 * 0.9 and all(seconds[0] > 0 for seconds in found["parts"].values())
