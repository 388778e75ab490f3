r"""Training rows that decontamination drops, by the rule for the share of a hit and by its threshold. Prints a table.

    python benchmarks/contamination_share.py TRAIN.jsonl.gz EVALUATION.jsonl...

"equal" are rows whose question is an evaluation question, "beyond" are the other dropped rows.
"""

import sys
from pathlib import Path
from typing import Literal

from mathrl.core.types import Problem
from mathrl.curation.decontaminate import EvaluationIndex, find_hits
from mathrl.data.grams import exact_key
from mathrl.reading.row_files import read_rows


def problems(file: str, split: str) -> list[Problem]:
    rows = (row.values for row in read_rows(Path(file)))
    return [
        Problem(str(row["id"]), row["question"], (str(row["answer"]),), "s", split, solution=row.get("solution"))
        for row in rows
    ]


def main() -> None:
    train, against = problems(sys.argv[1], "rl"), [p for file in sys.argv[2:] for p in problems(file, "test")]
    keys = {exact_key(problem.question) for problem in against}
    equal = {problem.id for problem in train if exact_key(problem.question) in keys}
    print(f"{len(train):,} rows, {len(equal):,} of them equal\n")
    print("| min_share | coverage: equal, beyond | words: equal, beyond |\n|---|---|---|")
    shares: dict[str, list[tuple[str, float]]] = {}
    rules: tuple[Literal["coverage", "words"], ...] = ("coverage", "words")
    for rule in rules:
        index = EvaluationIndex(10, rule)
        for problem in against:
            index.add_problem(problem)
        shares[rule] = [(problem.id, hit.share) for problem, hit in find_hits(train, index) if hit]
    for threshold in (0.0, 0.3, 0.4, 0.5, 0.6, 0.7):
        cells = []
        for rule in rules:
            dropped = [id for id, share in shares[rule] if share >= threshold]
            same = sum(id in equal for id in dropped)
            cells.append(f"{same:,}, {len(dropped) - same:,}")
        print(f"| {threshold} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
