"""Is the benchmark in the model? A model that met the test problems does better on them than on their twins.

Each problem is scored beside its twins (mathrl/data/twins.py). The AUC is the chance that a problem scores higher than
a twin of its own, ties as a half: 0.5 where the problems are nothing special to the model. Three scores:

| score | of a problem | twins |
|---|---|---|
| completion | mean log-prob per token of the question's second half, after the first | generated, or renumbered |
| solution | mean log-prob per token of the worked demonstration | generated |
| answer | share of right responses | generated, or reworded |
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean
from typing import Any

import torch

from mathrl.core.results import Interval
from mathrl.core.types import Problem
from mathrl.data.sft_sets import demonstration
from mathrl.data.templates import prompt_text, render
from mathrl.evaluation.spread import cluster_interval
from mathrl.models.logprobs import padded
from mathrl.models.packing import Group
from mathrl.params.run import Prompt

TOKENS_AT_A_TIME = 4096


@dataclass(frozen=True)
class Probed:
    """What one score says.

    Example:
        Probed("completion", problems=200, twins=800, auc=Interval(0.612, 0.569, 0.653), own=-0.91, of_twins=-0.99,
               verbatim=0.11, twins_verbatim=0.0)

    `own` and `of_twins` are the mean scores; `verbatim` the share of second halves that greedy decoding reproduces,
    None for other scores. `verdict` follows from the interval, which leaves room for all scores of the probe.
    """

    score: str
    problems: int
    twins: int
    auc: Interval
    own: float
    of_twins: float
    verbatim: float | None = None
    twins_verbatim: float | None = None

    @property
    def verdict(self) -> str:
        if self.auc.low > 0.5:
            return "higher on the benchmark than on twins: the model has met some of these problems"
        if self.auc.high < 0.5:
            return "lower on the benchmark than on twins: the twins are easier, so this score cannot tell"
        return "no sign of the benchmark in the model"


def paired_auc(scores: Sequence[float], twins: Sequence[Sequence[float]], confidence: float = 0.95) -> Interval:
    """Chance that a problem scores higher than a twin of its own, a tie as a half; the interval is over problems.

    Raises:
        ValueError: no problem, or one without a twin.

    >>> round(paired_auc([3, 1], [[1, 2], [1, 2]]).mean, 4)  # wins of 2 out of 2, and of a half
    0.625
    """
    wins = [
        fmean(1.0 if score > twin else 0.5 if score == twin else 0.0 for twin in others)
        for score, others in zip(scores, twins, strict=True)
    ]
    return cluster_interval(wins, confidence=confidence)


def probed(
    score: str,
    scores: Sequence[float],
    twins: Sequence[Sequence[float]],
    confidence: float,
    verbatim: tuple[float, float] | None = None,
) -> Probed:
    """The score's AUC from one number per problem and several per problem of its twins."""
    others = [value for values in twins for value in values]
    auc = paired_auc(scores, twins, confidence)
    return Probed(score, len(scores), len(others), auc, fmean(scores), fmean(others), *(verbatim or (None, None)))


@dataclass(frozen=True)
class Scored:
    """A text's mean log-prob per token, and whether each of its tokens is the likeliest: greedy decoding writes it."""

    logprob: float
    greedy: bool


def completion_group(problem: Problem, prompt: Prompt, tokenizer: Any) -> Group | None:
    """The prompt up to the middle of the question, and the question's rest; None where the prompt lacks the question.

    The cut is before the word in which the middle is, where the question has several.
    """
    if problem.control.messages:  # a chat of the user's, in which a twin's question does not stand
        return None
    text, question = prompt_text(problem, prompt, tokenizer), problem.question
    start = text.rfind(question)
    if start < 0 or len(question) < 2:
        return None
    middle = len(question) // 2
    cut = start + (question.rfind(" ", 1, middle + 1) if " " in question[1 : middle + 1] else middle)
    before, rest = text[:cut], text[cut : start + len(question)]
    ids = list(tokenizer.encode(before, add_special_tokens=False))
    whole = render(problem, prompt, tokenizer)
    if whole[:1] == [tokenizer.bos_token_id] and ids[:1] != whole[:1]:
        ids.insert(0, whole[0])
    return Group(ids, (tokenizer.encode(rest, add_special_tokens=False),))


def solution_group(problem: Problem, prompt: Prompt, tokenizer: Any) -> Group | None:
    """The prompt and the worked demonstration; None without a solution."""
    if problem.solution is None:
        return None
    text = demonstration(problem, prompt, terse=False)
    return Group(render(problem, prompt, tokenizer), (tokenizer.encode(text, add_special_tokens=False),))


@torch.no_grad()
def score_groups(model: Any, groups: Sequence[Group]) -> list[Scored]:
    """Each group's one response under the model at temperature 1."""
    scored: list[Scored] = []
    for batch in _batches(groups):
        ids_BL, real_BL, chosen = padded(batch, model.device)
        logits = model(input_ids=ids_BL, attention_mask=real_BL, use_cache=False).logits[:, :-1]
        targets_N = ids_BL[:, 1:][chosen]
        logp_NV = torch.log_softmax(logits[chosen].float(), dim=-1)
        logp_N = logp_NV.gather(1, targets_N[:, None])[:, 0]
        likeliest_N = logp_NV.argmax(-1) == targets_N
        logprobs, likeliest = iter(logp_N.tolist()), iter(likeliest_N.tolist())
        for group in batch:
            length = len(group.responses[0])
            scored.append(Scored(fmean(islice(logprobs, length)), all(list(islice(likeliest, length)))))
    return scored


def _batches(groups: Sequence[Group]) -> list[list[Group]]:
    """In order, each of at most TOKENS_AT_A_TIME tokens with its padding, one group at least."""
    batches: list[list[Group]] = []
    longest = 0
    for group in groups:
        length = len(group.prompt) + len(group.responses[0])
        longest = max(longest, length) if batches else length
        if not batches or longest * (len(batches[-1]) + 1) > TOKENS_AT_A_TIME:
            batches.append([])
            longest = length
        batches[-1].append(group)
    return batches
