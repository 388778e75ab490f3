"""The labelled cases, where their folder is known: MATHRL_CASES, or shared/cases beside the repository."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from mathrl.grading import grade, warm_up

_BESIDE = Path(__file__).parents[3] / "shared" / "cases"
FOLDER = Path(os.environ["MATHRL_CASES"]) if "MATHRL_CASES" in os.environ else _BESIDE
pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason=f"no labelled cases: set MATHRL_CASES ({FOLDER} is no folder)"
)


def rows(abuse: bool) -> list[dict[str, Any]]:
    found = [
        json.loads(line)
        for path in sorted(FOLDER.glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    return [row for row in found if ("group" in row) == abuse]


def verdict(row: dict[str, Any], trap: Path) -> tuple[bool, float]:
    parts = row.get("response_parts")
    text = "".join(part * count for part, count in parts) if parts is not None else row["response"] or ""
    text = text.replace("@PWN_DIR@", str(trap))
    started = time.monotonic()
    correct = grade(f"\\boxed{{{text}}}" if row["form"] == "bare" else text, row["ground_truth"]).correct
    return correct, time.monotonic() - started


def test_accuracy_on_the_cases(tmp_path: Path) -> None:
    warm_up()
    judged = [(row, verdict(row, tmp_path)[0]) for row in rows(abuse=False) if row["expected"] is not None]
    wrong = [row["id"] for row, correct in judged if correct != row["expected"]]
    false_positives = [row["id"] for row, correct in judged if correct and not row["expected"]]
    assert len(wrong) <= 0.02 * len(judged), wrong
    assert len(false_positives) <= 0.003 * len(judged), false_positives


def test_abuse(tmp_path: Path) -> None:
    warm_up()
    judged = [(row, *verdict(row, tmp_path)) for row in rows(abuse=True)]
    assert [row["id"] for row, _, seconds in judged if seconds > 1.5] == []
    assert list(tmp_path.iterdir()) == []
    firm = [(row, correct) for row, correct, _ in judged if row["expected"] is not None and not row["policy"]]
    wrong = [row["id"] for row, correct in firm if correct != row["expected"]]
    assert len(wrong) <= 0.015 * len(firm), wrong
    house = [(row, correct) for row, correct, _ in judged if row["expected"] is not None and row["policy"]]
    assert [row["id"] for row, correct in house if correct != row["expected"]] == []
