"""`mathrl decontaminate`: one file against others, row by row, without a project around it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.files import write_jsonl
from mathrl.core.types import Problem
from mathrl.data.decontaminate import EvaluationIndex, Hit, find_hits
from mathrl.data.row_files import Row, list_files, read_rows
from mathrl.data.row_values import look_up

QUESTION_KEYS = ("question", "problem", "prompt", "query")
FURTHER_KEYS = ("solution", "answer", "reward_model.ground_truth")


def decontaminate_files(
    train: Path, against: Sequence[Path], *, ngram: int, min_share: float, output: Path, report: Path
) -> dict[str, Any]:
    """Write the clean rows of `train` unchanged to `output`, and every hit to `report`, strongest first.

    Hits of a share below `min_share` are reported with dropped false; their rows are clean.
    The training text is the row's question, and its solution where it has one. A chat list is its user turns.

    Returns:
        {"rows": 17176, "kept": 11391, "dropped": 5785, "hits_by_file": {"math_test.jsonl.gz": 5104}, …}

    Raises:
        UserError: a file that cannot be read, or a row without a question.
    """
    index = EvaluationIndex(ngram)
    homes: dict[str, str] = {}
    for file in (f for path in against for f in list_files(path)):
        for row in read_rows(file):
            problem = _problem(row)
            if problem.id in homes:  # e.g. both files number their rows from 1
                problem = problem.with_(id=f"{file.name}/{problem.id}")
            homes[problem.id] = file.name
            index.add_problem(problem)
    if not index.texts:
        raise UserError(f"{', '.join(map(str, against))}: no evaluation text of 3 grams or more")
    hits: list[Hit] = []
    counts: Counter[str] = Counter()

    def clean() -> Iterator[dict[str, Any]]:
        for file in list_files(train):
            for row in read_rows(file):
                counts["rows"] += 1
                ((_, strongest),) = find_hits([_problem(row)], index)
                hits.extend([strongest] if strongest else [])
                if strongest is None or strongest.share < min_share:
                    yield row.values

    kept = write_jsonl(output, clean())
    hits.sort(key=lambda hit: -hit.share)
    write_jsonl(report, (hit.to_row(min_share) for hit in hits))
    dropped = [hit for hit in hits if hit.share >= min_share]
    return {
        "rows": counts["rows"],
        "kept": kept,
        "dropped": len(dropped),
        "hits": len(hits),
        "ngram": ngram,
        "min_share": min_share,
        "evaluation_texts": len(index.texts),
        "too_short": len(index.too_short),
        "hits_by_file": dict(Counter(homes[hit.eval_id] for hit in dropped)),
    }


def _problem(row: Row) -> Problem:
    if row.problem:
        raise UserError(f"{row.where}: {row.problem}")
    question = next((text for key in QUESTION_KEYS if (text := _text(look_up(row.values, key)))), None)
    if question is None:
        raise UserError(
            f"{row.where}: no question (looked for {', '.join(QUESTION_KEYS)}; found "
            f"{', '.join(sorted(row.values)) or 'no field'})"
        )
    solution = _text(row.values.get("solution"))
    answers = [text for key in FURTHER_KEYS[1:] if (text := _text(look_up(row.values, key)))]
    id = row.values.get("id")
    return Problem(str(id) if id is not None else row.name, question, tuple(answers), row.name, "sft", solution)


def _text(value: Any) -> str | None:
    if isinstance(value, list):
        turns = [turn["content"] for turn in value if isinstance(turn, dict) and turn.get("role") == "user"]
        return "\n".join(map(str, turns)) or None
    return value if isinstance(value, str) and value.strip() else None
