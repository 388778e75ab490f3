"""`make gpu` at its small size on this machine: the parts run, faults are seen, the page's tables are written."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = runpy.run_path(str(ROOT / "benchmarks/gpu/page.py"))
NOTHING, tables, write_tables = (PAGE[name] for name in ("NOTHING", "tables", "write_tables"))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpu")
    done = run("machine", "correctness", "step-torch", "--toy", "--out", str(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_checks_are_within_their_limits_and_not_empty(results: Path) -> None:
    checks = json.loads((results / "correctness.json").read_text())["checks"]
    assert len(checks) >= 12
    assert all(row["value"] <= row["limit"] for row in checks)
    # In bfloat16 something is rounded: a comparison of a model with itself would give 0.
    assert any(row["value"] > 1e-4 for row in checks if row["name"].startswith("bfloat16"))


def test_the_page_holds_a_table_per_part(results: Path, tmp_path: Path) -> None:
    page = tmp_path / "gpu.md"
    page.write_text("Before.\n\n<!-- measured by make gpu -->\nold\n<!-- end -->\nAfter.\n")
    write_tables(results, page)
    text = page.read_text()
    assert text.startswith("Before.") and text.endswith("After.\n") and "old" not in text
    assert "### Correctness" in text and "### A GRPO step" in text and "Measured on 20" in text
    write_tables(results, page)
    assert page.read_text() == text


def test_without_results_the_page_says_so(tmp_path: Path) -> None:
    assert tables(tmp_path) == NOTHING
    assert NOTHING in (ROOT / "docs/gpu.md").read_text() or "Measured on" in (ROOT / "docs/gpu.md").read_text()


def test_a_wrong_value_fails_its_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks compare, they do not only print."""
    import torch  # seconds

    from benchmarks.gpu import correctness

    device, right = torch.device("cpu"), correctness.response_logprobs
    monkeypatch.setattr(
        correctness, "response_logprobs", lambda *arguments: tuple(value * 1.05 for value in right(*arguments))
    )
    rows = correctness.packed_against_plain(correctness.write_model(tmp_path, "toy", device), device, 12, 6)
    failed = {row["name"].partition(": ")[2] for row in rows if row["value"] > row["limit"]}
    assert "log-probs, largest difference" in failed


def test_a_misspelt_part_is_refused_by_name() -> None:
    done = run("updates")
    assert done.returncode == 2 and "no such part: updates; there are machine, correctness" in done.stderr
