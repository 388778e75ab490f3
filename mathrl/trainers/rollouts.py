"""The graded rollouts of a step as the trainer needs them: token ids, log-probs, rewards.

Shapes: P groups (prompts) of G responses.
"""

import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import islice
from math import fsum, sqrt
from typing import Any

import numpy as np
import torch

from mathrl.algorithms.advantages import uniform_groups
from mathrl.core.ngrams import distinct_ngrams
from mathrl.core.statistics import sum_in_order
from mathrl.core.types import Completion, Graded, Logprobs, Problem, Sampled, TokenIds, Tokens, ToolCall
from mathrl.models.packing import Group

REPEATED_GRAM = 16


@dataclass(frozen=True)
class RolloutGroup:
    """The responses to one prompt.

    Example:
        RolloutGroup(problem=17, prompt=(7, 10, 5, 14), responses=((5, 9, 2), (3, 2)),
                     logprobs=((-0.1, -0.7, 0.0), (-2.3, 0.0)), rewards=(1.0, 0.0), correct=(True, False),
                     truncated=(False, False), parts=({"accuracy": 1.0}, {"accuracy": 0.0}))

    `problem` is the number of the problem in the training set. `responses` and `logprobs` may be given as any sequences
    and are int32 and float32 arrays; `logprobs` has those of the tokens that were sampled, or none where TRL sampled
    them. Where responses have `calls`, `sampled` says which tokens of each these are. `repeated` are the responses'
    `repeated_shares`. `step_ends` are the places of the last token of each reasoning step, one tuple per response, and
    `step_rewards` the rewards of the steps; both stay empty without process supervision. `baseline` is the reward of a
    greedy response of `baseline_tokens` tokens (ReMax). `graded` is there only where rollouts are kept. With rl.filters
    `caught` names the filter that caught each response, or is empty, and `left_out` are the responses without a loss.
    `expert`: the response is no sample but the problem's worked solution (rl.imitation).
    """

    problem: int
    prompt: tuple[int, ...]
    responses: tuple[Tokens, ...]
    logprobs: tuple[Logprobs, ...]
    rewards: tuple[float, ...]
    correct: tuple[bool, ...]
    truncated: tuple[bool, ...]
    parts: tuple[dict[str, float], ...]
    repeated: tuple[float, ...] = ()
    step_ends: tuple[tuple[int, ...], ...] = ()
    step_rewards: tuple[tuple[float, ...], ...] = ()
    baseline: float = 0.0
    baseline_tokens: int = 0
    graded: tuple[Graded, ...] = ()
    calls: tuple[tuple[ToolCall, ...], ...] = ()
    sampled: tuple[Sampled, ...] = ()
    caught: tuple[str, ...] = ()
    left_out: tuple[bool, ...] = ()
    expert: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "responses", tuple(np.asarray(response, np.int32) for response in self.responses))
        object.__setattr__(self, "logprobs", tuple(np.asarray(values, np.float32) for values in self.logprobs))

    @property
    def sampled_tokens(self) -> int:
        """The sampled tokens of the responses and of the baseline's."""
        return sum(self.lengths) + self.baseline_tokens

    @cached_property
    def lengths(self) -> list[int]:
        """The number of sampled tokens of each response: the outputs of tools are not counted."""
        return self.group.counts

    @property
    def group(self) -> Group:
        return Group(self.prompt, self.responses, self.sampled)

    def some(self, first: int, last: int) -> "RolloutGroup":
        """The group with the responses `first` to `last` (exclusive) alone."""
        kept = {
            field.name: getattr(self, field.name)[first:last]
            for field in fields(self)
            if field.name not in ("problem", "prompt", "baseline", "baseline_tokens", "expert")
        }
        return replace(self, **kept)


# What judges a rank's groups after grading, and may replace their rewards or add rewards of steps.
GroupJudge = Callable[[list[RolloutGroup]], list[RolloutGroup]]


