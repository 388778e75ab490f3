"""Filters of responses between grading and training (rl.filters): which of them no update learns from.

A response that is caught keeps its reward, which stays in its group's mean, and has no loss: it is left out of every
denominator, as a truncated one with rl.truncated mask is (prime-rl's filters; slime's rollout_sample_filter).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mathrl.core.errors import UserError
from mathrl.core.paths import import_own
from mathrl.core.types import Logprobs, Tokens
from mathrl.params.responses import FunctionFilter, Gibberish, Repetition, ResponseFilter, SureRun
from mathrl.trainers.rollouts import RolloutGroup


@dataclass(frozen=True)
class GradedResponse:
    """A response as a filter sees it; `logprobs` are those of `tokens` that were sampled, `sampled`.

    Example:
        GradedResponse(text="2+2=4", tokens=np.array([5, 9, 2]), sampled=np.array([5, 9, 2]),
                       logprobs=np.array([-0.1, -0.7, 0.0]), reward=1.0, correct=True, truncated=False, repeated=0.0,
                       parts={"accuracy": 1.0})
    """

    text: str
    tokens: Tokens
    sampled: Tokens
    logprobs: Logprobs
    reward: float
    correct: bool
    truncated: bool
    repeated: float
    parts: Mapping[str, float]


Catches = Callable[[GradedResponse], bool]


def has_gibberish(sampled: Tokens, logprobs: Logprobs, token_above: int, logprob_below: float) -> bool:
    """Whether a token of a large id, a rare one, was sampled although it was unlikely.

    >>> has_gibberish(np.array([7, 900]), np.array([-9.0, -9.0]), 800, -8.0)
    True
    >>> has_gibberish(np.array([7, 900]), np.array([-9.0, -0.1]), 800, -8.0)
    False
    """
    return bool(((sampled > token_above) & (logprobs < logprob_below)).any())


def longest_sure_run(logprobs: Logprobs, probability: float) -> int:
    """The largest number of tokens in a row with more than this probability each.

    >>> longest_sure_run(np.log([0.999, 0.5, 0.999, 0.995, 0.999, 0.2]), 0.99)
    3
    """
    unsure = np.flatnonzero(logprobs <= math.log(probability))
    return int(np.diff(np.concatenate([[-1], unsure, [len(logprobs)]])).max()) - 1


def catcher(params: ResponseFilter, vocabulary: int) -> Catches:
    """The function that says whether the filter catches a response.

    Raises:
        UserError: a function of the user that cannot be imported or called.
    """
    match params:
        case Gibberish():
            below = -math.log(vocabulary) - params.offset
            return lambda response: has_gibberish(response.sampled, response.logprobs, params.token_above, below)
        case SureRun():
            return lambda response: longest_sure_run(response.logprobs, params.probability) >= params.window
        case Repetition():
            return lambda response: response.repeated > params.share
        case FunctionFilter():
            function, keywords = import_own(params.path, "rl.filters"), params.options.values()
            if not callable(function):
                raise UserError(f"rl.filters: {params.path!r} is not callable; name a function")
            return lambda response: bool(function(response, **keywords))
    raise AssertionError(params.type)


def filter_label(params: ResponseFilter) -> str:
    """The name of a filter in the metrics: its type, or that of the user's function."""
    return params.path.replace(":", ".").rpartition(".")[2] if isinstance(params, FunctionFilter) else params.type


def filter_groups(
    groups: Sequence[RolloutGroup], filters: Sequence[ResponseFilter], tokenizer: Any
) -> list[RolloutGroup]:
    """The groups with what caught each of their responses: the first filter that does."""
    if not filters:
        return list(groups)
    catchers = [(params, catcher(params, len(tokenizer))) for params in filters]
    filtered = []
    for group in groups:
        found = [
            next((params for params, catches in catchers if catches(response)), None)
            for response in _responses(group, tokenizer)
        ]
        caught = tuple(filter_label(params) if params is not None else "" for params in found)
        left_out = tuple(params is not None and params.enforce for params in found)
        filtered.append(replace(group, caught=caught, left_out=left_out))
    return filtered


def _responses(group: RolloutGroup, tokenizer: Any) -> list[GradedResponse]:
    masks = group.group.masks
    return [
        GradedResponse(
            text=tokenizer.decode(tokens.tolist(), skip_special_tokens=True),
            tokens=tokens,
            sampled=tokens[masks[number]],
            logprobs=group.logprobs[number],
            reward=group.rewards[number],
            correct=group.correct[number],
            truncated=group.truncated[number],
            repeated=group.repeated[number] if group.repeated else 0.0,
            parts=group.parts[number],
        )
        for number, tokens in enumerate(group.responses)
    ]


def filter_metrics(groups: Sequence[RolloutGroup], filters: Sequence[ResponseFilter]) -> dict[str, float]:
    """The share of a step's responses that each filter caught, and the share that has no loss because of them."""
    if not filters:
        return {}
    caught = [label for group in groups for label in group.caught]
    left_out = [out for group in groups for out in group.left_out]
    shares = {f"filter/{label}": caught.count(label) / len(caught) for label in map(filter_label, filters)}
    return {**shares, "filter/left_out_share": sum(left_out) / len(left_out)}
