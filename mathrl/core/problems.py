"""Problems on disk."""

from collections.abc import Iterable
from pathlib import Path

from mathrl.core.errors import UserError
from mathrl.core.files import read_numbered_jsonl, write_jsonl
from mathrl.core.types import Problem


def read_problems(path: Path) -> list[Problem]:
    """Read a curated file.

    Raises:
        UserError: no such file, a malformed row, or no rows.
    """
    problems = [Problem.from_row(row, f"{path}, line {number}") for number, row in read_numbered_jsonl(path)]
    if not problems:
        raise UserError(f"{path}: no problems in it; {_share(path)}")
    return problems


def _share(path: Path) -> str:
    """How a split gets problems: `curate.sft_share` and its like, or a source of its own."""
    if path.stem in ("sft", "dev", "test"):
        return (
            f"set curate.{path.stem}_share above 0 (a share of the rows), or give it a source with split: {path.stem}"
        )
    return "give the split a source in params/curate.yaml"


def write_problems(path: Path, problems: Iterable[Problem]) -> int:
    return write_jsonl(path, (problem.to_row() for problem in problems))
