"""Pairs by construction, and the classes of pairs that graders get wrong; benchmarks/grader_pairs.py runs many more."""

import random
import sys
from itertools import islice

import pytest

from mathrl.grading import compare, grade
from mathrl.grading.by_value import branch_points, same_expression
from mathrl.grading.evaluate import OutOfTime, start_clock, stop_clock
from mathrl.grading.parser import parse
from mathrl.grading.syntax import Node
from tests.grading.answer_pairs import answer_pairs
from tests.grading.pairs import pairs, proved

EQUAL, UNEQUAL = answer_pairs("equal_classes"), answer_pairs("unequal_classes")


@pytest.mark.parametrize("equal", [True, False])
def test_pairs_by_construction(equal: bool) -> None:
    wrong = [
        (pair.family, pair.answer, pair.truth)
        for pair in islice(pairs(seed=18, equal=equal), 400)
        if grade(f"\\boxed{{{pair.answer}}}", pair.truth).correct != equal
    ]
    assert wrong == []


def test_pairs_are_proved_by_their_meaning() -> None:
    rng = random.Random(0)
    claimed_unequal = [pair._replace(equal=False) for pair in islice(pairs(seed=1, equal=True), 200)]
    assert not any(proved(pair, rng) for pair in claimed_unequal)
    claimed_equal = [pair._replace(equal=True) for pair in islice(pairs(seed=1, equal=False), 200)]
    assert sum(proved(pair, rng) for pair in claimed_equal) <= 4  # random points may miss a far difference


def test_classes_of_unequal_pairs() -> None:
    assert [pair for pair in UNEQUAL if grade(f"\\boxed{{{pair[1]}}}", pair[0]).correct] == []


def test_classes_of_equal_pairs() -> None:
    assert [pair for pair in EQUAL if not grade(f"\\boxed{{{pair[1]}}}", pair[0]).correct] == []


def tree(text: str) -> Node:
    node = parse(text)
    assert node is not None
    return node


@pytest.mark.parametrize(
    ("text", "name", "breaks"),
    [
        (r"|x-190|+|2x+3|", "x", [-1.5, 190]),
        (r"\max(y,190)", "y", [190]),
        (r"||x-300|-5|", "x", [295, 300, 305]),
        (r"\sqrt{x^2-6x+9}", "x", [3]),
        (r"\sqrt{(e^x-50)^2}", "x", [3.912]),
        (r"\arcsin(2x+7)", "x", [-4, -3]),
        (r"|x^3-100x|", "x", [-10, 0, 10]),
    ],
)
def test_there_is_a_point_between_all_breaks(text: str, name: str, breaks: list[float]) -> None:
    points = branch_points(tree(text), tree("0"), frozenset([name]))
    values = [float(point[name]) for point in points]  # type: ignore[arg-type]
    for low, high in zip([-1e9, *breaks], [*breaks, 1e9], strict=True):
        assert any(low < value < high for value in values), (low, high, values)


def test_a_comparison_out_of_time_is_refused() -> None:
    start_clock(-1.0)
    try:
        with pytest.raises(OutOfTime):  # no point that the clock left out may count as passed over
            for _ in range(10):
                same_expression(tree(r"\lfloor 2x\rfloor"), tree(r"\lfloor x\rfloor+\lfloor x+\frac12\rfloor"))
    finally:
        stop_clock()


def test_one_pause_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = iter([-1.0, 0.3])
    monkeypatch.setattr(sys.modules["mathrl.grading.compare"], "start_clock", lambda seconds: start_clock(next(limits)))
    assert compare(r"\lfloor 3x\rfloor-\lfloor x-7\rfloor", r"7+\lfloor 3x\rfloor-\lfloor x\rfloor").equal


def test_boxes_that_each_answer_a_part() -> None:
    parts = r"$\boxed{(3, 3)}$ for part (a). Then we solve (b) and find $\boxed{(1, 1)}$."
    assert grade(parts, "(3, 3), (1, 1)").rule == "boxes; a box per part"
    assert not grade(parts, "(3, 3), (1, 2)").correct
    assert not grade(parts, "(3, 3)").correct
    assert not grade(r"\boxed{3} no, \boxed{5} or rather \boxed{7}", "3, 7").correct


def test_the_last_line_of_minerva_counts_against_an_earlier_box() -> None:
    final = "Final Answer: The final answer is $10,455$. I hope it is correct."
    assert grade(rf"So $\boxed{{255}}$. {final}", "10455").correct
    assert not grade(rf"So $\boxed{{255}}$. {final}", "255").correct
