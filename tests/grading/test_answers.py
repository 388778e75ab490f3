"""Pairs of answers that are equal, and pairs that are not: every kind of answer, by hand (equal.tsv, unequal.tsv)."""

import pytest

from mathrl.grading import grade
from tests.grading.answer_pairs import answer_pairs

EQUAL, UNEQUAL = answer_pairs("equal"), answer_pairs("unequal")


@pytest.mark.parametrize(("truth", "answer"), EQUAL)
def test_equal_answers_are_accepted(truth: str, answer: str) -> None:
    verdict = grade(f"\\boxed{{{answer}}}", truth)
    assert verdict.correct, verdict


@pytest.mark.parametrize(("truth", "answer"), UNEQUAL)
def test_unequal_answers_are_refused(truth: str, answer: str) -> None:
    verdict = grade(f"\\boxed{{{answer}}}", truth)
    assert not verdict.correct, verdict


def test_every_truth_accepts_itself_and_no_pair_needs_the_engine() -> None:
    for truth, answer in EQUAL + UNEQUAL:
        assert grade(f"\\boxed{{{truth}}}", truth).correct, truth
        assert not grade(f"\\boxed{{{answer}}}", truth).rule.endswith("symbolic"), (truth, answer)


def test_answers_of_different_pairs_are_rarely_equal() -> None:
    """A grader that accepts everything would pass the first test: cross pairs must not."""
    accepted = [
        (EQUAL[i], EQUAL[i + 7])
        for i in range(0, len(EQUAL) - 7)
        if grade(f"\\boxed{{{EQUAL[i + 7][1]}}}", EQUAL[i][0]).correct
    ]
    same_truth = [pair for pair in accepted if grade(f"\\boxed{{{pair[1][0]}}}", pair[0][0]).correct]
    assert accepted == same_truth
