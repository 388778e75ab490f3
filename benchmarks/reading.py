"""Time and memory of a seeded choice of rows from a large file: `python benchmarks/reading.py [0.25 1 4]` (gigabytes).

A file of JSON lines of about a kilobyte each is read with `limit: 1000`, as curation reads a source, in a process of
its own, so that the peak of memory is its own. Beside it stand reading every row into memory, at the smallest size, and
DuckDB's reservoir sample, where duckdb is installed (`uv pip install duckdb`). Processor time, since other jobs on the
machine lengthen the wall time.
"""

import importlib
import importlib.util
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from mathrl.reading.reading import Read, read_source
from mathrl.reading.row_formats import RowShape
from mathrl.reading.sources import ResolvedSource

LIMIT = 1000
BLOCK = 2000  # rows that are made; the file repeats them


def make(file: Path, gigabytes: float) -> None:
    rows = (
        {"question": f"What is {n} + {n * 7 % 101}?", "answer": str(n + n * 7 % 101), "solution": f"Step {n}. " * 80}
        for n in range(BLOCK)
    )
    block = "".join(json.dumps(row) + "\n" for row in rows).encode()
    with file.open("wb") as stream:
        for _ in range(round(gigabytes * 1e9 / len(block))):
            stream.write(block)


def mathrl(file: Path, limit: int | None = LIMIT) -> int:
    resolved = ResolvedSource("rows", "rl", "", (file,), shapes=(RowShape(solution_key="solution"),), limit=limit)
    read = Read()
    assert len(list(read_source(resolved, 0, read))) == (limit or read.rows.total())
    return read.rows.total()


def whole(file: Path) -> int:
    return mathrl(file, None)


def duckdb(file: Path) -> int:
    duckdb = importlib.import_module("duckdb")
    rows = f"FROM read_json('{file}', format='newline_delimited')"
    sample = f"SELECT * {rows} USING SAMPLE reservoir({LIMIT} ROWS) REPEATABLE (0)"
    assert len(duckdb.sql(sample).fetchall()) == LIMIT
    return duckdb.sql(f"SELECT count(*) {rows}").fetchall()[0][0]


def measured(reader: str, file: Path) -> str:
    rows = globals()[reader](file)
    used = resource.getrusage(resource.RUSAGE_SELF)
    return f"{rows:>12,} {used.ru_utime + used.ru_stime:>12.1f} s {used.ru_maxrss / 1024:>12,.0f} MiB"


def main() -> None:
    if len(sys.argv) > 2 and sys.argv[1] == "--one":
        print(measured(sys.argv[2], Path(sys.argv[3])))
        return
    sizes = sorted(float(size) for size in sys.argv[1:] or ("0.25", "1", "4"))
    print(f"{'gigabytes':>10} {'reader':<14} {'rows':>12} {'processor':>14} {'peak':>16}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.jsonl"
        for size in sizes:
            make(file, size)
            readers = ["mathrl", *(["whole"] if size == sizes[0] else [])]
            readers += ["duckdb"] if importlib.util.find_spec("duckdb") else []
            for reader in readers:
                command = [sys.executable, __file__, "--one", reader, str(file)]
                line = subprocess.run(command, capture_output=True, text=True, check=True).stdout.rstrip("\n")
                print(f"{size:>10g} {reader:<14} {line}", flush=True)


if __name__ == "__main__":
    main()
