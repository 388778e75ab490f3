"""Verdicts that a person found wrong (`mathrl audit RUN --cases tests/grading/audited-NAME.jsonl`) are right now."""

from pathlib import Path

import pytest

from mathrl.core.files import read_jsonl
from mathrl.grading import grade_batch

FILES = sorted(Path(__file__).parent.glob("audited-*.jsonl"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_audited_cases_are_graded_as_the_person_did(file: Path) -> None:
    rows = list(read_jsonl(file))
    verdicts = grade_batch([row["response"] for row in rows], [row["ground_truth"] for row in rows])
    wrong = [row["source"] for row, verdict in zip(rows, verdicts, strict=True) if verdict.correct != row["right"]]
    assert wrong == []
