"""Decontamination of a million rows against 50 test sets, beside allenai/decon on the same cores.

    python benchmarks/decontamination_scale.py DATA [--rows 1000000] [--peer PYTHON]

DATA is the folder of decontamination.py, with the files of TRAINING too. Test sets are the questions of TEST in files
of 500, filled up to 50 files with generated problems. Rows are the questions of TRAINING with other numbers in each
round, until there are enough, and 4,000 changed copies of test questions (DISTANCES of decontamination.py) at random
places. Both tools read files, use as many processes or threads as there are cores, and write a report: mathrl by the
command `mathrl data decontaminate`, which writes the clean rows too, decon by `detect`. Recalls are those at the
threshold from which a tool hits at most one row in 2,000 of those made from CLEAN, which shares no problem with TEST.
Wall seconds need a quiet machine; processor seconds are those of all processes.
"""

import argparse
import json
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, islice
from pathlib import Path

from curate_scale import Meter
from decontamination import DISTANCES, SHORT, other_numbers

from mathrl.core.files import read_jsonl, write_jsonl
from mathrl.curation.decontaminate_files import decontaminate_files
from mathrl.generators import generate
from mathrl.params.data import Decontaminate

TEST = ("gsm8k_test.jsonl", "math_test.jsonl.gz", "svamp_test.jsonl", "minerva_math_test.jsonl", "amc23_test.jsonl")
CLEAN = ("gsm8k_train.jsonl.gz",)
TRAINING = (*CLEAN, "math_train.jsonl.gz", "dapo_math_17k_train.jsonl.gz")
SETS, SET_SIZE, COPIES = 50, 500, 1000
PEER = """
import decon, json, sys
decon.detect(decon.Config(training_dir=sys.argv[1], evals_dir=sys.argv[2], report_output_dir=sys.argv[3],
                          contamination_score_threshold=0.01, **json.loads(sys.argv[4])))
"""


def questions(data: Path, names: tuple[str, ...]) -> list[str]:
    return [row["question"] for name in names for row in read_jsonl(data / name)]


def test_questions(data: Path) -> list[str]:
    """The questions of the test sets, and generated ones behind them: SETS * SET_SIZE in all."""
    real = questions(data, TEST)
    missing = SETS * SET_SIZE - len(real)
    return [*real, *(problem.question for problem in generate("word_problem", {"test": missing}, {}, seed=2))]


def training_rows(data: Path, rows: int, copies: list[tuple[str, str]]) -> Iterator[dict[str, str]]:
    """`rows` rows with an id, the copies among them under their own ids."""
    rng, real = random.Random(1), questions(data, TRAINING)
    places = dict(zip(rng.sample(range(rows), len(copies)), copies, strict=True))
    clean = len(questions(data, CLEAN))
    changed = (
        ("clean" if i < clean else "row", other_numbers(text, rng)) for _ in count() for i, text in enumerate(real)
    )
    for place, (kind, text) in enumerate(islice(changed, rows)):
        id, question = places.get(place, (f"{kind}-{place}", text))
        yield {"id": id, "question": question, "text": question, "answer": "1"}


def ours(folder: Path) -> dict[str, float]:
    """The share of each row that `mathrl data decontaminate` hits, by its id."""
    rule, report = Decontaminate(ngram=10, min_share=0.5), folder / "hits.jsonl"
    train, output = folder / "train" / "t.jsonl", folder / "clean.jsonl"
    decontaminate_files(train, [folder / "sets"], rule=rule, output=output, report=report)
    return {row["train_id"]: row["share"] for row in read_jsonl(report)}


def peer(folder: Path, python: str, options: dict[str, int]) -> dict[str, float]:
    """The score of each row in decon's report, by its id."""
    report = folder / f"report{len(options)}"
    command = [python, "-c", PEER, str(folder / "train"), str(folder / "evals"), str(report), json.dumps(options)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    scores: dict[int, float] = {}
    for row in (row for file in report.glob("*.jsonl") for row in read_jsonl(file)):
        scores[row["training_line"]] = max(scores.get(row["training_line"], 0.0), row["contamination_score"])
    rows = enumerate(read_jsonl(folder / "train" / "t.jsonl"))
    return {row["id"]: scores[line] for line, row in rows if line in scores}


def threshold(scores: dict[str, float], most: int) -> float:
    """The lowest score from which at most so many clean rows are hit."""
    others = sorted((score for id, score in scores.items() if id.startswith("clean")), reverse=True)
    above = [score for score in set(scores.values()) if sum(other >= score for other in others[: most + 1]) <= most]
    return min(above, default=float("inf"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--peer", help="Python interpreter with decon.")
    given = parser.parse_args()
    rng, test = random.Random(0), test_questions(given.data)
    real = test[: len(questions(given.data, TEST))]
    copies = [
        (f"{name}-{number}", change(text, rng))
        for name, change in DISTANCES.items()
        for number, text in enumerate(rng.sample(real, COPIES))
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("train", "sets", "evals"):
            (folder / part).mkdir()
        write_jsonl(folder / "train" / "t.jsonl", training_rows(given.data, given.rows, copies))
        fixed = {"split": "test", "answer": "", "passage": None, "is_correct": None}
        for number in range(SETS):
            texts = list(enumerate(test[number * SET_SIZE : (number + 1) * SET_SIZE]))
            rows = [{"id": str(i), "question": text, "answer": "1"} for i, text in texts]
            write_jsonl(folder / "sets" / f"set{number}.jsonl", rows)
            rows = [
                {"eval_key": f"set{number}", "eval_instance_index": i, "doc_id": i, "question": text, **fixed}
                | {"fingerprint": f"{number}-{i}"}
                for i, text in texts
            ]
            write_jsonl(folder / "evals" / f"set{number}.jsonl", rows)
        tools: dict[str, Callable[[], dict[str, float]]] = {"mathrl": partial(ours, folder)}
        for name, options in (("decon", {}), ("decon, short questions too", SHORT)) if given.peer else ():
            tools[name] = partial(peer, folder, given.peer, options)
        print(f"{given.rows:,} rows, {SETS} test sets of {SET_SIZE} questions, {os.cpu_count()} cores")
        print(f"| tool | wall s | processor s | peak MiB | threshold | {' | '.join(DISTANCES)} | clean | others |")
        print(f"|{'---|' * (len(DISTANCES) + 7)}")
        for tool, find in tools.items():
            meter, start = Meter(), time.perf_counter()
            scores = find()
            seconds = time.perf_counter() - start
            cpu, peak = meter.stop()
            least = threshold(scores, given.rows // 2000)
            found = {id for id, score in scores.items() if score >= least}
            recall = [sum(f"{name}-{i}" in found for i in range(COPIES)) / COPIES for name in DISTANCES]
            shown = " | ".join(f"{share:.3f}" for share in recall)
            clean, rest = (sum(id.startswith(kind) for id in found) for kind in ("clean", "row"))
            shown += f" | {clean:,} | {rest:,} |"
            print(f"| {tool} | {seconds:.0f} | {cpu:.0f} | {peak:,.0f} | {least:.2f} | {shown}", flush=True)


if __name__ == "__main__":
    main()
