"""Problems as rows of other systems: veRL (parquet or jsonl) and RLinf (jsonl). Reading them back gives the
same question and answers (row_formats.py)."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from mathrl.core.errors import UserError
from mathrl.core.files import encodable, write_jsonl, written_aside
from mathrl.core.types import Problem

Format = Literal["verl", "rlinf"]


def to_verl(problem: Problem, index: int) -> dict[str, Any]:
    """A row of veRL's RLHFDataset.

    Example:
        {"data_source": "gsm8k", "prompt": [{"role": "user", "content": "…"}], "ability": "math",
         "reward_model": {"style": "rule", "ground_truth": "72"},
         "extra_info": {"split": "rl", "index": 0, "id": "gsm8k/train/00000", "answers": ["72"]}}
    """
    messages = [dict(turn) for turn in problem.control.messages] or [{"role": "user", "content": problem.question}]
    return {
        "data_source": problem.control.data_source or problem.source,
        "prompt": messages,
        "ability": problem.subject or "math",
        "reward_model": {"style": "rule", "ground_truth": next(iter(problem.answers), "")},
        "extra_info": {"split": problem.split, "index": index, "id": problem.id, "answers": list(problem.answers)},
    }


def to_rlinf(problem: Problem) -> dict[str, Any]:
    """A row of RLinf's math data sets.

    Example:
        {"prompt": "…", "task": "math", "query_id": "gsm8k/train/00000", "solutions": ["72"]}
    """
    return {
        "prompt": problem.question,
        "task": problem.control.task or "math",
        "query_id": problem.id,
        "solutions": list(problem.answers),
    }


def export(problems: Sequence[Problem], format: Format, output: Path) -> int:
    """Write the rows and return their number; a name ending in .parquet gives a parquet file.

    Parquet holds no lone surrogates: they become backslash escapes, and their rows are counted on stderr.

    Raises:
        UserError: RLinf rows are asked for as parquet.
    """
    parquet = output.suffix == ".parquet"
    if format == "rlinf":
        if parquet:
            raise UserError(f"{output}: RLinf reads jsonl; name the output .jsonl")
        return write_jsonl(output, (to_rlinf(problem) for problem in problems))
    rows = [to_verl(problem, index) for index, problem in enumerate(problems)]
    if not parquet:
        return write_jsonl(output, rows)
    return write_parquet(output, rows)


def write_parquet(output: Path, rows: Sequence[dict[str, Any]]) -> int:
    """Write the rows as parquet and return their number; escaped lone surrogates are counted on stderr.

    Raises:
        UserError: a column's values have several types.
    """
    import pyarrow  # 0.3 s, and only parquet needs it
    import pyarrow.parquet

    valid = [_valid(row) for row in rows]
    escaped = sum(row != valid_row for row, valid_row in zip(rows, valid, strict=True))
    names = dict.fromkeys(name for row in valid for name in row)  # of all rows: `from_pylist` takes those of the first
    try:
        table = pyarrow.table({name: [row.get(name) for row in valid] for name in names})
    except pyarrow.ArrowException as error:
        raise UserError(f"{output}: the rows do not fit into columns ({error}); name the output .jsonl") from None
    with written_aside(output) as aside:
        pyarrow.parquet.write_table(table, aside)
    if escaped:
        print(f"{output}: lone surrogates, which parquet does not hold, are escaped in {escaped} rows", file=sys.stderr)
    return len(rows)


def _valid(value: Any) -> Any:
    r"""The value with every string valid Unicode: `_valid(["\ud83d"])` has a backslash escape in it."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, list | tuple):
        return [_valid(item) for item in value]
    if isinstance(value, dict):
        return {_valid(name): _valid(item) for name, item in value.items()}
    return value
