"""One rule says which models are compared, and every place that compares agrees with it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.core.files import write_jsonl
from mathrl.core.results import Comparison, EvaluationSummary, read_recipe_summary
from mathrl.core.types import EvalRow
from mathrl.evaluation.benchmark import EvaluatedModel
from mathrl.evaluation.compare import compare_models, compare_sides, holm, pairs, verdict_of
from mathrl.evaluation.paired import compare
from mathrl.evaluation.responses import ModelRun, read_run
from mathrl.evaluation.summary import values_of
from mathrl.params import Params
from mathrl.registry.promote import _compare_runs
from mathrl.reports.html import Material, comparison_html, page_of
from mathrl.stages import evaluate
from mathrl.stages.stage_run import StageRun
from mathrl.stages.summary import work as summarise_recipe

LABELS = ("cold_start", "rl_1", "sft_2", "rl_2", "z", "a", "third-try")


@pytest.fixture(scope="module")
def params() -> Params:
    return load_params(overrides=["evaluate.samples=4", "evaluate.ks=[1, 4]"])


def rows_of(label: str, problems: int = 24) -> list[EvalRow]:
    rng = np.random.default_rng(sum(map(ord, label)))
    marks = rng.random((problems, 4)) < 0.2 + 0.6 * rng.random()
    return [
        EvalRow(
            label, "test", f"p{i:02}", i % 3, None, tuple(map(bool, row)), ("1", "2", "3", None), (5,) * 4, (False,) * 4
        )
        for i, row in enumerate(marks)
    ]


def responses_of(label: str, problems: int = 24) -> list[dict[str, Any]]:
    return [
        {"model": label, "benchmark": "test", "problem_id": row.problem_id, "sample": n, "correct": row.correct[n],
         "extracted": row.extracted[n], "length": 5, "truncated": False, "level": row.level,
         "question": row.problem_id, "answers": ["1"], "response": "1"}
        for row in rows_of(label, problems) for n in range(4)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["rl"], []),
        (["sft", "rl"], [("sft", "rl")]),
        (["base", "sft", "rl"], [("sft", "rl"), ("base", "rl")]),
        (["teacher", "student", "alone"], [("student", "alone"), ("teacher", "student"), ("teacher", "alone")]),
        (["base", "sft", "rl", "dpo"], [("rl", "dpo"), ("base", "sft"), ("base", "rl"), ("base", "dpo")]),
        (LABELS, [("a", "third-try"), *(("cold_start", label) for label in LABELS[1:])]),
    ],
)
def test_the_last_against_its_predecessor_and_all_against_the_first(labels: list[str], expected: object) -> None:
    assert pairs(labels) == expected


@pytest.mark.parametrize("count", [1, 3])
def test_models_of_any_name_are_compared_and_every_caller_agrees(count: int, params: Params, tmp_path: Path) -> None:
    labels = LABELS[:count]
    settings = params.evaluate
    tests = compare_models({label: [rows_of(label)] for label in labels}, settings)
    assert list(tests) == [f"{before}_to_{after}" for before, after in pairs(labels)]

    models = [EvaluatedModel(label, "test", rows_of(label), [], 0) for label in labels]
    summary = evaluate.summary_of({"test": models}, params)
    assert summary.comparisons == tests
    assert summary.verdict == verdict_of(labels, tests)
    if count == 1:
        assert summary.verdict == "one model: nothing to compare"
    else:
        assert summary.verdict == tests[f"{labels[-2]}_to_{labels[-1]}"].verdict()

    responses = tmp_path / "step" / "report" / "responses.jsonl"
    write_jsonl(responses, (row for label in labels for row in responses_of(label)))
    stage = cast(StageRun, SimpleNamespace(params=params, summary=lambda figures: None))
    summarise_recipe(stage, evaluated=[("final", str(responses.parent))], out=tmp_path / "recipe.json")
    assert read_recipe_summary(tmp_path / "recipe.json")["final"]["test"].comparisons == tests
    assert comparison_html(responses, labels, "test", params) == summary.verdict
    for before, after in pairs(labels):
        runs = [read_run(responses, label, None) for label in (before, after)]
        alone = _compare_runs(runs, params)
        assert replace(alone, shown=False) == uncorrected(tests[f"{before}_to_{after}"])
        sides = compare_sides(runs[:1], runs[1:], (before, after), "pass_at_1", settings)
        assert Comparison.from_row(sides["comparison"]) == alone

    # The report shows the verdict of the file, also after the file's keys were sorted.
    summary.write(tmp_path / "summary.json")
    material = Material("x", tmp_path, [], EvaluationSummary.read(tmp_path / "summary.json"), responses, [], "")
    page = page_of(material, params)
    assert page["verdict"] == summary.verdict
    assert {test.verdict() for test in tests.values()} == set(page["verdicts"])
    if count > 1:
        assert (page["before"], page["after"]) == labels[-2:]
        assert page["cards"][1][:2] == ("difference", f"{tests[f'{labels[-2]}_to_{labels[-1]}'].difference:+.3f}")


def test_several_seeds_are_compared_by_the_same_rule(params: Params, tmp_path: Path) -> None:
    steps = []
    for seed in range(2):
        write_jsonl(
            tmp_path / f"s{seed}/report/responses.jsonl",
            (row | {"model": label} for label in LABELS[:3] for row in responses_of(f"{label}{seed}")),
        )
        steps.append(("final", str(tmp_path / f"s{seed}/report")))
    stage = cast(StageRun, SimpleNamespace(params=params, summary=lambda figures: None))
    summarise_recipe(stage, evaluated=steps, out=tmp_path / "recipe.json")
    results = read_recipe_summary(tmp_path / "recipe.json")["final"]["test"]
    assert set(results.comparisons) == {"rl_1_to_sft_2", "cold_start_to_rl_1", "cold_start_to_sft_2"}
    assert {test.before_runs for test in results.comparisons.values()} == {2}
    assert results.models["rl_1"].seeds == 2 and results.models["rl_1"].by_level is None


def test_seeds_that_were_evaluated_on_other_true_answers_are_not_summed_up(params: Params, tmp_path: Path) -> None:
    for seed, answer in enumerate("12"):
        rows = (row | {"question": "1+0=", "answers": [answer]} for row in responses_of("rl"))
        write_jsonl(tmp_path / str(seed) / "responses.jsonl", rows)
    stage = cast(StageRun, SimpleNamespace(params=params, summary=lambda figures: None))
    steps = [("final", str(tmp_path / str(seed))) for seed in range(2)]
    with pytest.raises(UserError, match=r"true answer 1 in .* and 2 in .*test has changed between the two evaluations"):
        summarise_recipe(stage, evaluated=steps, out=tmp_path / "recipe.json")


def test_one_problem_is_not_tested_and_nothing_fails(params: Params) -> None:
    models = [EvaluatedModel(label, "test", rows_of(label, problems=1), [], 0) for label in ("sft", "dpo")]
    summary = evaluate.summary_of({"test": models}, params)
    assert not summary.comparisons
    assert summary.verdict == "fewer than two problems in common: nothing to test"


def test_every_comparison_counts_the_responses_behind_its_values(params: Params) -> None:
    """30 problems of 32 responses, one more of them right on average: shown, and less so were a value one response."""
    rng = np.random.default_rng(3)
    rates = rng.beta(0.6, 1.0, (30, 1)) * 0.8
    rows = {label: many(label, rng.random((30, 32)) < rates + gain) for label, gain in (("a", 0.0), ("b", 0.05))}
    a, b = (ModelRun(label, label, "test", rows[label], {}, {}) for label in "ab")
    test = compare_models({label: [rows[label]] for label in "ab"}, params.evaluate)["a_to_b"]
    values = [values_of(rows[label], "pass_at_1") for label in "ab"]
    assert test == compare("a", "b", *values, responses=32) and test.shown
    assert compare("a", "b", *values).p_value > 1.2 * test.p_value
    # Four sets of 8 responses each; two seeds have twice as many.
    sides = compare_sides([a], [b], ("a", "b"), "pass_at_8", params.evaluate)
    eights = [values_of(rows[label], "pass_at_8") for label in "ab"]
    assert Comparison.from_row(sides["comparison"]) == compare("a", "b", *eights, responses=4)
    assert sides["by_level"]["1"]["low"] == compare("a", "b", *map(on_level_1, eights), responses=4).low
    seeds = compare_sides([a], [b, b], ("a", "b"), "pass_at_1", params.evaluate)["comparison"]
    assert seeds["high"] == pytest.approx(compare("a", "b", *values, responses=32 * 4 / 3).high)


def many(label: str, marks: np.ndarray) -> list[EvalRow]:
    return [
        EvalRow(label, "test", f"p{i:02}", i % 2, None, tuple(map(bool, row)), ("1",) * 32, (5,) * 32, (False,) * 32)
        for i, row in enumerate(marks)
    ]


def on_level_1(values: Mapping[str, float]) -> dict[str, float]:
    return {id: value for id, value in values.items() if int(id[1:]) % 2 == 1}


def test_several_comparisons_are_corrected_together() -> None:
    """By hand: the smallest p-value times three, the next times two, never below one before it."""
    assert holm([0.03, 0.001, 0.02]) == pytest.approx([0.04, 0.003, 0.04])
    assert holm([0.5, 0.6]) == [1.0, 1.0] and holm([0.2]) == [0.2] and holm([]) == []


def test_a_difference_that_several_tests_would_show_by_chance_is_not_shown(params: Params) -> None:
    """b solves six problems more than a and c: p = 0.02 alone, 0.06 among three comparisons."""
    right = {"a": 10, "c": 10, "b": 16}
    rows = {label: [_row(label, number, number < right[label]) for number in range(40)] for label in right}
    alone = compare_models({label: [rows[label]] for label in ("a", "b")}, params.evaluate)["a_to_b"]
    both = compare_models({label: [rows[label]] for label in rows}, params.evaluate)
    assert len(both) == 3 and alone.shown and alone.corrected_p is None
    assert both["a_to_b"].p_value == alone.p_value and not both["a_to_b"].shown
    assert both["a_to_b"].corrected_p == pytest.approx(3 * alone.p_value)
    assert f"p = {alone.p_value:.4f} (corrected {3 * alone.p_value:.4f})" in both["a_to_b"].verdict()


def uncorrected(test: Comparison) -> Comparison:
    return replace(test, shown=False, corrected_p=None)


def _row(label: str, number: int, correct: bool) -> EvalRow:
    return EvalRow(label, "test", f"p{number:02}", None, None, (correct,), (None,), (1,), (False,))
