"""SFT sets and preference pairs from a policy's graded samples.

Rejection sampling (RFT; DeepSeek-R1, section 2.3.3): correct responses only, different from one another,
without mixed languages, repetition or over-long text, at most m per problem. Preference pairs: a correct
and a wrong response to the same problem.
"""

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mathrl.core.hashing import derive_seed
from mathrl.core.types import Problem
from mathrl.data.grams import exact_key
from mathrl.rewards.format import language_share, repetition_penalty

# A row of responses.jsonl: {"response": "…", "correct": true, "truncated": false, "length": 34, …}
ResponseRow = Mapping[str, Any]
Groups = Iterable[tuple[Problem, Sequence[ResponseRow]]]


@dataclass(frozen=True)
class Filters:
    """What a response must satisfy to be imitated; None switches a filter off."""

    per_problem: int = 4
    max_length: int | None = None
    language: str | None = None
    min_language_share: float = 0.95
    max_repetition: float | None = 0.2
    repetition_ngram: int = 8


def rejection_sample(groups: Groups, filters: Filters, seed: int) -> tuple[list[Problem], Counter[str]]:
    """Problems of the sft split with a response to imitate in `control.response`, and the number of samples by reason.

    Every sample is counted once: kept, wrong, truncated, too long, mixed language, repetitive, duplicate, or
    above per_problem. The seed decides which of the fitting samples are kept.
    """
    kept: list[Problem] = []
    counts: Counter[str] = Counter()
    for problem, samples in groups:
        fitting: dict[int, str] = {}
        for sample in samples:
            response = str(sample["response"])
            reason = _why_not(sample, response, filters)
            if reason is None and exact_key(response) in fitting:
                reason = "duplicate"
            if reason is None:
                fitting[exact_key(response)] = response
            else:
                counts[reason] += 1
        responses = list(fitting.values())
        rng = random.Random(derive_seed(seed, "rejection", problem.id))
        taken = sorted(rng.sample(range(len(responses)), min(filters.per_problem, len(responses))))
        counts["above per_problem"] += len(responses) - len(taken)
        counts["kept"] += len(taken)
        kept += [
            problem.with_(
                id=f"{problem.id}#{number}", split="sft", control=replace(problem.control, response=responses[i])
            )
            for number, i in enumerate(taken)
        ]
    return kept, +counts


def _why_not(sample: ResponseRow, response: str, filters: Filters) -> str | None:
    if not sample["correct"]:
        return "wrong"
    if sample.get("truncated"):
        return "truncated"
    if filters.max_length is not None and sample["length"] > filters.max_length:
        return "too long"
    if filters.language and language_share(response, filters.language) < filters.min_language_share:
        return "mixed language"
    if filters.max_repetition is not None:
        repeated = -repetition_penalty(response, n=filters.repetition_ngram)
        if repeated > filters.max_repetition:
            return "repetitive"
    return None


def preference_pairs(groups: Groups, per_problem: int, seed: int) -> list[dict[str, Any]]:
    """Pairs of a correct (chosen) and a wrong (rejected) response; no response in two pairs of a problem.

    A truncated response is never the chosen one, whatever its answer.

    Example:
        {"problem_id": "chain/rl/00012", "question": "7+5-3*4=", "chosen": "…<answer>36</answer>",
         "rejected": "<answer>12</answer>"}
    """
    pairs = []
    for problem, samples in groups:
        right = list(dict.fromkeys(str(s["response"]) for s in samples if s["correct"] and not s.get("truncated")))
        wrong = list(dict.fromkeys(str(s["response"]) for s in samples if not s["correct"]))
        rng = random.Random(derive_seed(seed, "preference", problem.id))
        rng.shuffle(right)
        rng.shuffle(wrong)
        pairs += [
            {"problem_id": problem.id, "question": problem.question, "chosen": chosen, "rejected": rejected}
            for chosen, rejected in list(zip(right, wrong, strict=False))[:per_problem]
        ]
    return pairs


def step_labels(correct: Sequence[int], samples: int) -> list[dict[str, float]]:
    """Labels of the steps of a solution by Monte-Carlo rollouts from each prefix (Math-Shepherd, arXiv:2312.08935).

    Args:
        correct: For the prefix that ends in step i, how many of its `samples` continuations were correct.

    Returns:
        Per step the soft label (share of correct continuations) and the hard one (1 when any was correct).

    >>> step_labels([3, 0], 4)
    [{'soft': 0.75, 'hard': 1.0}, {'soft': 0.0, 'hard': 0.0}]
    """
    if samples < 1 or any(not 0 <= count <= samples for count in correct):
        raise ValueError(f"step labels: counts {list(correct)} of {samples} continuations")
    return [{"soft": count / samples, "hard": float(count > 0)} for count in correct]
