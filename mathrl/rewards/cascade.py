r"""Verdicts beside the verifier's rules: a judge model's, the majority's, noisy ones, and other graders' on a sample.

The cascade has two tiers: the rules first, then a model that judges what they refuse without settling it.

Two graders look at a sample of the responses and change no reward. The rate at which the second grader disagrees is a
metric (R6). The exact grader of numbers is for the health rule reward_hacking. It reads answers without mathrl.grading,
so a hole there is none here: the last number of the last marked answer (`<answer>`, `\boxed{}`, `####`), else of the
text outside the thinking, must be the accepted one. It is coarse on purpose, and abstains where no accepted answer is a
number.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

from mathrl.core.environment import Variable, rank
from mathrl.core.errors import UserError
from mathrl.core.files import ESCAPE, write_text
from mathrl.core.hashing import hash_text
from mathrl.core.statistics import sum_in_order
from mathrl.grading import ExtractionMode, SymbolicEngine, Verdict, equal_answers, equal_classes, extract, read_truth
from mathrl.params.reward_parts import NoisyAccuracyOptions
from mathrl.params.run import ModelVerifier
from mathrl.rewards.model_judge import Judgement, ModelJudge

# Reasons of refusals that leave nothing to judge.
SETTLED = ("different numbers", "words where mathematics was expected", "no option letter")
MOST_CASES = 1000  # per process


class OverruledCases:
    """What a judge overrules, once each, as rows of a file of labelled cases (`mathrl runs audit --cases`).

    In a stage they are in judge_cases.jsonl of its record, of another rank than the first in judge_cases-RANK.jsonl; a
    resumed run goes on with those that are there.
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        name = f"judge_cases-{rank()}.jsonl" if rank() else "judge_cases.jsonl"
        self.file = Path(record) / name if (record := Variable.RECORD.get()) else None
        if self.file is not None and self.file.exists():
            *lines, cut_off = self.file.read_text(encoding="utf-8", errors="replace").split("\n")
            self.rows = [json.loads(line) for line in lines]
            if cut_off:  # by a kill
                write_text(self.file, "".join(f"{line}\n" for line in lines))

    def add(self, verdict: Verdict, truths: tuple[str, ...], right: bool) -> None:
        """Keep the verdict that was overruled, with its reason, and what the judge says; a thousand at most."""
        response, source = f"\\boxed{{{verdict.extracted}}}", f"judge: {verdict.reason}"
        row = {"response": response, "ground_truth": list(truths), "right": right, "source": source}
        if row in self.rows or len(self.rows) == MOST_CASES:
            return
        self.rows.append(row)
        if self.file is not None:
            with self.file.open("a", encoding="utf-8", errors=ESCAPE) as stream:
                stream.write(json.dumps(row, ensure_ascii=False) + "\n")


