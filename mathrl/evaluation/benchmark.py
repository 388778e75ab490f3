"""A benchmark's problems, and what a model made of them: every response, one `EvalRow` per problem."""

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.hashing import derive_seed
from mathrl.core.paths import CURATED_TEST
from mathrl.core.types import EvalRow, Problem, read_problems
from mathrl.params.evaluate import TEST
from mathrl.params.schema import Params
from mathrl.reading.reading import read_source, split_rejected
from mathrl.reading.sources import resolve_benchmark


@dataclass(frozen=True)
class EvaluatedModel:
    """The graded responses of one model to one benchmark.

    `responses` are the rows of responses.jsonl; `dropped` counts problems whose prompt was too long. `verifier` are the
    counters of the verifier where a judge model takes part; a resumed evaluation counts from its resumption.
    """

    model: str
    benchmark: str
    rows: list[EvalRow]
    responses: list[dict[str, Any]]
    dropped: int
    verifier: dict[str, float] | None = None

    def relabel(self, model: str) -> "EvaluatedModel":
        """The same results under another name: for a model folder with the same bytes."""
        rows = [replace(row, model=model) for row in self.rows]
        responses = [{**row, "model": model} for row in self.responses]
        return replace(self, model=model, rows=rows, responses=responses)


def benchmark_problems(name: str, params: Params, test: Path = CURATED_TEST) -> list[Problem]:
    """The problems of a named benchmark, or for the name `test` those of the file `test` (the curated split).

    At most `evaluate.limit` of them, the same ones for every seed.

    Raises:
        UserError: no such benchmark, or its rows cannot be read.
    """
    settings = params.evaluate
    if name == TEST:
        if not test.exists():
            raise UserError(f"{test}: no such file; make the curated splits first: mathrl run curate")
        problems = read_problems(test)
    else:
        rows = read_source(resolve_benchmark(name, settings.data_folder), params.run.seed)
        problems, _ = split_rejected(rows, "a benchmark with a bad row is not used")
    if settings.limit is not None and settings.limit < len(problems):
        # Independent of run.seed: runs with different seeds are compared on the same problems.
        rng = random.Random(derive_seed(0, "evaluate", "limit", name))
        problems = [problems[i] for i in sorted(rng.sample(range(len(problems)), settings.limit))]
    return problems
