"""Verdicts beside the verifier's own: that of the majority of responses (TTRL), and noisy ones at stated rates."""

import re
from collections import Counter
from collections.abc import Callable, Sequence

from mathrl.core.hashing import hash_text
from mathrl.grading import Verdict, equal_answers, equal_classes
from mathrl.params.reward_parts import NoisyAccuracyOptions


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


INTEGER = re.compile(r"-?\d*(\d)")


def noisy_verdict(
    verdict: Verdict, prompt: str, response: str, truths: str | Sequence[str], options: NoisyAccuracyOptions
) -> bool:
    """The noisy verdict; the same for the same seed, prompt and response, as a grader's is.

    >>> right = Verdict(True, "36", "boxed; number", "", 0.0)
    >>> noisy_verdict(right, "7+5-3*4=", "<answer>36</answer>", "36", NoisyAccuracyOptions(false_negatives=1.0))
    False
    """
    draw = hash_text(f"{options.seed}\0{prompt}\0{response}") / 2**64
    if verdict.correct:
        return draw >= options.false_negatives
    accepted = (truths,) if isinstance(truths, str) else truths
    same = options.last_digit and any(_same_last_digit(verdict.extracted or "", truth) for truth in accepted)
    return same or draw < options.false_positives


def _same_last_digit(answer: str, truth: str) -> bool:
    first, second = INTEGER.fullmatch(answer.strip()), INTEGER.fullmatch(truth.strip())
    return first is not None and second is not None and first[1] == second[1]
