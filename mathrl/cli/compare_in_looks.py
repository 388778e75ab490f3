"""`mathrl compare A B --looks N`: two models on a benchmark part by part, until the question is answered."""

import random
from collections.abc import Sequence
from pathlib import Path

from mathrl.core.errors import UserError
from mathrl.core.results import Comparison
from mathrl.core.seeding import derive_seed
from mathrl.core.types import EvalRow, Problem
from mathrl.evaluation.benchmark import benchmark_problems
from mathrl.evaluation.compare import look_levels
from mathrl.evaluation.paired import compare
from mathrl.evaluation.responses import read_run
from mathrl.evaluation.summary import accuracies, responses_behind
from mathrl.params import Params
from mathrl.reports.evaluation import evaluate_once
from mathrl.reports.find_responses import RESPONSES, name_of, output_of


def compare_in_looks(
    folders: tuple[Path, Path], benchmark: str, params: Params, looks: int, difference: float | None
) -> Comparison:
    """Evaluate two models on a part of the problems after the other; test after each at `look_levels`.

    It ends once a difference is shown, or one of `difference` is excluded. A part that was evaluated before is read.

    Raises:
        UserError: fewer than two problems per part.
    """
    problems = benchmark_problems(benchmark, params)
    random.Random(derive_seed(0, "looks", benchmark)).shuffle(problems)
    if len(problems) < 2 * looks:
        raise UserError(f"--looks {looks}: {benchmark} has {len(problems)} problems, each look needs two or more")
    names = (name_of(folders[0]), name_of(folders[1]))
    names = names if names[0] != names[1] else (str(folders[0]), str(folders[1]))
    rows: tuple[list[EvalRow], list[EvalRow]] = ([], [])
    test: Comparison | None = None
    for look, level in enumerate(look_levels(looks, 1 - params.evaluate.confidence), start=1):
        part = problems[look - 1 :: looks]
        for folder, seen in zip(folders, rows, strict=True):
            seen += _responses(folder, benchmark, params, part, f"{look}of{looks}")
        test = compare(*names, *map(accuracies, rows), responses=responses_behind(rows), confidence=1 - level)
        bounds = f"{test.difference:+.3f} [{test.low:+.3f}, {test.high:+.3f}]"
        print(f"look {look} of {looks}: {test.problems} problems, {bounds}, p = {test.p_value:.4f}, level {level:.4f}")
        excluded = difference is not None and -difference < test.low and test.high < difference
        if excluded:
            print(f"a difference of {difference:g} or more is excluded")
        if (test.shown or excluded) and look < looks:
            print(f"stopped after {test.problems} of {len(problems)} problems")
        if test.shown or excluded:
            break
    assert test is not None
    return test


def _responses(folder: Path, benchmark: str, params: Params, part: Sequence[Problem], number: str) -> Sequence[EvalRow]:
    whole = output_of(folder, name_of(folder), benchmark, params)
    output = whole.with_name(f"{whole.name}-{number}")
    if not (output / RESPONSES).is_file():
        evaluate_once(folder, benchmark, params, output, problems=part)
    return read_run(output / RESPONSES, None, benchmark).rows