def rollout_groups(
    problems: Sequence[int],
    prompts: Sequence[Sequence[int] | None],
    graded: Sequence[Sequence[Graded] | None],
    kept: bool = False,
) -> list[RolloutGroup]:
    """The groups of these problems, with their prompts and graded responses; None leaves a problem out.

    With `kept` a group also holds what the verifier reported.
    """
    sampled = [
        (problem, prompt or (), responses)
        for problem, prompt, responses in zip(problems, prompts, graded, strict=True)
        if responses is not None
    ]
    completions = [response.completion for _, _, responses in sampled for response in responses]
    repeated = iter(repeated_shares([completion.tokens[completion.sampled_mask] for completion in completions]))
    return [
        RolloutGroup(
            problem=problem,
            prompt=tuple(prompt),
            responses=tuple(response.completion.tokens for response in responses),
            logprobs=tuple(_sampled_logprobs(response.completion) for response in responses),
            rewards=tuple(response.reward for response in responses),
            correct=tuple(response.correct for response in responses),
            truncated=tuple(response.completion.finish_reason == "length" for response in responses),
            parts=tuple(dict(response.parts) for response in responses),
            repeated=tuple(islice(repeated, len(responses))),
            graded=tuple(responses) if kept else (),
            **_calls(responses),
        )
        for problem, prompt, responses in sampled
    ]


def _sampled_logprobs(completion: Completion) -> Logprobs:
    """Without those of tools; an engine that trains without mathrl's loop (TRL) gives none at all."""
    return completion.logprobs[completion.sampled_mask] if completion.calls else completion.logprobs


def _calls(responses: Sequence[Graded]) -> dict[str, Any]:
    """The fields `calls` and `sampled` of a group, where a response of it called a tool."""
    completions = [response.completion for response in responses]
    if not any(completion.calls for completion in completions):
        return {}
    return {"calls": tuple(c.calls for c in completions), "sampled": tuple(c.sampled_mask for c in completions)}


def with_experts(groups: Sequence[RolloutGroup]) -> tuple[list[RolloutGroup], list[int]]:
    """Each sampled group with its problem's expert response as its last, and where each response stands in the batch.

    The batch has the sampled groups first, then the experts. Example: groups of 2 and 2, an expert of the second:
    places [0, 1, 2, 3, 4].
    """
    sampled, experts = ([group for group in groups if group.expert == expert] for expert in (False, True))
    starts = np.cumsum([0, *(len(group.responses) for group in groups)]).tolist()
    waiting = {id(expert): place for expert, place in zip(experts, starts[len(sampled) :], strict=False)}
    merged, places = [], list[int]()
    for number, group in enumerate(sampled):
        places += range(starts[number], starts[number + 1])
        expert = next((expert for expert in experts if expert.problem == group.problem and id(expert) in waiting), None)
        if expert is not None:
            places.append(waiting.pop(id(expert)))
            group = replace(
                group, rewards=(*group.rewards, *expert.rewards), responses=(*group.responses, *expert.responses)
            )
        merged.append(group)
    return merged, places


def rollout_metrics(groups: Sequence[RolloutGroup], trained: Sequence[RolloutGroup]) -> dict[str, float]:
    """Rewards, lengths and repetition of a step's rollouts, under the field's names.

    `trained` are those of the groups that are trained on; the zero-variance share is of them.
    """
    rewards = torch.tensor([reward for group in groups for reward in group.rewards])
    correct = [float(right) for group in groups for right in group.correct]
    uniform = sum(bool(uniform_groups(torch.tensor([group.rewards]))) for group in trained)
    lengths = [length for group in groups for length in group.lengths]
    count = len(lengths)
    figures = {
        "reward/overall": float(rewards.mean()),
        "reward/overall_std": float(rewards.std()) if count > 1 else 0.0,
        "reward/accuracy": sum(correct) / count,
        "response_length": sum(lengths) / count,
        "response_length_max": float(max(lengths)),
        "rollout/longest_to_median": max(lengths) / max(1.0, statistics.median(lengths)),
        "rollout/length_reward_correlation": correlation(lengths, rewards.tolist()),
        "rollout/length_accuracy_correlation": correlation(lengths, correct),
        "rollout/repetition": sum_in_order(share for group in groups for share in group.repeated) / count,
        "rollout/empty_groups": sum(max(group.lengths) <= 1 for group in groups) / len(groups),
        "rollout/truncated_share": sum(sum(group.truncated) for group in groups) / count,
        "rollout/zero_variance_share": uniform / len(trained),
    }
    parts = [part for group in groups for part in group.parts]
    for name in sorted({name for part in parts for name in part}):
        # A response without the part (its route is another) does not count.
        values = [part[name] for part in parts if name in part]
        figures.setdefault(f"reward/{name}", sum_in_order(values) / len(values))
        if name != "accuracy":
            right = [verdict for part, verdict in zip(parts, correct, strict=True) if name in part]
            figures[f"rollout/part_{name}_accuracy_correlation"] = correlation(values, right)
    return figures


