r"""An exact grader of numbers on a sample of the responses, beside the reward's own (health rule reward_hacking).

It reads answers without mathrl.grading, so a hole there is none here: the last number of the last marked answer
(`<answer>`, `\boxed{}`, `####`), else of the text outside the thinking, must be the accepted one. It is coarse on
purpose, and abstains where no accepted answer is a number.
"""

import re
from collections.abc import Sequence
from fractions import Fraction

from mathrl.core.hashing import hash_text

_MARKED = re.compile(r"<answer>(.*?)</answer>|\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}|####([^\n]*)", re.DOTALL)
_NUMBER = re.compile(r"(?:(?<![\d)])-)?(?<![\d.])\d{1,30}(?:\.\d{1,30}|/0*[1-9]\d{0,29})?(?!\d)")
_FRACTION = re.compile(r"\\[dt]?frac\{(\d+)\}\{(\d+)\}")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
TAIL = 4000


def exact_verdict(response: str, truths: Sequence[str]) -> bool | None:
    r"""Whether the number that the response ends with is one of the accepted; None where no accepted answer is one.

    >>> exact_verdict("<think>1+1=2</think><answer>2</answer>", ["2"]), exact_verdict("\\boxed{1,000 m}", ["1000.0"])
    (True, True)
    >>> exact_verdict("<answer></answer>", ["2"]), exact_verdict("<answer>2</answer>", ["\\sqrt{4}"])
    (False, None)
    """
    plain = (_plain(truth) for truth in truths)
    accepted = {Fraction(number) for number in plain if _NUMBER.fullmatch(number)}
    if not accepted:
        return None
    spoken = response[-TAIL:].rpartition("</think>")[2]
    if "<think>" in spoken:
        return False
    marked = _MARKED.findall(spoken)
    numbers = _NUMBER.findall(_plain("".join(marked[-1]) if marked else spoken))
    return bool(numbers) and Fraction(numbers[-1]) in accepted


def _plain(text: str) -> str:
    return _THOUSANDS.sub("", _FRACTION.sub(r"\1/\2", text)).strip().strip("$")


class ExactAudit:
    """Grades a share of the responses, chosen by their hash, beside what the trainer is told of the same ones.

    >>> audit = ExactAudit(share=1.0)
    >>> audit.see("1+1=", "<answer></answer>", ["2"], correct=True)
    >>> audit.counters()  # doctest: +NORMALIZE_WHITESPACE
    {'verifier/exact_graded': 1.0, 'verifier/exact_accuracy': 0.0, 'verifier/exact_passed': 1.0,
     'verifier/exact_agreement': 0.0}
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.graded = self.right = self.passed = self.agreed = 0

    def see(self, prompt: str, response: str, truths: Sequence[str], correct: bool) -> None:
        """Grade the response if it falls into the sample; `correct` is the verifier's verdict."""
        if hash_text(f"exact\0{prompt}\0{response}") / 2**64 >= self.share:
            return
        verdict = exact_verdict(response, truths)
        if verdict is not None:
            self.graded += 1
            self.right += verdict
            self.passed += correct
            self.agreed += verdict == correct

    def counters(self) -> dict[str, float]:
        """Number graded since the last call, shares that are right, that are accepted, and on which both agree."""
        metrics = {}
        if self.graded:
            metrics = {
                "verifier/exact_graded": float(self.graded),
                "verifier/exact_accuracy": self.right / self.graded,
                "verifier/exact_passed": self.passed / self.graded,
                "verifier/exact_agreement": self.agreed / self.graded,
            }
        self.graded = self.right = self.passed = self.agreed = 0
        return metrics
