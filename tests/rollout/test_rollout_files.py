"""The files of kept rollouts: of older runs, of a run that was cut off, tokens over several files."""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mathrl.core.errors import UserError
from mathrl.rollout.rollout_files import (
    SCHEMA,
    TOKENS,
    WHOLE,
    RolloutFolder,
    read_responses,
    read_tokens,
    rollout_files,
)


def row(step: int, number: int) -> dict[str, Any]:
    """A response whose one token is 10 * step + number."""
    values: dict[str, Any] = {
        name: 0 if pa.types.is_integer(kind.type) else 0.0 if pa.types.is_floating(kind.type) else None
        for name, kind in zip(SCHEMA.names, SCHEMA, strict=True)
    }
    texts = dict.fromkeys(("problem", "question", "source", "rule", "text"), "x")
    lists = {"tokens": [10 * step + number], "pieces": ["x"], "logprobs": [-1.0], "advantages": [0.5], "ratios": [1.0]}
    return {**values, **texts, **lists, "calls": [], "odd": [], "parts": {}, "correct": True, "step": step}


def written(folder: Path, steps: int = 3) -> RolloutFolder:
    rollouts = RolloutFolder(folder, None)
    for step in range(1, steps + 1):
        rollouts.write(step, [row(step, number) for number in range(step)])
    return rollouts


def test_tokens_are_those_of_the_row_over_all_files(tmp_path: Path) -> None:
    rollouts = written(tmp_path / "a" / "b")  # neither is there
    tokens = [10, 20, 21, 30, 31, 32]
    for _ in range(2):  # a file per step, then one with a group of rows per step
        files = rollout_files(rollouts.folder)
        found = [read_tokens(files, n) for n in range(6)]
        assert [each["tokens"] for each in found] == [[token] for token in tokens] and set(found[0]) == set(TOKENS)
        with pytest.raises(IndexError):
            read_tokens(files, 6)
        if not (rollouts.folder / WHOLE).exists():
            assert rollouts.finish(4) == [4]
    assert [file.name for file in rollout_files(rollouts.folder)] == [WHOLE]
    assert pq.ParquetFile(rollouts.folder / WHOLE).metadata.row_group(0).column(0).compression == "ZSTD"


def test_the_one_file_counts_where_a_kill_left_those_of_steps_beside_it(tmp_path: Path) -> None:
    rollouts = written(tmp_path / "rollouts")
    rollouts.finish(3)
    rollouts.write(4, [row(4, 0)])
    assert [file.name for file in rollout_files(rollouts.folder)] == [WHOLE]


def test_what_a_killed_process_left_half_written_goes_when_the_run_goes_on(tmp_path: Path) -> None:
    folder = written(tmp_path / "rollouts").folder
    left = folder / f".step-000004.parquet.{2**22 + os.getpid()}-0123abcd-0.partial"  # of no process
    left.touch()
    assert len(RolloutFolder(folder, 3).steps()) == 3 and not left.exists()


def test_a_run_that_had_ended_goes_on_after_any_step(tmp_path: Path) -> None:
    folder = tmp_path / "rollouts"
    for ended in (True, False):
        rollouts = RolloutFolder(folder, None)
        for step, rows in ((1, 1), (2, 0), (3, 2), (4, 1)):
            rollouts.write(step, [row(step, number) for number in range(rows)])
        if ended:
            assert rollouts.finish(4) == [] and rollouts.steps() == []
        again = RolloutFolder(folder, 3)
        assert [file.name for file in folder.iterdir() if file not in again.steps()] == []
        assert [pq.read_table(file)["tokens"].to_pylist() for file in again.steps()] == [[[10]], [], [[30], [31]]]
        assert RolloutFolder(folder, 0).steps() == []


def test_a_file_without_kept_rollouts_is_named(tmp_path: Path) -> None:
    file = tmp_path / "other.parquet"
    pq.write_table(pa.table({"step": [1], "text": ["x"]}), file)
    with pytest.raises(UserError, match=r"other\.parquet: no kept rollouts: the columns problem, .* are missing"):
        read_responses([file])
    file.write_text("step,text")
    with pytest.raises(UserError, match=r"other\.parquet: not a parquet file"):
        read_responses([file])


def test_a_file_of_an_older_run_has_no_calls(tmp_path: Path) -> None:
    folder = written(tmp_path / "rollouts").folder
    for file in rollout_files(folder)[:2]:  # the run went on with this version
        pq.write_table(pq.read_table(file).drop_columns(["calls"]), file)
    table = read_responses(rollout_files(folder))
    assert table["calls"].to_pylist() == [[]] * 6 and table["step"].to_pylist() == [1, 2, 2, 3, 3, 3]
