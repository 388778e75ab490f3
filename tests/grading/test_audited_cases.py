"""Verdicts that a person found wrong (`mathrl audit RUN --cases tests/grading/audited-NAME.jsonl`) are right now."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mathrl.core.files import read_jsonl
from mathrl.grading import grade_batch

FILES = sorted(Path(__file__).parent.glob("audited-*.jsonl"))


def disagreements(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The sources of the rows whose verdict differs from the person's."""
    verdicts = grade_batch([row["response"] for row in rows], [row["ground_truth"] for row in rows])
    return [row["source"] for row, verdict in zip(rows, verdicts, strict=True) if verdict.correct != row["right"]]


def test_the_audited_cases_are_graded_as_the_person_did() -> None:
    assert {file.name: disagreements(list(read_jsonl(file))) for file in FILES} == {file.name: [] for file in FILES}


def test_a_case_that_is_graded_otherwise_is_named() -> None:
    row = {"response": "\\boxed{4}", "ground_truth": "4"}
    assert disagreements([row | {"right": True, "source": "a"}, row | {"right": False, "source": "b"}]) == ["b"]
