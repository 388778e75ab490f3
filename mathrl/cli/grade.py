"""`mathrl grade`: grade a file of responses with their true answers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from mathrl.core.errors import UserError
from mathrl.core.files import read_numbered_jsonl, write_jsonl
from mathrl.grading import grade_batch


def grade(
    file: Annotated[Path, typer.Argument(help="JSON lines, each with a response and its true answer.")],
    output: Annotated[Path, typer.Option(help="File for the graded rows.")],
    response_key: Annotated[str, typer.Option(help="Field with the response.")] = "response",
    answer_key: Annotated[str, typer.Option(help="Field with the true answer, or a list of them.")] = "ground_truth",
    extraction: Annotated[
        Literal["strict", "lenient"],
        typer.Option(help="strict: only a marked answer counts; lenient: else the last number counts."),
    ] = "lenient",
) -> None:
    """Grade responses: write each row with `correct`, `extracted` and `rule`."""
    rows = list(read_numbered_jsonl(file))
    if not rows:
        raise UserError(f"{file}: it has no rows")
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
        fields = ", ".join(row) or "none"
        raise UserError(f"{file}, line {number}: no field {key!r}; its fields: {fields}; see --response-key")
    if not isinstance(row[key], str):
        raise UserError(f"{file}, line {number}, field {key}: expected text, found {row[key]!r}")
    return str(row[key])


def _truth(file: Path, number: int, row: dict[str, Any], key: str) -> str | list[str]:
    if key not in row:
        fields = ", ".join(row) or "none"
        raise UserError(f"{file}, line {number}: no field {key!r}; its fields: {fields}; see --answer-key")
    truth = row[key]
    if isinstance(truth, bool) or not isinstance(truth, str | int | float | list) or truth in ("", []):
        raise UserError(f"{file}, line {number}, field {key}: expected an answer or a list of them, found {truth!r}")
    return [str(answer) for answer in truth] if isinstance(truth, list) else str(truth)
