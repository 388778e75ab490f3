"""A verifier that is wrong at stated rates, or by a rule: for experiments on how wrong a grader may be."""

import re
from collections.abc import Sequence

from mathrl.grading.finite_field import hash_text
from mathrl.grading.verdict import Verdict
from mathrl.params.reward_parts import NoisyAccuracyOptions

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
