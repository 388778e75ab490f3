"""pass@k without bias, and maj@k exactly, from n samples of a problem."""

from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import comb

from mathrl.grading import equal_classes


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Chance that at least one of k samples drawn without replacement is correct.

    1 - C(n-c, k) / C(n, k) (Chen et al., arXiv:2107.03374, equation 1).

    Raises:
        ValueError: k above the number of samples.

    >>> pass_at_k(4, 1, 2)
    0.5
    """
    if not 1 <= k <= samples or not 0 <= correct <= samples:
        raise ValueError(f"pass@{k} of {correct} correct in {samples} samples is not defined")
    return 1 - comb(samples - correct, k) / comb(samples, k)


def answer_classes(
    extracted: Sequence[str | None], correct: Sequence[bool], equal: Callable[[str, str], bool]
) -> tuple[int, list[int], int]:
    """Votes for the correct answer, votes of each class of equal wrong answers, and abstentions.

    All correct responses are one class, whatever their spelling; a response without an answer abstains.
    Answers that equal one and the same third answer are one class, so the order of the samples does not matter.

    >>> marks = [True, False, False, False, False]
    >>> answer_classes(["4", ".5", "0.5", "7", None], marks, lambda a, b: float(a) == float(b))
    (1, [2, 1], 1)
    """
    right, silent = 0, 0
    wrong: dict[str, int] = {}
    for answer, is_correct in zip(extracted, correct, strict=True):
        if is_correct:
            right += 1
        elif answer is None or not answer.strip():
            silent += 1
        else:
            wrong[answer] = wrong.get(answer, 0) + 1
    classes = equal_classes(wrong, equal)
    return right, [sum(wrong[member] for member in members) for members in classes], silent


def maj_at_k(right: int, wrong: Sequence[int], silent: int, k: int) -> float:
    """Chance that a majority vote of k samples drawn without replacement is correct.

    Exact over all k-subsets; a tie of t classes at the top counts 1/t; without any answer it is wrong.

    Args:
        right: Samples with the correct answer.
        wrong: Samples in each class of equal wrong answers.
        silent: Samples without an answer; they do not vote.

    Raises:
        ValueError: k above the number of samples.

    >>> maj_at_k(2, [1], 0, 2)  # of the pairs RR, RW, RW: 1, 1/2, 1/2
    0.6666666666666666
    """
    samples = right + sum(wrong) + silent
    if not 1 <= k <= samples:
        raise ValueError(f"maj@{k} of {samples} samples is not defined")
    won = Fraction(0)
    for votes in range(1, min(k, right) + 1):
        for ties, ways in _fillings(wrong, silent, k - votes, votes).items():
            won += Fraction(comb(right, votes) * ways, ties + 1)
    return float(won / comb(samples, k))


def _fillings(wrong: Sequence[int], silent: int, seats: int, top: int) -> dict[int, int]:
    """Ways to fill `seats` with the other samples, no wrong class above `top` votes, by number of ties."""
    # By seats used and by classes with exactly `top` votes.
    ways = {(used, 0): comb(silent, used) for used in range(min(seats, silent) + 1)}
    for size in wrong:
        after: Counter[tuple[int, int]] = Counter()
        for (used, ties), count in ways.items():
            for votes in range(min(size, top, seats - used) + 1):
                after[used + votes, ties + (votes == top)] += count * comb(size, votes)
        ways = after
    return {ties: count for (used, ties), count in ways.items() if used == seats}
