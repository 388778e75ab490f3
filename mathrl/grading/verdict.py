"""What the grader returns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement on one response.

    Example:
        Verdict(correct=True, extracted="\\\\frac{1}{2}", rule="boxed; structure", reason="", seconds=0.0001)

    `rule` names the extraction rule and the comparison rule; `reason` says why an answer was not accepted
    ("different numbers", "timeout", …) and is empty for a correct one.
    """

    correct: bool
    extracted: str | None
    rule: str
    reason: str
    seconds: float
