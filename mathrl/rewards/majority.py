"""Reward without a truth: whether an answer is the one that most responses to the same prompt give (TTRL)."""

from collections import Counter
from collections.abc import Callable, Sequence

from mathrl.grading.classes import equal_classes
from mathrl.grading.grade import equal_answers


def agree_with_majority(
    prompts: Sequence[str], answers: Sequence[str | None], equal: Callable[[str, str], bool] = equal_answers
) -> list[bool]:
    """For each response whether its answer is the most common one among the responses to its prompt.

    The estimated label of test-time reinforcement learning (TTRL, arXiv:2504.16084, section 2.2). Equal answers of
    different spellings vote together, a response without an answer does not vote, and of a tie the answer wins that
    was given first.

    >>> agree_with_majority(["1+1="] * 4 + ["2+3="] * 2, ["2", "3", "2.0", None, "5", "6"])
    [True, False, True, False, True, False]
    """
    votes: dict[str, Counter[str]] = {}
    for prompt, answer in zip(prompts, answers, strict=True):
        if answer is not None and answer.strip():
            votes.setdefault(prompt, Counter())[answer] += 1
    winners = {prompt: _most_common(counts, equal) for prompt, counts in votes.items()}
    return [answer in winners.get(prompt, ()) for prompt, answer in zip(prompts, answers, strict=True)]


def _most_common(counts: Counter[str], equal: Callable[[str, str], bool]) -> set[str]:
    """The spellings of the answer with the most votes; of a tie the one that was given first."""
    place = {answer: place for place, answer in enumerate(counts)}
    classes = equal_classes(counts, equal)
    return set(
        min(classes, key=lambda members: (-sum(counts[m] for m in members), min(place[member] for member in members)))
    )
