"""Kept responses (responses.jsonl) → the graded rows of one model on one benchmark, checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.files import read_numbered_jsonl
from mathrl.core.types import EvalRow
from mathrl.grading import grade
from mathrl.params.messages import did_you_mean

NEEDED = ("model", "benchmark", "problem_id", "sample", "correct", "extracted", "length", "truncated")


@dataclass(frozen=True)
class ModelRun:
    """One model, one seed, on one benchmark.

    Example:
        ModelRun(label="rl", where="reports/evaluate/responses.jsonl", benchmark="test", rows=[EvalRow(…), …],
                 questions={"chain/test/00003": "7+5-3*4="}, answers={"chain/test/00003": ["0"]})
    """

    label: str
    where: str
    benchmark: str
    rows: list[EvalRow]
    questions: Mapping[str, str]
    answers: Mapping[str, Sequence[str]]  # the true ones, as far as the rows have them


def read_run(file: Path, model: str | None, benchmark: str | None) -> ModelRun:
    """The responses of one model on one benchmark from a responses.jsonl, one `EvalRow` per problem.

    Raises:
        UserError: no such file, no response in it, a row without a field, several models or benchmarks to
            choose from, a response twice, or problems with different numbers of responses.
    """
    runs = _read(file)
    benchmark = _one_of({b for _, b in runs}, benchmark, f"{file}: benchmark", "choose one with --benchmark")
    model = _one_of({m for m, b in runs if b == benchmark}, model, f"{file}: model", f"name one as {file}:MODEL")
    return _run(file, model, benchmark, runs[model, benchmark])


def read_runs(file: Path) -> list[ModelRun]:
    """Every model on every benchmark of a responses.jsonl.

    Raises:
        UserError: as `read_run`.
    """
    return [_run(file, model, benchmark, rows) for (model, benchmark), rows in _read(file).items()]


def _read(file: Path) -> dict[tuple[str, str], list[tuple[int, dict[str, Any]]]]:
    runs: dict[tuple[str, str], list[tuple[int, dict[str, Any]]]] = {}
    for number, row in read_numbered_jsonl(file):
        missing = [name for name in NEEDED if name not in row]
        if missing:
            raise UserError(
                f"{file}, line {number}: no field {missing[0]!r}; give the responses.jsonl that "
                "`mathrl evaluate` or the evaluate stage wrote"
            )
        runs.setdefault((str(row["model"]), str(row["benchmark"])), []).append((number, row))
    if not runs:
        raise UserError(f"{file}: no response in it")
    return runs


def _run(file: Path, model: str, benchmark: str, rows: Sequence[tuple[int, dict[str, Any]]]) -> ModelRun:
    return ModelRun(
        model,
        str(file),
        benchmark,
        _eval_rows(file, rows),
        {str(row["problem_id"]): str(row.get("question", "")) for _, row in rows},
        {str(row["problem_id"]): row.get("answers") or [] for _, row in rows},
    )


def _one_of(names: set[str], wanted: str | None, what: str, remedy: str) -> str:
    if wanted in names:
        return str(wanted)
    listed = ", ".join(sorted(names))
    if wanted is not None:
        raise UserError(f"{what} {wanted!r} is not in it{did_you_mean(wanted, names)}; there are: {listed}")
    if len(names) > 1:
        raise UserError(f"{what} is one of {listed}; {remedy}")
    return next(iter(names))


def _eval_rows(file: Path, rows: Sequence[tuple[int, dict[str, Any]]]) -> list[EvalRow]:
    problems: dict[str, dict[int, dict[str, Any]]] = {}
    for number, row in rows:
        samples = problems.setdefault(str(row["problem_id"]), {})
        if row["sample"] in samples:
            raise UserError(
                f"{file}, line {number}: sample {row['sample']} of {row['problem_id']} occurs twice; "
                "were two files concatenated?"
            )
        samples[row["sample"]] = row
    counts = {len(samples) for samples in problems.values()}
    if len(counts) > 1:
        raise UserError(f"{file}: some problems have {min(counts)} responses and others {max(counts)}; is it complete?")
    return [eval_row([samples[number] for number in sorted(samples)]) for samples in problems.values()]


def eval_row(group: Sequence[Mapping[str, Any]]) -> EvalRow:
    """One problem's row, from its rows of responses.jsonl in the order of the samples."""
    first = group[0]
    return EvalRow(
        first["model"],
        first["benchmark"],
        str(first["problem_id"]),
        first.get("level"),
        first.get("subject"),
        correct=tuple(bool(row["correct"]) for row in group),
        extracted=tuple(row["extracted"] for row in group),
        lengths=tuple(int(row["length"]) for row in group),
        truncated=tuple(bool(row["truncated"]) for row in group),
        calls=tuple(len(row["calls"]) for row in group if "calls" in row),
    )


def common_problems(runs: Sequence[ModelRun], *, allow_missing: bool) -> list[ModelRun]:
    """The runs with the problems that all of them have, in one order.

    Raises:
        UserError: as `check_same_problems`, no problem in common, or, unless `allow_missing`, problems that not all
            runs have.
    """
    check_same_problems(runs)
    common = set.intersection(*(set(run.questions) for run in runs))
    for run in runs if not allow_missing else ():
        more = sorted(set(run.questions) - common)
        if more:
            raise UserError(
                f"{run.where} has {len(more)} problems that another run lacks ({more[0]}, …; {len(common)} "
                "are in all): evaluate all on the same problems, or compare on those in common with --common"
            )
    if not common:
        raise UserError(f"{' and '.join(run.where for run in runs)} have no problem in common")
    return [
        replace(run, rows=sorted((row for row in run.rows if row.problem_id in common), key=lambda row: row.problem_id))
        for run in runs
    ]


def check_same_problems(runs: Sequence[ModelRun]) -> None:
    """Check that the runs are of one benchmark, which has not changed between them.

    Raises:
        UserError: different benchmarks, or one id for two questions or two true answers.
    """
    first = runs[0]
    for run in runs[1:]:
        if run.benchmark != first.benchmark:
            raise UserError(
                f"{first.where} is an evaluation on {first.benchmark}, {run.where} on {run.benchmark}: "
                "compare on one benchmark (--benchmark)"
            )
        for id in sorted(first.questions.keys() & run.questions.keys()):
            answers = (first.answers.get(id, []), run.answers.get(id, []))
            if first.questions[id] != run.questions[id]:
                change = f"asks one thing in {first.where} and another in {run.where}"
            elif all(answers) and not _agree(*answers):
                change = f"has the true answer {answers[0][0]} in {first.where} and {answers[1][0]} in {run.where}"
            else:
                continue
            raise UserError(
                f"problem {id} {change}: {run.benchmark} has changed between the two evaluations; repeat the older one"
            )


def _agree(first: Sequence[str], second: Sequence[str]) -> bool:
    """Whether two lists of accepted answers have one in common, which other trainers may write in another way."""
    return first == second or any(grade(answer, second).correct for answer in first)
