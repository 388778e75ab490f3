"""A second grader on a sample of the responses; its rate of disagreement with the first is a metric (R6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mathrl.core.hashing import hash_text
from mathrl.grading import ExtractionMode, SymbolicEngine, extract
from mathrl.rewards.model_judge import ModelJudge


class AbstainingGrader(Protocol):
    """A grader that may abstain: `judge` returns True, False, or None if it cannot judge."""

    def judge(self, prompt: str, response: str, truths: Sequence[str]) -> bool | None: ...


class MathVerifyJudge:
    """Math-Verify on the whole response, as its users call it, in a killable worker."""

    def __init__(self) -> None:
        self.engine = SymbolicEngine(limit=3.0, patience=30.0)

    def judge(self, prompt: str, response: str, truths: Sequence[str]) -> bool | None:
        for truth in truths:
            outcome = self.engine.ask(truth, response[-4000:], "whole")
            if outcome.equal:
                return True
            if outcome.reason:
                return None
        return False


class LLMJudge:
    """A judge model (model_judge.py) on the answer that the rules extract; it abstains without a usable reply.

    Example:
        LLMJudge("http://localhost:8000/v1", "qwen").judge("1+1=?", "It is 2.", ["2"])
    """

    def __init__(self, endpoint: str, model: str, extraction: ExtractionMode = "lenient") -> None:
        self.model, self.extraction = ModelJudge(endpoint, model), extraction

    def judge(self, prompt: str, response: str, truths: Sequence[str]) -> bool | None:
        answer = extract(response, self.extraction).text
        if not answer:
            return False
        judgements = self.model.compare([(answer, truth) for truth in truths])
        if "equal" in judgements:
            return True
        return False if set(judgements) <= {"different"} else None


class Disagreement:
    """Counts how often a second grader differs from the first, on a deterministic sample.

    >>> class Yes:
    ...     def judge(self, prompt, response, truths):
    ...         return True
    >>> disagreement = Disagreement(Yes(), share=1.0)
    >>> disagreement.see("", "7", ["8"], False)
    True
    >>> disagreement.rate
    1.0
    """

    def __init__(self, judge: AbstainingGrader, share: float) -> None:
        self._judge = judge
        self.share = share
        self.reset()

    def reset(self) -> None:
        """Forget what was judged so far."""
        self.judged = self.differed = self.abstained = self.right = self.passed = 0

    def see(self, prompt: str, response: str, truths: Sequence[str], correct: bool) -> bool | None:
        """Judge the response if it falls into the sample (chosen by its hash, so a rerun samples the same).

        `right` counts what the second grader takes for right, `passed` what the first does of the same responses.
        Returns whether the graders differ; None where the second one was not asked or abstained.
        """
        if hash_text(prompt + "\x00" + response) / 2**64 >= self.share:
            return None
        verdict = self._judge.judge(prompt, response, truths)
        if verdict is None:
            self.abstained += 1
            return None
        self.judged += 1
        self.differed += verdict != correct
        self.right += verdict
        self.passed += correct
        return verdict != correct

    @property
    def rate(self) -> float:
        return self.differed / self.judged if self.judged else 0.0
