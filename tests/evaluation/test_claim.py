"""The table of a claim: which models, which tests, and which sentences follow from them."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mathrl.compose import load_params
from mathrl.core.files import write_jsonl
from mathrl.core.results import BenchmarkResults, Comparison, Interval, ModelFigures, read_recipe_summary, results_table
from mathrl.core.types import EvalRow
from mathrl.evaluation.claim import claim_results
from mathrl.evaluation.conclusion import conclusion
from mathrl.params import Params
from mathrl.params.recipe_steps import Claim
from mathrl.stages.stage_run import StageRun
from mathrl.stages.summary import work as summarise_recipe

CLAIM = Claim(start="sft", model="rl", evaluations=("controls", "thinking"))
PROBLEMS = 40
# Of 4 samples per problem this many are right, in both seeds: form reaches what rl reaches, random nothing.
RIGHT = {"sft": 1, "random": 1, "inverted": 0, "form": 4, "rl": 4}


@pytest.fixture(scope="module")
def params() -> Params:
    return load_params(overrides=["evaluate.samples=4", "evaluate.ks=[1, 4]"])


def responses(model: str, right: int) -> list[dict[str, Any]]:
    """One problem in ten is the other way round, so that there is some spread."""
    return [
        {"model": model, "benchmark": "test", "problem_id": f"p{n}", "sample": sample,
         "correct": (sample < right) != (n % 10 == 0 and sample == 3), "extracted": "1" if sample < right else "2",
         "length": 5, "truncated": False, "level": None, "question": "", "answers": ["1"], "response": ""}
        for n in range(PROBLEMS) for sample in range(4)
    ]  # fmt: skip


def claimed(params: Params, folder: Path, models: Mapping[str, int] = RIGHT) -> BenchmarkResults:
    evaluated = []
    for seed in range(2):
        for step, rows in (
            ("controls", [row for model, right in models.items() for row in responses(model, right)]),
            ("thinking", responses("sft", 2)),
        ):
            write_jsonl(folder / f"{step}-s{seed}/report/responses.jsonl", rows)
            evaluated.append((step, str(folder / f"{step}-s{seed}/report")))
    stage = cast(StageRun, SimpleNamespace(params=params, summary=lambda figures: None))
    words = [("start", "sft"), ("model", "rl"), ("of", "controls"), ("of", "thinking")]
    summarise_recipe(stage, evaluated=evaluated, claim=words, out=folder / "summary.json")
    summary = read_recipe_summary(folder / "summary.json")
    assert list(summary) == ["claim", "controls", "thinking"]
    return summary["claim"]["test"]


def test_every_control_is_compared_with_start_and_model(params: Params, tmp_path: Path) -> None:
    results = claimed(params, tmp_path)
    controls = ["random", "inverted", "form", "thinking", "best_of_4"]
    assert list(results.models) == ["sft", *controls, "rl"]
    assert set(results.comparisons) == {
        "sft_to_rl", *(f"sft_to_{name}" for name in controls), *(f"{name}_to_rl" for name in controls)
    }  # fmt: skip
    assert {test.before_runs for test in results.comparisons.values()} == {2}
    p_values = sorted(test.p_value for test in results.comparisons.values())
    smallest = min(results.comparisons.values(), key=lambda test: test.p_value)
    assert smallest.corrected_p == pytest.approx(min(1.0, p_values[0] * 11)), "Holm over all eleven"
    assert [row["model"] for row in results_table(results.models)] == list(results.models)


def test_best_of_k_is_the_starts_vote(params: Params) -> None:
    """By hand: two problems of 4 samples, 3 and 1 of them right, the wrong ones alike: the vote solves the first."""
    rows = [
        EvalRow("sft", "test", id, None, None, marks, tuple("12"[not mark] for mark in marks), (5,) * 4, (False,) * 4)
        for id, marks in (("a", (True, True, True, False)), ("b", (True, False, False, False)))
    ]
    claim = Claim(start="sft", model="rl", evaluations=("controls",))
    best = claim_results({"controls": {"sft": [rows], "rl": [rows]}}, claim, params.evaluate).models["best_of_4"]
    assert best.pass_at_1.mean == 0.5 and best.response_length == 20.0 and not best.maj_at_k


def test_a_models_base_is_no_control_and_models_of_a_further_evaluation_keep_their_names(params: Params) -> None:
    rows = [
        EvalRow("m", "test", f"{n}", None, None, (n % 2 == 0,) * 4, ("1",) * 4, (5,) * 4, (False,) * 4)
        for n in range(8)
    ]
    claim = Claim(start="sft", model="rl", evaluations=("evaluate", "controls"), apart=("base",))
    first, second = ({model: [rows] for model in models} for models in (("base", "sft", "rl"), ("worked", "rl")))
    results = claim_results({"evaluate": first, "controls": second}, claim, params.evaluate)
    assert list(results.models) == ["sft", "worked", "controls_rl", "best_of_4", "rl"]


def test_the_conclusion_says_against_what_the_claim_stands(params: Params, tmp_path: Path) -> None:
    lines = conclusion(claimed(params, tmp_path))
    assert lines[0].startswith("without controls the claim would be that training raises accuracy by +0.7")
    assert lines[1].startswith("random: no difference shown from sft (+0.000") and "rl is better by +0.7" in lines[1]
    assert lines[2].startswith("inverted: worse than sft by -0.2")
    assert lines[3].startswith("form: better than sft by +0.7") and "no difference shown from rl (+0.000" in lines[3]
    assert lines[4].startswith("thinking: better than sft") and "rl is better by" in lines[4]
    assert lines[-2].startswith(
        "the claim is not shown against form: no difference from rl is shown, corrected for 11 te"
    )
    assert lines[-1] == "the claim stands against random, inverted, thinking, best_of_4"


def test_a_difference_lost_to_the_correction_is_not_shown_and_a_better_control_ends_the_claim() -> None:
    """By hand: random is 0.5 below rl, but its corrected p is 0.06; thinking is above rl."""

    def test(before: str, after: str, difference: float, p: float) -> Comparison:
        low, high = difference - 0.1, difference + 0.1
        return Comparison(before, after, 100, difference, low, high, p / 5, 0.1, shown=p < 0.05, corrected_p=p)

    interval = Interval(0.5, 0.4, 0.6)
    figures = ModelFigures(100, 4, {1: interval}, {}, response_length=5.0, truncated_share=0.0)
    tests = {
        "sft_to_rl": test("sft", "rl", 0.4, 0.01),
        "sft_to_random": test("sft", "random", -0.05, 0.9),
        "random_to_rl": test("random", "rl", 0.5, 0.06),
        "sft_to_thinking": test("sft", "thinking", 0.6, 0.001),
        "thinking_to_rl": test("thinking", "rl", -0.2, 0.04),
    }
    lines = conclusion(BenchmarkResults(dict.fromkeys(("sft", "random", "thinking", "rl"), figures), tests))
    assert lines[1] == (
        "random: no difference shown from sft (-0.050 [-0.150, +0.050]); no difference shown from rl (+0.500 [+0.400, "
        "+0.600], corrected p = 0.06)"
    )
    assert lines[3] == "the claim does not stand against thinking: better than rl"
    assert lines[4].startswith("the claim is not shown against random: no difference from rl is shown")
    assert len(lines) == 5, "it stands against none"


def test_without_a_gain_there_is_nothing_to_claim(params: Params, tmp_path: Path) -> None:
    (line,) = conclusion(claimed(params, tmp_path, {"sft": 1, "form": 4, "rl": 1}))
    assert line.startswith("nothing to claim: no difference shown between sft and rl")
