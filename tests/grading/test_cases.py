"""Labelled cases: those of audits, and, where their folder is known (MATHRL_CASES, or shared/cases), many more."""

import gzip
import json
import os
import random
import shutil
import string
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mathrl.core.files import read_jsonl
from mathrl.grading import grade, grade_batch, warm_up

AUDITED = sorted(Path(__file__).parent.glob("audited-*.jsonl"))
_BESIDE = Path(__file__).parents[3] / "shared" / "cases"
FOLDER = Path(os.environ["MATHRL_CASES"]) if "MATHRL_CASES" in os.environ else _BESIDE
shared = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no labelled cases: set MATHRL_CASES ({FOLDER} is no folder)")


def disagreements(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The sources of the rows whose verdict differs from the person's."""
    verdicts = grade_batch([row["response"] for row in rows], [row["ground_truth"] for row in rows])
    return [row["source"] for row, verdict in zip(rows, verdicts, strict=True) if verdict.correct != row["right"]]


def test_audited_verdicts_are_right_now() -> None:
    """Rows of `mathrl runs audit RUN --cases tests/grading/audited-NAME.jsonl`."""
    assert {file.name: disagreements(list(read_jsonl(file))) for file in AUDITED} == {file.name: [] for file in AUDITED}
    row = {"response": "\\boxed{4}", "ground_truth": "4"}
    assert disagreements([row | {"right": True, "source": "a"}, row | {"right": False, "source": "b"}]) == ["b"]


def rows(abuse: bool) -> list[dict[str, Any]]:
    cases = [row for path in sorted(FOLDER.glob("*.jsonl")) for row in read_jsonl(path)]
    return [row for row in cases if ("group" in row) == abuse]


def verdict(row: dict[str, Any], trap: Path) -> bool:
    parts = row.get("response_parts")
    text = "".join(part * count for part, count in parts) if parts is not None else row["response"] or ""
    text = text.replace("@PWN_DIR@", str(trap))
    return grade(f"\\boxed{{{text}}}" if row["form"] == "bare" else text, row["ground_truth"]).correct


@shared
def test_accuracy_on_the_cases(tmp_path: Path) -> None:
    warm_up()
    judged = [(row, verdict(row, tmp_path)) for row in rows(abuse=False) if row["expected"] is not None]
    wrong = [row["id"] for row, correct in judged if correct != row["expected"]]
    false_positives = [row["id"] for row, correct in judged if correct and not row["expected"]]
    assert len(wrong) <= 0.02 * len(judged), wrong
    assert len(false_positives) <= 0.003 * len(judged), false_positives


@shared
def test_exam_of_other_systems_assertions() -> None:
    warm_up()
    lines = gzip.decompress((FOLDER / "exam_dev.jsonl.gz").read_bytes()).splitlines()
    firm = [row for row in map(json.loads, lines) if not row["debatable"] and row["tier"] == "rule"]
    wrong = []
    for row in firm:
        response = f"\\boxed{{{row['prediction']}}}" if row["form"] == "bare" else row["prediction"]
        if grade(response, row["ground_truth"]).correct != row["expected"]:
            wrong.append(row)
    assert len(wrong) <= 0.015 * len(firm), wrong
    assert [row for row in wrong if not row["expected"]] == []


@pytest.fixture
def lettered_folder() -> Iterator[Path]:
    """A folder whose path has no digits: pytest's own /pytest-42/ ends some answers with the right number."""
    folder = Path(tempfile.gettempdir()) / "".join(random.choices(string.ascii_lowercase, k=12))
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


@shared
def test_abuse(lettered_folder: Path, processor_seconds: Callable[[], float]) -> None:
    warm_up()
    judged = []
    for row in rows(abuse=True):
        started = processor_seconds()
        judged.append((row, verdict(row, lettered_folder), processor_seconds() - started))
    assert [row["id"] for row, _, seconds in judged if seconds > 1.5] == []
    assert list(lettered_folder.iterdir()) == []
    firm = [(row, correct) for row, correct, _ in judged if row["expected"] is not None and not row["policy"]]
    wrong = [row["id"] for row, correct in firm if correct != row["expected"]]
    assert len(wrong) <= 0.015 * len(firm), wrong
    house = [(row, correct) for row, correct, _ in judged if row["expected"] is not None and row["policy"]]
    assert [row["id"] for row, correct in house if correct != row["expected"]] == []


def test_blind_exams() -> None:
    """Pairs by examiners who had read docs/explanation/grading.md alone, graded once before anything was mended."""
    rows = list(read_jsonl(Path(__file__).with_name("exams.jsonl")))
    warm_up()
    verdicts = grade_batch([row["response"] for row in rows], [row["truth"] for row in rows])
    wrong = [row for row, verdict in zip(rows, verdicts, strict=True) if verdict.correct != row["equal"]]
    assert [row for row in wrong if not row["equal"]] == []
    assert len(wrong) <= 18, wrong