class Cascade:
    """Verdicts of the rules in, verdicts of both tiers out."""

    def __init__(self, params: ModelVerifier) -> None:
        options = params.model_dump(include={"max_tokens", "timeout_seconds", "at_a_time"})
        self.judge = ModelJudge(params.endpoint, params.model, **options)
        self.asked, self.on_failure = params.asked, params.on_failure
        self._tiers: Counter[str] = Counter()
        self._overruled = 0
        self.cases = OverruledCases()

    def decide(self, verdicts: Sequence[Verdict], truths: Sequence[str | tuple[str, ...]]) -> list[Verdict]:
        """The final verdicts, in order.

        A judgement that cannot be used (two orders that differ, an accepted decoy, another reply than one word) is a
        refusal. Where the endpoint fails and `on_failure` is "rule", the rules' verdict stands and is counted.

        Raises:
            UserError: the endpoint fails and `on_failure` is "stop".
        """
        accepted = [(truth,) if isinstance(truth, str) else truth for truth in truths]
        asked = [n for n, verdict in enumerate(verdicts) if self._is_open(verdict, accepted[n])]
        pairs = [(str(verdicts[n].extracted), truth) for n in asked for truth in accepted[n]]
        reasons = {(str(verdicts[n].extracted), truth): verdicts[n].reason for n in asked for truth in accepted[n]}
        judged = iter(self.judge.compare(pairs, reasons))
        if self.judge.failure and self.on_failure == "stop":
            raise UserError(
                f"the judge model cannot be asked: {self.judge.failure}; start its server or correct "
                "model_verifier.endpoint and model; model_verifier.on_failure=rule goes on with the rules' verdicts"
            )
        final = list(verdicts)
        for n in asked:
            final[n] = self._merge_judgements(verdicts[n], [next(judged) for _ in accepted[n]])
            if final[n].correct != verdicts[n].correct:
                self.cases.add(verdicts[n], accepted[n], final[n].correct)
        self._tiers["rule"] += len(verdicts) - len(asked)
        return final

    def _is_open(self, verdict: Verdict, truths: tuple[str, ...]) -> bool:
        """Whether the model is asked. A Countdown has one rule and no accepted answer to compare with."""
        text = (verdict.extracted or "").strip()
        if not text or verdict.rule.endswith("countdown"):
            return False
        if self.asked == "all":
            return text not in truths
        return not verdict.correct and verdict.reason not in SETTLED

    def _merge_judgements(self, verdict: Verdict, judgements: Sequence[Judgement]) -> Verdict:
        equal = "equal" in judgements
        if not equal and "failed" in judgements:
            self._tiers["rule"] += 1
            return verdict
        unusable = next((judgement for judgement in judgements if not equal and judgement != "different"), None)
        self._tiers["none" if unusable else "model"] += 1
        self._overruled += not unusable and equal != verdict.correct
        reason = "" if equal else f"the judge model: {unusable or 'different'}"
        return replace(verdict, correct=equal, rule=f"{verdict.rule.split(';')[0]}; model", reason=reason)

    def counters(self) -> dict[str, float]:
        """Metrics since the last call: the share that each tier decided, what the model overruled, requests, hits."""
        graded, judged, counts = self._tiers.total(), self._tiers["model"], self.judge.counts
        metrics = {f"verifier/tier/{tier}": self._tiers[tier] / max(graded, 1) for tier in ("rule", "model", "none")}
        metrics["verifier/model_judged"] = float(judged)
        metrics["verifier/model_disagreement"] = self._overruled / max(judged, 1)
        names = ("requests", "cache_hits", "inconsistent", "fooled", "unreadable", "not_asked", "failed")
        metrics |= {f"verifier/model_{name}": float(counts[name]) for name in names}
        self._tiers.clear()
        counts.clear()
        self._overruled = 0
        return metrics


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
    spoken = response.rpartition("</think>")[2]
    if "<think>" in spoken:
        return False
    spoken = spoken[-TAIL:]
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


def agree_with_majority(prompts: Sequence[str], answers: Sequence[str | None]) -> list[bool]:
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
    winners = {prompt: _most_common(counts) for prompt, counts in votes.items()}
    return [answer in winners.get(prompt, ()) for prompt, answer in zip(prompts, answers, strict=True)]


def _most_common(counts: Counter[str]) -> set[str]:
    """The spellings of the answer with the most votes; of a tie the one that was given first."""
    place = {answer: place for place, answer in enumerate(counts)}
    classes = equal_classes(counts, equal_answers)
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


# Shares of another count than what was graded.
SHARES_OF = {
    "verifier/disagreement": "verifier/second_graded",
    "verifier/second_accuracy": "verifier/second_graded",
    "verifier/second_passed": "verifier/second_graded",
    "verifier/exact_accuracy": "verifier/exact_graded",
    "verifier/exact_passed": "verifier/exact_graded",
    "verifier/exact_agreement": "verifier/exact_graded",
    "verifier/model_disagreement": "verifier/model_judged",
}


def merged_counters(shares: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The verifier's counters of all ranks: counts summed, shares and means weighted by what they are of.

    What the second grader, the exact one or the judge model says is a share of what it judged, the other shares are of
    what was graded. Seconds go under time/, since they differ from run to run.

    >>> ranks = [{"verifier/second_graded": 1.0, "verifier/disagreement": 1.0}, {"verifier/second_graded": 0.0}]
    >>> merged_counters(ranks)["verifier/disagreement"]
    1.0
    """
    merged: dict[str, float] = {}
    for name in sorted({name for share in shares for name in share}):
        values = [share.get(name, 0.0) for share in shares]
        if name not in SHARES_OF and not name.startswith(("verifier/rule/", "verifier/tier/", "verifier/mean_")):
            merged[name] = sum_in_order(values)
            continue
        counts = [share.get(SHARES_OF.get(name, "verifier/graded"), 0.0) for share in shares]
        weighted = sum_in_order(n * value for n, value in zip(counts, values, strict=True))
        mean = weighted / max(1.0, sum_in_order(counts))
        merged[f"time/{name}" if name.endswith("seconds") else name] = mean
    return merged


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
        It abstains where there is nothing to compare with: no truth, or a Countdown's numbers and target.
        Returns whether the graders differ; None where the second one was not asked or abstained.
        """
        if hash_text(prompt + "\x00" + response) / 2**64 >= self.share:
            return None
        comparable = truths and not any(map(read_truth, truths))
        verdict = self._judge.judge(prompt, response, truths) if comparable else None
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
