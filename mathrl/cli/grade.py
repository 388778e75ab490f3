"""`mathrl grade`: rows with a response and a true answer in, verdicts out."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from mathrl.core.errors import UserError
from mathrl.core.files import read_numbered_jsonl, write_jsonl

Extraction = Literal["strict", "lenient"]


def grade_file(file: Path, response_key: str, answer_key: str, output: Path, extraction: Extraction) -> None:
    """Write every row of `file` with `correct`, `extracted` and `rule` to `output`.

    Raises:
        UserError: a row lacks a field or holds something else than text; no output is written then.
    """
    from mathrl.grading import grade_batch

    rows = list(read_numbered_jsonl(file))
    if not rows:
        raise UserError(f"{file}: no row in it")
    responses = [_text(file, number, row, response_key) for number, row in rows]
    truths = [_truth(file, number, row, answer_key) for number, row in rows]
    verdicts = grade_batch(responses, truths, extraction=extraction)

    def graded() -> Iterator[dict[str, Any]]:
        for (_, row), verdict in zip(rows, verdicts, strict=True):
            yield row | {"correct": verdict.correct, "extracted": verdict.extracted, "rule": verdict.rule}

    write_jsonl(output, graded())
    right = sum(verdict.correct for verdict in verdicts)
    print(f"{right} of {len(rows)} correct ({right / len(rows):.1%}); rows with verdicts: {output}")


def _text(file: Path, number: int, row: dict[str, Any], key: str) -> str:
    if key not in row:
        known = ", ".join(row) or "none"
        raise UserError(f"{file}, line {number}: no field {key!r}; fields there: {known}; see --response-key")
    if not isinstance(row[key], str):
        raise UserError(f"{file}, line {number}, field {key}: text is wanted, found {row[key]!r}")
    return str(row[key])


def _truth(file: Path, number: int, row: dict[str, Any], key: str) -> str | list[str]:
    if key not in row:
        known = ", ".join(row) or "none"
        raise UserError(f"{file}, line {number}: no field {key!r}; fields there: {known}; see --answer-key")
    truth = row[key]
    if isinstance(truth, bool) or not isinstance(truth, str | int | float | list) or truth in ("", []):
        raise UserError(f"{file}, line {number}, field {key}: an answer or a list of them is wanted, found {truth!r}")
    return [str(each) for each in truth] if isinstance(truth, list) else str(truth)
