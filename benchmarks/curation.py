"""Time and memory of curation: `python benchmarks/curation.py [10000 100000 1000000]`.

Generated problems (chains, word problems, fractions, equations, number theory) go through reading, exact and
near deduplication and decontamination against 10,000 evaluation questions of other seeds. Each size runs in a
separate process, so that its memory peak is its own; that of the worker processes is added, the largest once per
core. Growth is relative to the size before, in processor time of all processes (wall time on a busy machine includes
other jobs).
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from mathrl.core.files import write_jsonl
from mathrl.data import curation
from mathrl.data.generators import generate
from mathrl.data.shingles import FEWEST, cores
from mathrl.params.data import Curate

SHARES = {"word_problem": 0.4, "chain": 0.2, "fractions": 0.15, "linear_equation": 0.15, "number_theory": 0.1}
OPTIONS: dict[str, dict[str, Any]] = {
    "chain": {"steps": [5, 6, 7, 8], "largest_number": 20, "largest_result": 200},
    "combinatorics": {"kinds": [1, 3, 5], "largest_number": 80},
    "fractions": {"kinds": [3, 5], "largest_denominator": 60},
    "geometry": {"kinds": [1, 4, 5], "largest_number": 400},
    "linear_equation": {"forms": [2, 3, 4, 5], "largest_number": 99},
    "number_theory": {"kinds": [2, 3, 4], "largest_number": 4000},
    "unit_conversion": {"kinds": [2, 3, 5], "largest_number": 90_000},
}
EVALUATION = 10_000


def make(file: Path, count: int, seed: int) -> None:
    def rows() -> Any:
        for name, share in SHARES.items():
            for problem in generate(name, {"rl": round(share * count)}, OPTIONS.get(name, {}), seed=seed):
                yield {"id": f"{seed}/{problem.id}", "question": problem.question, "answer": problem.answers[0]}

    write_jsonl(file, rows())


def processor_time() -> float:
    """Seconds of this process and of its ended children."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def one(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        train, test = Path(folder) / "train.jsonl", Path(folder) / "test.jsonl"
        start = time.perf_counter()
        make(train, count, seed=1)
        make(test, EVALUATION, seed=2)
        made = time.perf_counter() - start
        shared = {"type": "file", "id_key": "id"}
        params = Curate.model_validate(
            {
                "sources": [
                    {"name": "train", "path": str(train), "split": "rl", **shared},
                    {"name": "test", "path": str(test), "split": "test", **shared},
                ],
                "deduplicate": {"exact": True, "near": {"ngram": 5, "permutations": 128, "threshold": 0.8}},
                "decontaminate": {"ngram": 10, "min_share": 0.8},
            }
        )
        start, used = time.perf_counter(), processor_time()
        result = curation.run(params, seed=0)
        seconds, cpu = time.perf_counter() - start, processor_time() - used
    children = cores() * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss if count >= FEWEST else 0
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + children) / 1024
    steps = {step.name: [step.rows_in, step.rows_out] for step in result.steps}
    print(
        json.dumps(
            {"rows": count, "generate_s": made, "curate_s": seconds, "cpu_s": cpu, "peak_mib": peak, "steps": steps}
        )
    )


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        one(int(sys.argv[2]))
        return
    head = f"{'rows':>10} {'generate s':>11} {'curate s':>9} {'cpu s':>7} {'rows/s':>8} {'peak MiB':>9}"
    print(f"{head} {'kept':>10}  growth: rows, time, memory")
    before = None
    for size in [int(text) for text in sys.argv[1:]] or [10_000, 100_000, 1_000_000]:
        command = [sys.executable, __file__, "--one", str(size)]
        row = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
        kept = row["steps"]["decontaminate"][1]
        seconds, peak = row["curate_s"], row["peak_mib"]
        figures = f"{row['generate_s']:>11.1f} {seconds:>9.1f} {row['cpu_s']:>7.1f} {size / seconds:>8,.0f}"
        growth = (
            ""
            if before is None
            else "  ".join(f"{row[name] / before[name]:.1f}" for name in ("rows", "cpu_s", "peak_mib"))
        )
        print(f"{size:>10,} {figures} {peak:>9,.0f} {kept:>10,}  {growth}", flush=True)
        before = row


if __name__ == "__main__":
    main()
