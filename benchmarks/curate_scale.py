"""Time and memory of curation: `python benchmarks/curate_scale.py [10000 100000 1000000] [--problems FOLDER]`.

Generated problems (chains, word problems, fractions, equations, number theory) in one file go through reading, exact
and near deduplication, decontamination against 10,000 evaluation questions of other seeds, the shares of dev and sft,
and are written as the stage writes them. `--mixture` also draws a mixture of half of the rl split, in memory, as the
stage mix does. More rows than BLOCK come from several seeds, so that they repeat each other as real sets do.

Each size runs in a process of its own. Processor seconds are those of all processes. The peak of memory is that of all
processes together, sampled up to five times per second: memory that they share, such as mapped files, counts once.
Growth is relative to the size before. On a busy machine wall seconds and `load` (jobs that wanted a core, at the end)
say how much others took. Each pair of neighbouring sizes says what `--to` rows would take if that growth went on:
processor time as a power of the rows, memory and disk in proportion to the further rows.

With `--problems` the generated problems and the figures of a finished size are kept in that folder, and a size that has
its figures there is not measured again: large sizes can run one by one. Remove SIZE.json to measure it once more.
"""

import argparse
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from mathrl.core.files import read_json, write_json, write_jsonl
from mathrl.curation import curation
from mathrl.data.mixture import mix
from mathrl.generators import generate
from mathrl.params.data import Curate, Mix

SHARES = {"word_problem": 0.4, "chain": 0.2, "fractions": 0.15, "linear_equation": 0.15, "product": 0.1}
OPTIONS: dict[str, dict[str, Any]] = {
    "chain": {"steps": [5, 6, 7, 8], "largest_number": 20, "largest_result": 200},
    "fractions": {"kinds": [3, 5], "largest_denominator": 60},
    "linear_equation": {"forms": [2, 3, 4, 5], "largest_number": 99},
    "product": {"kinds": [2]},
}
EVALUATION, BLOCK = 10_000, 250_000
RULES: dict[str, Any] = {
    "deduplicate": {"exact": True, "near": {"ngram": 5, "threshold": 0.8}},
    "decontaminate": {"ngram": 10, "min_share": 0.8},
    "dev_share": 0.01,
    "sft_share": 0.1,
}


def make(file: Path, count: int, seed: int) -> None:
    def rows() -> Any:
        for block, start in enumerate(range(0, count, BLOCK)):
            size = min(BLOCK, count - start)
            for name, share in SHARES.items():
                for problem in generate(
                    name, {"rl": round(share * size)}, OPTIONS.get(name, {}), seed=seed + 2 * block
                ):
                    id = f"{seed + 2 * block}/{problem.id}"
                    yield {"id": id, "question": problem.question, "answer": problem.answers[0]}

    write_jsonl(file, rows())


class Meter:
    """Processor seconds and memory of this process and its descendants, sampled on a thread.

    A sample walks all mapped memory, up to tenths of a second for gigabytes: its own time is not counted.
    """

    def __init__(self) -> None:
        self.peak, self._used, self._done = 0, dict[int, float](), threading.Event()
        self._own = 0.0
        self._sample()
        self._before = self.seconds()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def seconds(self) -> float:
        return sum(self._used.values())

    def stop(self) -> tuple[float, float]:
        """Processor seconds since the start, and the peak in MiB."""
        self._done.set()
        self._thread.join()
        self._sample()
        return self.seconds() - self._before - self._own, self.peak / 2**20

    def _watch(self) -> None:
        spent = 0.0
        while not self._done.wait(max(0.2, 10 * spent)):
            before = time.thread_time()
            self._sample()
            spent = time.thread_time() - before
            self._own += spent

    def _sample(self) -> None:
        memory = 0
        own = psutil.Process()
        for process in [own, *own.children(recursive=True)]:
            try:
                times = process.cpu_times()
                self._used[process.pid] = times.user + times.system
                memory += process.memory_full_info().pss
            except psutil.Error:  # it has ended meanwhile
                continue
        self.peak = max(self.peak, memory)


