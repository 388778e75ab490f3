"""Checked against every subset, listed one by one: slow, obvious, and written without the formulas."""

from itertools import combinations, permutations

import pytest

from mathrl.evaluation.summary import answer_classes, maj_at_k, pass_at_k


def pass_by_listing(samples: int, correct: int, k: int) -> float:
    responses = [True] * correct + [False] * (samples - correct)
    subsets = list(combinations(responses, k))
    return sum(any(subset) for subset in subsets) / len(subsets)


def maj_by_listing(right: int, wrong: list[int], silent: int, k: int) -> float:
    votes = ["right"] * right + [f"wrong {i}" for i, n in enumerate(wrong) for _ in range(n)] + [None] * silent
    shares = []
    for subset in combinations(votes, k):
        counts = {answer: subset.count(answer) for answer in subset if answer is not None}
        top = [answer for answer, count in counts.items() if count == max(counts.values())]
        shares.append(1 / len(top) if "right" in top else 0.0)
    return sum(shares) / len(shares)


def test_pass_at_k_is_the_share_of_subsets() -> None:
    for samples in range(1, 9):
        for correct in range(samples + 1):
            for k in range(1, samples + 1):
                listed = pass_by_listing(samples, correct, k)
                assert pass_at_k(samples, correct, k) == pytest.approx(listed, abs=1e-12)


def test_pass_at_k_needs_k_samples() -> None:
    with pytest.raises(ValueError, match="pass@5 of 1 correct in 4"):
        pass_at_k(4, 1, 5)


@pytest.mark.parametrize(
    ("right", "wrong", "silent"),
    [(4, [3, 2], 1), (2, [2, 2, 2], 0), (3, [1, 1, 1, 1], 2), (1, [4], 3), (0, [3, 3], 2), (8, [], 0), (2, [5, 1], 0)],
)
def test_maj_at_k_is_the_mean_over_all_subsets(right: int, wrong: list[int], silent: int) -> None:
    for k in range(1, right + sum(wrong) + silent + 1):
        listed = maj_by_listing(right, wrong, silent, k)
        assert maj_at_k(right, wrong, silent, k) == pytest.approx(listed, abs=1e-12)


def test_equal_answers_vote_together_and_silence_does_not_vote() -> None:
    extracted = ["0.5", "1/2", "7", "7.0", "8", None, " "]
    correct = [True, True, False, False, False, False, False]
    same = {frozenset(("7", "7.0"))}
    classes = answer_classes(extracted, correct, lambda a, b: frozenset((a, b)) in same)
    assert classes == (2, [2, 1], 2)
    # 7 = 7.0 and 7.0 = 7.00, though 7 and 7.00 were not found equal: one class in any order.
    chain = {frozenset(("7", "7.0")), frozenset(("7.0", "7.00"))}
    for order in permutations(["7", "7.00", "7.0", "8"]):
        _, votes, _ = answer_classes(order, [False] * 4, lambda a, b: frozenset((a, b)) in chain)
        assert sorted(votes) == [1, 3]
    as_strings = answer_classes(extracted, correct, lambda a, b: False)
    assert as_strings == (2, [1, 1, 1], 2)


def test_an_answer_given_again_is_another_vote_and_every_answer_has_its_mark() -> None:
    assert answer_classes(["7", "7", "8", "7"], [False] * 4, lambda a, b: False) == (0, [3, 1], 0)
    with pytest.raises(ValueError, match="zip"):
        answer_classes(["7", "8"], [False], lambda a, b: False)


@pytest.mark.parametrize("k", [0, 4])
def test_maj_at_k_needs_k_samples(k: int) -> None:
    with pytest.raises(ValueError, match=rf"^maj@{k} of 3 samples is not defined$"):
        maj_at_k(1, [1], 1, k)
