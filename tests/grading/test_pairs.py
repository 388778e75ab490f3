"""Pairs by construction, and the classes of pairs that graders get wrong; benchmarks/grader_pairs.py runs many more."""

import random
from itertools import islice

import pytest

from mathrl.grading import grade, matching
from mathrl.grading.branches import branch_points
from mathrl.grading.by_value import same_expression
from mathrl.grading.exact import OutOfTime, start_clock, stop_clock
from mathrl.grading.parser import parse
from mathrl.grading.syntax import Node
from tests.grading.pairs import pairs, proved

# (answer in the box, accepted answer)
UNEQUAL = [
    # the far side of a kink, and other branches
    (r"|x+1|", r"x+1"),
    (r"\sqrt{(x+3)^2}", r"x+3"),
    (r"|x+5|-5", r"x"),
    (r"|x+1|-1", r"|x+2|-2"),
    (r"\max(y,190)", r"190"),
    (r"||x-300|-5|", r"|x-300|-5"),
    (r"|x^2-10x+24.99|", r"x^2-10x+24.99"),
    (r"\sqrt{(e^x-50)^2}", r"50-e^x"),
    (r"\frac{|x-12345|}{x-12345}", r"-1"),
    (r"\lfloor x/100 \rfloor", r"0"),
    (r"\lfloor x\rfloor+1", r"\lceil x\rceil"),
    (r"\arcsin(\sin x)", r"x"),
    (r"\arctan(\tan x)", r"x"),
    (r"\ln x", r"\ln|x|"),
    (r"\sqrt{x}^2", r"|x|"),
    (r"\tanh(1000x)", r"1"),
    (r"\frac{1}{1+e^{1000(x-50)}}", r"1"),
    (r"\max(x,y)", r"x"),
    (r"|x|x", r"x^2"),
    (r"y=|x-300|", r"y=300-x"),
    (r"|f(x)|", r"f(x)"),
    # only at whole numbers, or nearly
    (r"\cos(\pi x)", r"(-1)^x"),
    (r"\sin(500\pi x)", r"0"),
    (r"1.6180339887", r"\frac{1+\sqrt5}{2}"),
    (r"\pi+10^{-40}", r"\pi"),
    (r"\sin x+10^{-45}", r"\sin x"),
    (r"10^{-50}", r"0"),
    (r"x+(2^{61}-1)y", r"x"),
    # other meanings
    (r"x+y", r"5=x+y"),
    (r"x-y", r"x y"),
    (r"-x y", r"x y"),
    (r"\bar{x}", r"x"),
    (r"\overline{3+4i}", r"3+4i"),
    (r"z^2", r"z\overline{z}"),
    (r"\binom{n}{k}", r"\binom{n}{k+1}"),
    (r"3!!", r"720"),
    (r"n\pi", r"2k\pi"),
    (r"2n", r"2k"),
    (r"f(n)=2n+1", r"f(x)=2x-1"),
    (r"f(x,y)=x+2y", r"f(a,b)=b+2a"),
    (r"5\text{ m/s}", r"5\text{ km/h}"),
    (r"4 \text{ goats and } 7 \text{ helicopters}", r"7 \text{ goats and } 4 \text{ helicopters}"),
    (r"Minimum: 3, Maximum: 1", r"Minimum: 1, Maximum: 3"),
    (r"x>1 \text{ and } x<3", r"\mathbb{R}"),
    (r"30^\circ 30'", r"30.3^\circ"),
    (r"42 = 43", r"43"),
]
EQUAL = [
    (r"x y", r"y x"),
    (r"b x", r"x b"),
    (r"x(-y)", r"-xy"),
    (r"\binom{n}{k}", r"\binom{n}{n-k}"),
    (r"\frac{n!}{(n-2)!}", r"n(n-1)"),
    (r"(2n)!", r"2^n n!(2n-1)!!"),
    (r"(-1)^n", r"\cos(n\pi)"),
    (r"\operatorname{csch}(x)", r"\frac{1}{\sinh x}"),
    (r"\operatorname{arcsinh}(x)", r"\ln(x+\sqrt{x^2+1})"),
    (r"\cosh^2(3x)-\sinh^2(3x)+y", r"1+y"),
    (r"\ln((t/t)^2)", r"\ln(t\cdot\frac1t)"),
    (r"\lfloor\frac{\ln 8}{\ln 2}\rfloor", r"3"),
    (r"\overline{3+4i}", r"3-4i"),
    (r"z\overline{z}", r"|z|^2"),
    (r"\operatorname{Re}(z)", r"\frac{z+\overline z}{2}"),
    (r"(1+i)x+(1+i)y=2+2i", r"x+y=2"),
    (r"iz=1+i", r"z=1-i"),
    (r"f(5)=5", r"f(5)\times30 + 2.25 = 152.25"),
    (r"f(n)=2n+1", r"f(x)=2x+1"),
    (r"a_n=2n+1", r"a_k=2k+1"),
    (r"\frac{\pi}{4}+n\pi", r"\frac{\pi}{4}+k\pi"),
    (r"2n+1, n\in\mathbb{Z}", r"2k+1, k\in\mathbb{Z}"),
    (r"a\le-2 \text{ or } a=1", r"(-\infty,-2]\cup\{1\}"),
    (r"x>-1 \text{ and } x<1", r"(-1,1)"),
    (r"\text{2/3}", r"2/3"),
    (r"7 \text{ goats and } 4 \text{ helicopters}", r"7,4"),
    (r"\text{7 goats and 4 helicopters}", r"7,4"),
    (r"Minimum: 1, Maximum: 3", r"1,3"),
    (r"60^\circ 42'", r"60.7^\circ"),
    (r"60^{\circ}42'36''", r"60.71^\circ"),
    (r"72\text{ km/h}", r"20\text{ m/s}"),
    (r"x = 5+5+1 = 7 = 11", r"x = 11"),
    (r"\frac{2021055^{2011} - 2019044^{2011}}{2011^2}", r"2011^{2009}\cdot(1005^{2011}-1004^{2011})"),
    (r"|x-1|+|x+1|", r"\max(2,|2x|)"),
    (r"\sqrt{x+2\sqrt{x-1}}", r"\sqrt{x-1}+1"),
    (r"\boxed{0.64N}", r"0.64N"),
    (r"\text{C}", r"\boxed{\text{C}}"),
]


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
    assert [pair for pair in UNEQUAL if grade(f"\\boxed{{{pair[0]}}}", pair[1]).correct] == []


def test_classes_of_equal_pairs() -> None:
    assert [pair for pair in EQUAL if not grade(f"\\boxed{{{pair[0]}}}", pair[1]).correct] == []


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
    monkeypatch.setattr(matching, "start_clock", lambda seconds: start_clock(next(limits)))
    assert matching.compare(r"\lfloor 3x\rfloor-\lfloor x-7\rfloor", r"7+\lfloor 3x\rfloor-\lfloor x\rfloor").equal


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
