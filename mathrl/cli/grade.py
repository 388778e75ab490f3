"""`mathrl grade`: grade a file of responses with their true answers, or the rollouts of a run beside their reward."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from mathrl.cli.output import AsJson, print_document, print_result
from mathrl.core.errors import UserError
from mathrl.core.files import read_numbered_jsonl, write_jsonl
from mathrl.grading import grade_batch, instruction_fault, read_instructions

# In the order in which they are tried; the answers' names are those that `mathrl inspect` knows.
RESPONSES = ("response", "completion", "output", "generation", "model_output", "prediction", "text")
ANSWERS = (
    "ground_truth", "answer", "answers", "final_answer", "expected_answer", "gt_answer", "gt", "gold", "golden",
    "answer_number", "correct_answer", "target", "label", "truth", "result", "reference", "a",
    "answer_key", "answer_idx", "correct_option",
)  # fmt: skip


def grade(
    file: Annotated[
        Path,
        typer.Argument(help="JSON lines with a response and its true answer each; or a run: its folder, or a record."),
    ],
    output: Annotated[
        Path | None, typer.Option(help="File for the graded rows; of a run, for all disagreements. Needed for a file.")
    ] = None,
    response_key: Annotated[
        str | None, typer.Option(help="Field with the response; default: response, completion, output, … by name.")
    ] = None,
    answer_key: Annotated[
        str | None,
        typer.Option(help="Field with the true answer, or a list of them; default: answer, ground_truth, … by name."),
    ] = None,
    extraction: Annotated[
        Literal["strict", "lenient"],
        typer.Option(help="strict: only a marked answer counts; lenient: else the last number counts."),
    ] = "lenient",
    answers: Annotated[
        Path | None, typer.Option(help="Of a run: file of problems with answers, where its rollouts have none.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Grade responses: write each row with `correct`, `extracted` and `rule`.

    A row is for example {"response": "So it is \\boxed{12}.", "answer": "12"}; other fields stay as they are.
    Of a run, of any trainer: how often its reward and our verifier disagree, and the cases to read first.
    """
    if not file.is_file():
        _grade_run(file, answers, output, extraction, as_json)
        return
    if output is None:
        raise UserError(f"{file}: name a file for the graded rows with --output")
    rows = list(read_numbered_jsonl(file))
    if not rows:
        raise UserError(f"{file}: it has no rows")
    fields = list(rows[0][1])
    response_key = response_key or _known_field(file, fields, RESPONSES, "response")
    answer_key = answer_key or _known_field(file, fields, ANSWERS, "answer", without=response_key)
    responses = [_text(file, number, row, response_key) for number, row in rows]
    truths = [_truth(file, number, row, answer_key) for number, row in rows]
    verdicts = grade_batch(responses, truths, extraction=extraction)

    def graded_rows() -> Iterator[dict[str, Any]]:
        for (_, row), verdict in zip(rows, verdicts, strict=True):
            yield row | {"correct": verdict.correct, "extracted": verdict.extracted, "rule": verdict.rule}

    write_jsonl(output, graded_rows())
    right = sum(verdict.correct for verdict in verdicts)
    document = {"rows": len(rows), "correct": right, "output": str(output)}
    print_result(
        as_json,
        document | {"response_key": response_key, "answer_key": answer_key},
        f"{right} of {len(rows)} correct ({right / len(rows):.1%}); rows with verdicts: {output}",
        f"responses: field {response_key}; true answers: field {answer_key}",
    )


def _grade_run(
    run: Path, answers: Path | None, output: Path | None, extraction: Literal["strict", "lenient"], as_json: bool
) -> None:
    """Print the second opinion on the rollouts of a run."""
    from mathrl.imports import second_opinion  # these need pyarrow, which the verifier alone does without
    from mathrl.imports.foreign_run import read_run
    from mathrl.imports.write_record import in_order
    from mathrl.reports.find_run import kept_files

    files, weights = kept_files(str(run)), list[float]()
    if not files and run.is_dir():
        theirs = read_run(run)
        files, weights = in_order(theirs.rollouts), theirs.reward_weights
    if not files:
        missing = "no such file" if run.suffix else "no file of responses, and no run with rollouts"
        raise UserError(f"{run}: {missing}; `mathrl import` says what a run has")
    known = second_opinion.read_answers(answers) if answers else None
    graded = second_opinion.grade_rollouts(files, known, extraction=extraction, weights=weights)
    opinion = second_opinion.sum_up(graded)
    if output is not None:
        write_jsonl(output, map(second_opinion.case_row, opinion.cases))
    if as_json:
        print_document(second_opinion.document(opinion))
        return
    for line in opinion.lines():
        print(line)
    for number, case in enumerate(opinion.instructive(), start=1):
        print("\n".join(second_opinion.case_lines(number, case)))


def _known_field(file: Path, fields: Sequence[str], names: Sequence[str], what: str, without: str = "") -> str:
    """The first of `names` that the first row has, compared without case."""
    by_name = {field.lower(): field for field in fields if field != without}
    found = next((by_name[name] for name in names if name in by_name), None)
    if found is None:
        raise UserError(
            f"{file}, line 1: no field with the {'true ' * (what == 'answer')}{what} (fields: "
            f"{', '.join(fields) or 'none'}); name it with --{what}-key"
        )
    return found


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
    accepted = truth if isinstance(truth, list) else [truth]
    if truth in ("", []) or any(answer is None or isinstance(answer, bool | dict) for answer in accepted):
        raise UserError(f"{file}, line {number}, field {key}: expected an answer or a list of them, found {truth!r}")
    for instruction in (rule for answer in accepted for rule in read_instructions(str(answer)) or ()):
        if fault := instruction_fault(instruction):
            raise UserError(f"{file}, line {number}, field {key}: {fault}")
    return [str(answer) for answer in truth] if isinstance(truth, list) else _answer_after_mark(str(truth))


def _answer_after_mark(truth: str) -> str:
    """The answer after GSM8K's mark, where a row has its whole solution: "3+4=7 #### 7" -> "7"."""
    return truth.rpartition("####")[2].strip() or truth
