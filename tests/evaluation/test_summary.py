import pytest

from mathrl.core.types import EvalRow
from mathrl.evaluation.summary import summarise
from mathrl.grading import equal_answers
from mathrl.params.evaluate import Evaluate
from mathrl.reports.pictures import examples_markdown, side_by_side

HOW = Evaluate(samples=4, ks=(1, 2, 4))


def row(model: str, i: int, correct: str, extracted: tuple[str | None, ...]) -> EvalRow:
    marks = tuple(mark == "+" for mark in correct)
    return EvalRow(model, "test", f"p{i}", 1 + i % 2, "Algebra" if i % 2 else None, marks, extracted,
                   (10, 20, 30, 40), (False, False, False, True))  # fmt: skip


ROWS = [
    row("rl", 0, "++--", ("9", "9.0", "8", None)),
    row("rl", 1, "----", ("1", "2", "3", "4")),
    row("rl", 2, "++++", ("5", "5", "5", "5")),
]


def test_the_figures_by_hand() -> None:
    row = summarise(ROWS, HOW).to_row()
    assert row["pass_at_1"] == pytest.approx(0.5)
    assert row["pass_at_2"] == pytest.approx((5 / 6 + 0 + 1) / 3)
    assert row["pass_at_4"] == pytest.approx(2 / 3)
    # p0 at k = 2: of RR, 2x2 RW, 2x RN, ... = RR 1, RW 1/2 twice, RN 1 twice, WN 0
    assert row["maj_at_2"] == pytest.approx(((1 + 2 * 0.5 + 2) / 6 + 0 + 1) / 3)
    assert row["maj_at_4"] == pytest.approx(2 / 3)
    assert (row["response_length"], row["truncated_share"]) == (25.0, 0.25)
    assert row["no_answer_share"] == pytest.approx(1 / 12)
    assert row["by_level"]["1"]["pass_at_1"] == pytest.approx(0.75)
    assert row["by_subject"] == {"Algebra": row["by_level"]["2"]}
    assert not any("@" in name for name in row)


def test_ks_above_the_samples_are_left_out() -> None:
    figures = summarise(ROWS, Evaluate(samples=4, ks=(1, 8)))
    assert list(figures.pass_at_k) == [1] and not figures.maj_at_k


def test_votes_are_counted_by_value() -> None:
    assert equal_answers("0.5", r"\frac{1}{2}") and equal_answers("1,000", "1000")
    assert not equal_answers("12", "21") and not equal_answers("x", "y")
    # What only the symbolic engine settles, and whichever of the two is longer.
    assert equal_answers(r"\sin^2(x)+\cos^2(x)+x", "x+1") and not equal_answers("x^2-1", "(x-1)^2")
    assert equal_answers("(B) 7", "B") and equal_answers("B", "(B) 7")


def test_the_examples_read_well() -> None:
    responses = [
        {"problem_id": "p0", "model": m, "question": "1+1=", "answers": ["2"], "correct": m == "rl", "response": r}
        for m, r in (("sft", "no ``` fence"), ("rl", "2"), ("rl", "second"))
    ]
    rows = side_by_side(responses, ["sft", "rl"], 20, seed=0)
    assert rows == [{"problem_id": "p0", "question": "1+1=", "answer": "2", "sft": "✗ no ``` fence", "rl": "✓ 2"}]
    text = examples_markdown(rows, ["sft", "rl"], "test")
    assert "**rl** ✓" in text and "````text\nno ``` fence\n````" in text and "second" not in text