def one(count: int, mixture: bool, problems: Path | None) -> None:
    with tempfile.TemporaryDirectory(dir=problems) as folder:
        kept = problems or Path(folder)
        train, test = kept / f"train-{count}.jsonl", kept / f"test-{count}.jsonl"
        if not (train.exists() and test.exists()):
            # In a process of its own: what the generators leave behind is no part of curation's memory.
            made = [sys.executable, __file__, "--make", str(train), str(count), str(test)]
            subprocess.run(made, check=True)
        shared = {"type": "file", "id_key": "id"}
        sources = [
            {"name": "train", "path": str(train), "split": "rl", **shared},
            {"name": "test", "path": str(test), "split": "test", **shared},
        ]
        meter, start = Meter(), time.perf_counter()
        result = curation.run(Curate.model_validate({"sources": sources, **RULES}), 0, folder=Path(folder) / "rows")
        for split, problems in result.splits.items():
            with (Path(folder) / f"{split}.jsonl").open("wb") as stream:
                stream.writelines(problems.lines())
        if mixture:
            rl = list(result.splits["rl"])
            mix(rl, {}, Mix.model_validate({"components": [{"source": "*", "weight": 1}], "size": len(rl) // 2}), 0)
        seconds = time.perf_counter() - start
        cpu, peak = meter.stop()
        steps = {step.name: [step.rows_in, step.rows_out] for step in result.steps}
        disk = sum(file.stat().st_size for file in (Path(folder) / "rows").iterdir()) / 2**20
    row = {"rows": count, "seconds": seconds, "cpu_s": cpu, "peak_mib": peak, "disk_mib": disk, "steps": steps}
    print(json.dumps(row | {"load": os.getloadavg()[0]}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", type=int, default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--mixture", action="store_true", help="Draw a mixture of the rl split as well.")
    parser.add_argument("--problems", type=Path, help="Keep the generated problems and the figures here.")
    parser.add_argument("--to", type=int, default=100_000_000, help="Rows to extrapolate to.")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--make", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.problems:
        given.problems.mkdir(parents=True, exist_ok=True)
    if given.make:
        make(Path(given.make[0]), int(given.make[1]), seed=1)
        make(Path(given.make[2]), EVALUATION, seed=2)
        return
    if given.one:
        one(given.one, given.mixture, given.problems)
        return
    head = f"{'rows':>10} {'seconds':>9} {'cpu s':>8} {'µs/row':>7} {'peak MiB':>9} {'disk MiB':>9}"
    head += f" {'kept':>10} {'load':>5}"
    print(f"{head}  growth: rows, cpu, memory")
    rows: list[dict[str, Any]] = []
    for size in given.sizes:
        row = measured(size, given.mixture, given.problems)
        before = rows[-1] if rows else None
        rows.append(row)
        kept = row["steps"]["decontaminate"][1]
        figures = (
            f"{row['seconds']:>9.1f} {row['cpu_s']:>8.1f} {1e6 * row['cpu_s'] / size:>7.0f} {row['peak_mib']:>9,.0f}"
        )
        names = ("rows", "cpu_s", "peak_mib")
        growth = "" if before is None else "  ".join(f"{row[name] / before[name]:.1f}" for name in names)
        print(f"{size:>10,} {figures} {row['disk_mib']:>9,.0f} {kept:>10,} {row['load']:>5.1f}  {growth}", flush=True)
    for smaller, larger in itertools.pairwise(rows):
        print(extrapolation(smaller, larger, given.to))


def measured(size: int, mixture: bool, problems: Path | None) -> dict[str, Any]:
    """The figures of one size, from the folder of the problems where they are kept there."""
    figures = problems / f"{size}{'-mixture' if mixture else ''}.json" if problems else None
    if figures and figures.exists():
        kept: dict[str, Any] = read_json(figures)
        return kept
    command = [sys.executable, __file__, "--one", str(size), *(["--mixture"] if mixture else [])]
    command += ["--problems", str(problems)] if problems else []
    row: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    if figures:
        write_json(figures, row)
    return row


def extrapolation(smaller: dict[str, Any], larger: dict[str, Any], rows: int) -> str:
    """What `rows` rows would take if the growth between two sizes went on."""
    more = larger["rows"] - smaller["rows"]
    growth = {name: (larger[name] - smaller[name]) / more for name in ("cpu_s", "peak_mib", "disk_mib")}
    power = math.log(larger["cpu_s"] / smaller["cpu_s"]) / math.log(larger["rows"] / smaller["rows"])
    hours = larger["cpu_s"] * (rows / larger["rows"]) ** power / 3600
    memory, disk = ((larger[name] + growth[name] * (rows - larger["rows"])) / 1024 for name in ("peak_mib", "disk_mib"))
    return (
        f"from {smaller['rows']:,} to {larger['rows']:,} rows: {1e6 * growth['cpu_s']:.0f} µs per further row (rows to "
        f"the power {power:.2f}), {1e6 * growth['peak_mib']:.0f} MiB of memory and {1e6 * growth['disk_mib']:,.0f} MiB "
        f"on disk per further million; {rows:,} rows would take {hours:.1f} hours of processor time, {memory:.1f} GiB "
        f"of memory and {disk:.0f} GiB on disk"
    )


if __name__ == "__main__":
    main()
