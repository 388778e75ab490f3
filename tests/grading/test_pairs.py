"""Pairs of answers, by hand (equal.tsv, unequal.tsv) and by construction; benchmarks/grader_pairs.py runs many more."""

import random
import time
from itertools import chain, count, islice, repeat
from pathlib import Path

import pytest

from mathrl.grading import compare, grade
from tests.grading.pairs import pairs, proved


def answer_pairs(name: str) -> list[tuple[str, str]]:
    """The pairs of a file: the accepted answer, a tab, the answer in the box. "# " starts a comment."""
    lines = Path(__file__).with_name(f"{name}.tsv").read_text(encoding="utf-8").splitlines()
    pairs = [tuple(line.split("\t")) for line in lines if line and not line.startswith("# ")]
    return [(truth, answer) for truth, answer in pairs]


EQUAL, UNEQUAL = answer_pairs("equal"), answer_pairs("unequal")


def accepts(truth: str, answer: str) -> bool:
    return grade(f"\\boxed{{{answer}}}", truth).correct


def test_equal_answers_are_accepted_and_unequal_ones_refused_without_the_engine() -> None:
    for equal, answers in ((True, EQUAL), (False, UNEQUAL)):
        verdicts = {(truth, answer): grade(f"\\boxed{{{answer}}}", truth) for truth, answer in answers}
        assert [pair for pair, verdict in verdicts.items() if verdict.correct != equal] == []
        assert [pair for pair, verdict in verdicts.items() if verdict.rule.endswith("symbolic")] == []


def test_every_truth_accepts_itself() -> None:
    assert [truth for truth in dict(EQUAL + UNEQUAL) if not accepts(truth, truth)] == []


def test_one_pause_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of the garbage collector, at the second or a later look at the clock of a comparison."""
    clock = iter(())
    monkeypatch.setattr("mathrl.grading.evaluate.time.thread_time", lambda: next(clock, 10.0))
    for truth, answer in EQUAL[::15]:
        expected = compare(truth, answer).equal
        for looks in (1, 2, 5):
            clock = iter([0.0] * looks)
            assert compare(truth, answer).equal == expected, (truth, answer, looks)


@pytest.mark.parametrize("form", ["{}", r"\sqrt{{{}}}", "({}, 1)"])
def test_a_set_of_a_hundred_members_is_compared_in_time(form: str) -> None:
    members = [form.format(7 * i * i + 13 * i + 1) for i in range(100)]
    texts = [r"\{" + ", ".join(parts) + r"\}" for parts in (members, members[::-1], [form.format(2), *members[1:]])]
    assert accepts(texts[0], texts[1]) and not accepts(texts[0], texts[2])


def test_two_sets_of_many_numbers_are_unequal_and_not_out_of_time() -> None:
    texts = [r"\{" + ", ".join(str(number) for number in numbers) + r"\}" for numbers in (range(150), range(1, 151))]
    assert compare(*texts).reason == "not equal"


@pytest.mark.parametrize("equal", [True, False])
def test_pairs_by_construction(equal: bool) -> None:
    sample = islice(pairs(seed=18, equal=equal), 400)
    assert [pair for pair in sample if accepts(pair.truth, pair.answer) != equal] == []


def test_pairs_are_proved_by_their_meaning() -> None:
    rng = random.Random(0)
    claimed_unequal = [pair._replace(equal=False) for pair in islice(pairs(seed=1, equal=True), 200)]
    assert not any(proved(pair, rng) for pair in claimed_unequal)
    claimed_equal = [pair._replace(equal=True) for pair in islice(pairs(seed=1, equal=False), 200)]
    assert sum(proved(pair, rng) for pair in claimed_equal) <= 4  # random points may miss a far difference


SINES = ("+".join(rf"\sin(x+{n})" for n in range(40)), "+".join(rf"2\sin(x+{n})\frac12" for n in range(40)))
FLOORS = (r"\lfloor 3x\rfloor-\lfloor x-7\rfloor", r"7+\lfloor 3x\rfloor-\lfloor x\rfloor")


@pytest.mark.parametrize("pair", [SINES, FLOORS])
def test_a_comparison_has_processor_time_and_a_pause_does_not_decide(
    pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a busy machine takes away makes no right answer wrong, and no point left out counts as passed over."""
    late, pause, idle = count(0, 0.1), chain([0.0], repeat(10.0)), repeat(0.0)
    outcomes = []
    for clock in (late, pause, idle):
        monkeypatch.setattr(time, "thread_time", lambda clock=clock: next(clock))
        outcomes.append(compare(*pair)[::2])
    assert outcomes == [(False, "the comparison took too long"), (True, ""), (True, "")]


def test_boxes_that_each_answer_a_part() -> None:
    parts = r"$\boxed{(3, 3)}$ for part (a). Then we solve (b) and find $\boxed{(1, 1)}$."
    assert grade(parts, "(3, 3), (1, 1)").rule == "boxes; a box per part"
    assert not grade(parts, "(3, 3), (1, 2)").correct
    assert not grade(parts, "(3, 3)").correct
    assert not grade(r"\boxed{3} no, \boxed{5} or rather \boxed{7}", "3, 7").correct
