"""The files of kept rollouts: a file per step while a run trains, one file with a row group per step at its end.

home()/records/rl-77aa…-1/rollouts/step-000012.parquet   while it trains
                         rollouts/rollouts.parquet      at its end, and as reports/rl/rollouts.parquet
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mathrl.core.errors import UserError
from mathrl.core.files import remove_leftovers, written_aside

WHOLE = "rollouts.parquet"
TEXT, NUMBER = pa.string(), pa.float32()
# Per response; then per token of it. `ratios` are those of the policy after the step's updates to the sampled one.
RESPONSE = {
    "step": pa.int32(), "problem": TEXT, "question": TEXT, "answers": pa.list_(TEXT), "source": TEXT,
    "level": pa.int32(), "response": pa.int32(), "text": TEXT, "correct": pa.bool_(), "extracted": TEXT,
    "rule": TEXT, "reward": pa.float64(), "parts": pa.map_(TEXT, pa.float64()), "length": pa.int32(),
    "truncated": pa.bool_(), "repeated": NUMBER, "disagrees": pa.bool_(), "odd": pa.list_(TEXT),
    "trained": pa.bool_(),
    # The code and output of each tool call; tokens `start` to `end` of the response are the tool's.
    "calls": pa.list_(pa.struct({
        "start": pa.int32(), "end": pa.int32(), "status": TEXT, "code": TEXT, "output": TEXT,
    })),
}  # fmt: skip
TOKENS = {
    "tokens": pa.list_(pa.int32()), "pieces": pa.list_(TEXT), "logprobs": pa.list_(NUMBER),
    "advantages": pa.list_(NUMBER), "ratios": pa.list_(NUMBER),
}  # fmt: skip
SCHEMA = pa.schema({**RESPONSE, **TOKENS})
ADDED = ("calls",)  # columns that the files of older runs do not have


class RolloutFolder:
    """Where a run keeps rollouts. With `resume_after` what was kept up to that step stays; all else is removed.

    Every step has its file, an empty one if nothing of it is kept, so that a missing step is noticed.
    """

    def __init__(self, folder: Path, resume_after: int | None) -> None:
        self.folder = folder
        if resume_after is None:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
        whole = folder / WHOLE
        if whole.exists():  # the run ended, and what followed was cut off
            steps = {int(table["step"][0].as_py()): table for table in _row_groups(whole)}
            for step in range(1, (resume_after or 0) + 1):
                self._write(step, steps.get(step, SCHEMA.empty_table()))
            whole.unlink()
        for file in self.steps():
            if _step_of(file) > (resume_after or 0):
                file.unlink()

    def steps(self) -> list[Path]:
        """The files of the steps, in order."""
        return sorted(self.folder.glob("step-*.parquet"))

    def write(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keep the rows of a step."""
        columns = {name: [row[name] for row in rows] for name in SCHEMA.names}
        self._write(step, pa.table(columns, schema=SCHEMA))

    def finish(self, steps: int) -> list[int]:
        """Make one file of those of the steps; returns the steps, of so many, that are missing."""
        files = self.steps()
        with written_aside(self.folder / WHOLE) as aside, pq.ParquetWriter(aside, SCHEMA, compression="zstd") as writer:
            for file in files:
                table = pq.read_table(file)
                if len(table):
                    writer.write_table(table, row_group_size=len(table))
        for file in files:
            file.unlink()
        return sorted(set(range(1, steps + 1)) - {_step_of(file) for file in files})

    def _write(self, step: int, table: pa.Table) -> None:
        with written_aside(self.folder / f"step-{step:06d}.parquet") as aside:
            pq.write_table(table, aside, compression="zstd")


def rollout_files(folder: Path) -> list[Path]:
    """The parquet files of a folder with kept rollouts, in the order of steps; empty if it has none."""
    whole = folder / WHOLE
    return [whole] if whole.is_file() else sorted(folder.glob("step-*.parquet"))


def read_responses(files: Sequence[Path]) -> pa.Table:
    """All columns but those per token.

    Raises:
        UserError: a file has no kept rollouts.
    """
    for file in files:
        try:
            missing = [name for name in SCHEMA.names if name not in (*pq.read_schema(file).names, *ADDED)]
        except pa.ArrowInvalid as error:
            raise UserError(f"{file}: not a parquet file ({error})") from None
        if missing:
            raise UserError(f"{file}: no kept rollouts: the columns {', '.join(missing)} are missing")
    tables = [_read_all(file) for file in files]
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()


def _read_all(file: Path) -> pa.Table:
    """The columns of responses; those that an older run's file does not have are empty lists."""
    there = pq.read_schema(file).names
    table = pq.read_table(
        file,
        columns=[name for name in RESPONSE if name in there],
        read_dictionary=["problem", "question", "source", "rule"],
    )
    for name in ADDED:
        if name not in there:
            table = table.append_column(name, pa.array([[]] * len(table), RESPONSE[name]))
    return table.select(list(RESPONSE))


def read_tokens(files: Sequence[Path], row: int) -> dict[str, Any]:
    """The columns per token of the row of this number over all files."""
    for file in files:
        parquet = pq.ParquetFile(file)
        for number in range(parquet.num_row_groups):
            size = parquet.metadata.row_group(number).num_rows
            if row < size:
                table = parquet.read_row_group(number, columns=list(TOKENS))
                return dict(table.slice(row, 1).to_pylist()[0])
            row -= size
    raise IndexError(row)


def _row_groups(file: Path) -> list[pa.Table]:
    """The tables of the steps in a run's one file."""
    table = pq.read_table(file)
    return [table.filter(pc.equal(table["step"], step)) for step in pc.unique(table["step"])]


def _step_of(file: Path) -> int:
    return int(file.stem.rpartition("-")[2])
