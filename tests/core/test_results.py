"""The summary of an evaluation as a type: the same file back, old files too, and one table of it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mathrl.core.errors import UserError
from mathrl.core.files import write_json
from mathrl.core.results import (
    BenchmarkResults,
    Comparison,
    EvaluationSummary,
    GroupFigures,
    Interval,
    ModelFigures,
    read_recipe_summary,
    results_table,
    write_recipe_summary,
)


def figures(mean: float, **changes: object) -> ModelFigures:
    rate = Interval(mean, mean - 0.02, mean + 0.02)
    more = Interval(mean + 0.1, mean + 0.05, mean + 0.15)
    whole = ModelFigures(
        problems=500,
        samples=8,
        pass_at_k={1: rate, 2: rate, 8: more},
        maj_at_k={2: rate, 8: rate},
        response_length=34.12,
        truncated_share=0.002,
        no_answer_share=0.0,
        by_level={"2": GroupFigures(100, rate)},
        by_subject={},
        prompts_too_long=0,
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


TEST = Comparison("sft", "rl", 500, 0.5, 0.45, 0.55, 0.00005, 0.05, shown=True)


def test_a_summary_comes_back_from_its_file(tmp_path: Path) -> None:
    models = {name: figures(mean) for name, mean in (("base", 0.1), ("sft", 0.3), ("rl", 0.8))}
    others = {"rl": figures(0.6), "dpo": figures(0.5)}
    results = {"test": BenchmarkResults(models, {"sft_to_rl": TEST}), "gsm8k": BenchmarkResults(others)}
    summary = EvaluationSummary("test", results, TEST.verdict(), {"samples": 8})
    summary.write(tmp_path / "summary.json")
    again = EvaluationSummary.read(tmp_path / "summary.json")
    assert again == summary
    assert [list(each.models) for each in again.results.values()] == [["base", "sft", "rl"], ["rl", "dpo"]]
    row = json.loads((tmp_path / "summary.json").read_text())
    assert row["models"]["rl"]["pass_at_8_low"] == pytest.approx(0.85) and row["models"]["rl"]["prompts_too_long"] == 0
    assert row["models"]["sft"]["by_level"] == {
        "2": {"problems": 100, "pass_at_1": 0.3, "pass_at_1_low": 0.3 - 0.02, "pass_at_1_high": 0.32}
    }
    # The pipeline's own order goes without saying, other orders do not survive JSON's sorted keys.
    assert "order" not in row and "order" not in row["benchmarks"]["gsm8k"]
    write_recipe_summary(tmp_path / "recipe.json", {"test": {"test": BenchmarkResults({"z": figures(0.1), **others})}})
    assert list(read_recipe_summary(tmp_path / "recipe.json")["test"]["test"].models) == ["z", "rl", "dpo"]


def test_other_orders_are_written() -> None:
    results = BenchmarkResults({"teacher": figures(0.3), "student": figures(0.5)})
    row = json.loads(json.dumps(results.to_row(), sort_keys=True))
    assert row["order"] == ["teacher", "student"] and BenchmarkResults.from_row(row) == results
    assert list(BenchmarkResults.from_row(row).models) == ["teacher", "student"]


def test_older_files_are_read_and_others_are_refused(tmp_path: Path) -> None:
    old = {"benchmark": "test", "models": {"rl": {"problems": 9, "samples": 1, "pass_at_1": 0.5, "pass_at_1_low": 0.4,
           "pass_at_1_high": 0.6, "response_length": 3.0, "truncated_share": 0.0, "unknown": 1}}}  # fmt: skip
    write_json(tmp_path / "old.json", old)
    summary = EvaluationSummary.read(tmp_path / "old.json")
    assert (summary.verdict, dict(summary.comparisons), summary.models["rl"].by_level) == ("", {}, None)
    write_json(tmp_path / "other.json", {"kept": 3})
    with pytest.raises(UserError, match=r"other\.json: not the summary of an evaluation \(KeyError\('benchmark'\)\)"):
        EvaluationSummary.read(tmp_path / "other.json")


def test_the_tracker_gets_numbers_alone() -> None:
    numbers = figures(0.5).numbers()
    assert numbers["pass_at_8"] == pytest.approx(0.6) and numbers["problems"] == 500.0
    assert all(isinstance(value, float) for value in numbers.values()) and "by_level" not in numbers


def test_one_table() -> None:
    rows = results_table({"sft": figures(0.3), "rl": figures(0.8)})
    assert rows[1] == {
        "model": "rl",
        "pass@1": "0.800",
        "interval": "0.780 to 0.820",
        "pass@8": "0.900",
        "maj@8": "0.800",
        "mean length": "34.1",
        "truncated": "0.2%",
        "no answer": "0.0%",
        "problems": "500",
    }
    # A k that all models have, and no column that is empty everywhere.
    few = replace(figures(0.3), pass_at_k={1: Interval(0.3, 0.2, 0.4), 2: Interval(0.4, 0.3, 0.5)}, seeds=3)
    rows = results_table({"few": replace(few, no_answer_share=None), "rl": figures(0.8)})
    assert [row["pass@2"] for row in rows] == ["0.400", "0.800"] and [row["seeds"] for row in rows] == ["3", ""]
    assert [row["no answer"] for row in rows] == ["", "0.0%"]
    one = replace(figures(0.3), pass_at_k={1: Interval(0.3, 0.2, 0.4)}, maj_at_k={}, no_answer_share=None)
    assert list(results_table({"one": one})[0]) == [
        "model", "pass@1", "interval", "mean length", "truncated", "problems"
    ]  # fmt: skip
    assert results_table({}) == []