def tool_metrics(groups: Sequence[RolloutGroup]) -> dict[str, float]:
    """Calls of the tool in a step's rollouts.

    Means per response are `tool/calls`, `tool/seconds` and `tool/tokens` (of the tool's outputs); `tool/call_share` is
    the share of responses that called, `tool/right_with_call` that of the right ones. Shares of the calls are
    `tool/error_rate` (no result), `tool/unavailable_rate` (the tool itself failed) and `tool/echo_rate` (the output
    stands in the code).
    """
    responses = [calls for group in groups for calls in group.calls or ((),) * len(group.correct)]
    calls = [call for row in responses for call in row]
    verdicts = [correct for group in groups for correct in group.correct]
    right = [bool(row) for row, correct in zip(responses, verdicts, strict=True) if correct]
    rates = {
        "tool/error_rate": sum(call.status != "ok" for call in calls),
        "tool/unavailable_rate": sum(call.status == "unavailable" for call in calls),
        "tool/echo_rate": sum(call.status == "ok" and is_echo(call.code, call.output) for call in calls),
    }
    return {
        "tool/calls": len(calls) / len(responses),
        "tool/call_share": sum(bool(row) for row in responses) / len(responses),
        "tool/seconds": sum_in_order(call.seconds for call in calls) / len(responses),
        "tool/tokens": sum(call.end - call.start for call in calls) / len(responses),
        "tool/right_with_call": sum(right) / max(1, len(right)),
        **{name: count / max(1, len(calls)) for name, count in rates.items()},
    }


def is_echo(code: str, output: str) -> bool:
    """Whether the output stands in the code as it is.

    >>> is_echo("print(391)", "391"), is_echo("print(17 * 23)", "391"), is_echo("print(3910)", "391")
    (True, False, False)
    """
    return bool(output) and re.search(rf"(?<!\w){re.escape(output)}(?!\w)", code) is not None


def correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Pearson's correlation, from -1 to 1; 0 where one of them does not vary.

    >>> correlation([1, 2, 3], [2, 4, 6]), correlation([1, 2], [3, 3]), correlation([1, 2], [4, 3])
    (1.0, 0.0, -1.0)
    """
    if len(first) < 2 or len(set(first)) < 2 or len(set(second)) < 2:
        return 0.0
    # Not statistics.correlation, whose last bit is another from Python 3.12 on.
    mean_x, mean_y = fsum(first) / len(first), fsum(second) / len(second)
    pairs = [(x - mean_x, y - mean_y) for x, y in zip(first, second, strict=True)]
    xx, yy = fsum(x * x for x, _ in pairs), fsum(y * y for _, y in pairs)
    return fsum(x * y for x, y in pairs) / sqrt(xx * yy)


def repeated_shares(responses: Sequence[TokenIds], n: int = REPEATED_GRAM) -> list[float]:
    """Share of the n-grams of tokens that occur earlier in the same response, for each response.

    >>> repeated_shares([(1, 2, 1, 2, 1), (1, 2)], n=2), repeated_shares([(1, 2)], n=4)
    ([0.5, 0.0], [0.0])
    """
    grams = [len(response) - n + 1 for response in responses]
    return [
        1 - distinct / count if count > 1 else 0.0
        for count, distinct in zip(grams, distinct_ngrams(responses, n), strict=True)
    ]


def metrics_by_source(groups: Sequence[RolloutGroup], problems: Sequence[Problem]) -> dict[str, float]:
    """Accuracy, reward and length of the problems of each source, where there is more than one."""
    by_source: dict[str, list[RolloutGroup]] = {}
    for group in groups:
        by_source.setdefault(problems[group.problem].source, []).append(group)
    if len({problem.source for problem in problems}) < 2:
        return {}
    figures: dict[str, float] = {}
    for source, members in sorted(by_source.items()):
        count = sum(len(group.responses) for group in members)
        figures[f"source/{source}/accuracy"] = sum(sum(group.correct) for group in members) / count
        figures[f"source/{source}/reward"] = sum_in_order(sum_in_order(group.rewards) for group in members) / count
        lengths = sum(sum(group.lengths) for group in members)
        figures[f"source/{source}/response_length"] = lengths / count
    return figures
