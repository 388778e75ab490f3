"""`mathrl data decontaminate`: one file against others, row by row, without a project around it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, tee
from pathlib import Path
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.files import write_jsonl, written_aside
from mathrl.core.types import Problem
from mathrl.curation.decisions import Hit
from mathrl.curation.decontaminate import EvaluationIndex, evaluation_index, find_hits
from mathrl.curation.processes import in_order
from mathrl.data.export import write_parquet
from mathrl.params.data import Decontaminate
from mathrl.reading.row_files import Row, list_files, read_rows
from mathrl.reading.row_values import look_up, payload

QUESTION_KEYS = ("question", "problem", "prompt", "query")
ANSWER_KEYS = ("answer", "reward_model.ground_truth")
OUTPUTS = (".jsonl", ".jsonl.gz", ".parquet")
PER_TASK = 1 << 12  # rows of a process's task: fewer than three tasks stay in one process


@dataclass(frozen=True)
class Keys:
    """The fields of the training rows; None: the first known name that the row has.

    Evaluation rows are read by the same fields where they have them, else by the known names.
    """

    prompt: str | None = None
    solution: str | None = None
    answer: str | None = None
    id: str | None = None


def decontaminate_files(
    train: Path, against: Sequence[Path], *, rule: Decontaminate, output: Path, report: Path, keys: Keys | None = None
) -> dict[str, Any]:
    """Write the clean rows of `train` unchanged to `output`, and every hit to `report`, strongest first.

    Hits of a share below `rule.min_share` are reported with dropped false; their rows are clean. The training text is
    the row's question, and its solution where it has one. A chat list is its user turns. Of a parquet file that is
    written as parquet the columns keep their types.

    Returns:
        {"rows": 17176, "kept": 11391, "dropped": 5785, "hits_by_file": {"math_test.jsonl.gz": 5104}, …}

    Raises:
        UserError: a file that cannot be read, a row without a question, or an output of another format.
    """
    if not output.name.endswith(OUTPUTS):
        raise UserError(f"{output}: rows are written as {', '.join(OUTPUTS)}; name the output so")
    keys = keys or Keys()
    index, homes = _evaluation(against, keys, rule)
    hits: list[Hit] = []
    counts: Counter[str] = Counter()

    def clean() -> Iterator[Row]:
        rows, same = tee(row for file in list_files(train) for row in read_rows(file))
        problems = (_problem(row, keys, strict=True) for row in same)
        tasks = iter(lambda: list(islice(problems, PER_TASK)), [])
        hits_of_rows = (hit for found in in_order(_strongest, index, tasks) for hit in found)
        for row, strongest in zip(rows, hits_of_rows, strict=True):
            counts["rows"] += 1
            hits.extend([strongest] if strongest else [])
            if strongest is None or not strongest.is_dropped(rule.min_share):
                yield row

    kept = _write(output, clean(), list_files(train))
    hits.sort(key=lambda hit: -hit.share)
    write_jsonl(report, (hit.to_row(rule.min_share) for hit in hits))
    dropped = [hit for hit in hits if hit.is_dropped(rule.min_share)]
    return {
        "rows": counts["rows"],
        "kept": kept,
        "dropped": len(dropped),
        "hits": len(hits),
        "ngram": rule.ngram,
        "min_share": rule.min_share,
        "evaluation_texts": len(index.texts),
        "too_short": len(index.too_short),
        "hits_by_file": dict(Counter(homes[hit.eval_id] for hit in dropped)),
    }


def _strongest(index: EvaluationIndex, problems: Sequence[Problem]) -> list[Hit | None]:
    return [hit for _, hit in find_hits(problems, index)]


def _evaluation(against: Sequence[Path], keys: Keys, rule: Decontaminate) -> tuple[EvaluationIndex, dict[str, str]]:
    """The index of the evaluation texts, and the file of each id."""
    index = evaluation_index(rule)
    homes: dict[str, str] = {}
    for file in (f for path in against for f in list_files(path)):
        for row in read_rows(file):
            problem = _problem(row, keys, strict=False)
            if problem.id in homes:  # e.g. both files number their rows from 1
                problem = problem.with_(id=f"{file.name}/{problem.id}")
            homes[problem.id] = file.name
            index.add_problem(problem)
    if not index.texts:
        raise UserError(f"{', '.join(map(str, against))}: no evaluation text of 3 grams or more")
    return index, homes


def _problem(row: Row, keys: Keys, *, strict: bool) -> Problem:
    """The texts of a row; a `strict` row must have the fields that `keys` names."""
    if row.problem:
        raise UserError(f"{row.where}: {row.problem}")
    named = (keys.prompt, keys.solution, keys.answer, keys.id)
    for key in named if strict else ():
        if key is not None and look_up(row.values, key) is None:
            fields = ", ".join(sorted(row.values)) or "no field"
            raise UserError(f"{row.where}: no field {key!r} (found {fields})")
    questions = [keys.prompt] if keys.prompt and strict else [*filter(None, [keys.prompt]), *QUESTION_KEYS]
    question = next((text for key in questions if (text := _text(look_up(row.values, key)))), None)
    if question is None:
        raise UserError(
            f"{row.where}: no question (looked for {', '.join(questions)}; found "
            f"{', '.join(sorted(row.values)) or 'no field'}); name its field with --prompt-key"
        )
    solution = _text(look_up(row.values, keys.solution or "solution"))
    answer_keys = [keys.answer, *ANSWER_KEYS] if keys.answer else ANSWER_KEYS
    answers = [text for key in answer_keys if (text := _text(look_up(row.values, key)))]
    id = look_up(row.values, keys.id or "id")
    return Problem(str(id) if id is not None else row.name, question, tuple(answers), row.name, "sft", solution)


def _text(value: Any) -> str | None:
    if isinstance(value, list):
        turns = [turn["content"] for turn in value if isinstance(turn, dict) and turn.get("role") == "user"]
        return "\n".join(map(str, turns)) or None
    return value if isinstance(value, str) and value.strip() else None


def _write(output: Path, clean: Iterator[Row], files: Sequence[Path]) -> int:
    if output.suffix != ".parquet":
        return write_jsonl(output, (payload(row.values) for row in clean))
    if len(files) > 1 or files[0].suffix != ".parquet":
        return write_parquet(output, [row.values for row in clean])
    import pyarrow.parquet  # 0.3 s, and only parquet needs it

    table = pyarrow.parquet.read_table(files[0])
    kept = [int(row.name.rpartition(":")[2]) - 1 for row in clean]
    with written_aside(output) as aside:
        pyarrow.parquet.write_table(table.take(kept), aside)
    return len(kept)
