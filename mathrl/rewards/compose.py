"""Reward functions put together from parameters: weighted parts, routed by a row's task or source.

    build_reward({"parts": [{"type": "accuracy", "weight": 0.75}, {"type": "format_lines", "weight": 0.25}]})

The types of parts and their options are in mathrl/params/reward_parts.py, what they compute is in `PARTS`. Every part
is reported under its own name, before its weight; `overall` is the weighted sum.
"""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

from pydantic import ValidationError

from mathrl.core.errors import UserError
from mathrl.core.paths import import_own
from mathrl.core.types import Problem
from mathrl.grading import Verdict, countdown_correct, extract, grade_batch, read_truth
from mathrl.params.messages import messages
from mathrl.params.reward_parts import (
    AccuracyOptions,
    AccuracyPart,
    CountdownOptions,
    MajorityPart,
    NoisyAccuracyOptions,
    NoisyAccuracyPart,
    OverlongOptions,
    RewardPart,
)
from mathrl.params.run import Reward
from mathrl.params.section import DottedOptions, Options
from mathrl.rewards.cascade import (
    Cascade,
    Disagreement,
    ExactAudit,
    LLMJudge,
    MathVerifyJudge,
    agree_with_majority,
    noisy_verdict,
)
from mathrl.rewards.format import format_lines, language_share, r1_tags, repetition_penalty, soft_overlong


@dataclass(frozen=True, slots=True)
class RewardInput:
    """One response to score.

    Example:
        RewardInput(response="<answer>2</answer>", ground_truth=("2",), length=9, max_length=64)

    `length` and `max_length` are in tokens; `row` has the source and the user's columns, for user functions. The
    first of `routes` (the problem's task, data source and source) that has a route chooses the parts. `agrees`, where
    a part needs it, is whether the answer is the most common one of the batch's responses to the same prompt. Without a
    truth it is the verdict too: what is right is then what the majority says.
    """

    response: str
    ground_truth: tuple[str, ...]
    prompt: str = ""
    length: int = 0
    max_length: int = 0
    truncated: bool = False
    row: Mapping[str, Any] = field(default_factory=dict)
    routes: tuple[str, ...] = ()
    agrees: bool = False


@dataclass(frozen=True, slots=True)
class RewardResult:
    """The reward of one response.

    Example:
        RewardResult(overall=0.875, correct=True, parts={"accuracy": 1.0, "format": 0.5}, verdict=Verdict(...))
    """

    overall: float
    correct: bool
    parts: dict[str, float]
    verdict: Verdict
    disagrees: bool | None = None


PartValue = tuple[float, dict[str, float]]
PartFunction = Callable[[RewardInput, Verdict], PartValue]


@dataclass(frozen=True, slots=True)
class Part:
    """A weighted summand, ready to be computed: its value and further metrics. Built by `build_reward`."""

    name: str
    weight: float
    value: PartFunction
    needs_truth: bool = False


def _accuracy(options: AccuracyOptions, params: Reward) -> PartFunction:
    correct = params.correct if options.correct is None else options.correct
    incorrect = params.incorrect if options.incorrect is None else options.incorrect
    return lambda item, verdict: (correct if verdict.correct else incorrect, {})


def _noisy_accuracy(options: NoisyAccuracyOptions, params: Reward) -> PartFunction:
    exact = _accuracy(options, params)

    def value(item: RewardInput, verdict: Verdict) -> PartValue:
        truths = _truths(item)
        accepted = noisy_verdict(verdict, item.prompt, item.response, truths, options)
        reward, _ = exact(item, replace(verdict, correct=accepted))
        return reward, {"wrong": float(accepted != verdict.correct)}

    return value


def _majority(options: AccuracyOptions, params: Reward) -> PartFunction:
    exact = _accuracy(options, params)

    def value(item: RewardInput, verdict: Verdict) -> PartValue:
        reward, _ = exact(item, replace(verdict, correct=item.agrees))
        return reward, {"wrong": float(item.agrees != verdict.correct)} if _truths(item) else {}

    return value


def _of_response(function: Callable[..., float]) -> Callable[[Options, Reward], PartFunction]:
    """A part that is a function of the response's text alone, with the options as keyword arguments."""

    def part(options: Options, params: Reward) -> PartFunction:
        keywords = options.values()
        return lambda item, verdict: (function(item.response, **keywords), {})

    return part


def _countdown(options: CountdownOptions, params: Reward) -> PartFunction:
    def value(item: RewardInput, verdict: Verdict) -> PartValue:
        truths = _truths(item)
        game = read_truth(truths if isinstance(truths, str) else next(iter(truths), ""))
        if game is None:
            raise UserError(
                'countdown part: a row has no numbers and target; give it fields "nums" and "target" or a truth '
                '{"numbers": [4, 6], "target": 24}'
            )
        solved, _ = countdown_correct(extract(item.response, params.extraction).text or "", *game)
        tags = r1_tags(item.response, options.think_open)
        return float(solved) + options.format * tags, {"format": tags}

    return value


def _overlong(options: OverlongOptions, params: Reward) -> PartFunction:
    def value(item: RewardInput, verdict: Verdict) -> PartValue:
        maximum = options.max_length or item.max_length
        buffer = max(1, maximum // 5) if options.buffer is None else options.buffer
        return soft_overlong(item.length, maximum, buffer, options.factor), {}

    return value


def _function(options: DottedOptions, params: Reward) -> PartFunction:
    function, keywords = _user_function(options.path), options.keywords()

    def value(item: RewardInput, verdict: Verdict) -> PartValue:
        try:
            return _call_user_function(function, item, keywords)
        except TypeError as error:
            raise UserError(f"reward function {options.path}: {error}; check its options") from error

    return value


# What each type of part (mathrl/params/reward_parts.py) computes.
PARTS: dict[str, Callable[[Any, Reward], PartFunction]] = {
    "accuracy": _accuracy,
    "noisy_accuracy": _noisy_accuracy,
    "majority": _majority,
    "format_lines": _of_response(format_lines),
    "r1_tags": _of_response(r1_tags),
    "countdown": _countdown,
    "language": _of_response(language_share),
    "overlong": _overlong,
    "repetition": _of_response(repetition_penalty),
    "function": _function,
}


def build_reward(params: Reward | Mapping[str, Any] | None = None, processes: int | None = None) -> RewardFunction:
    """The reward function that section reward describes, as a mapping too (then extraction is lenient by default).

    `processes` is how many processes grade a batch; None chooses by its size.

    Raises:
        UserError: an unknown part, option or grader, or a function that cannot be imported.

    >>> reward = build_reward({"correct": 5.0, "incorrect": -5.0})
    >>> reward.score([RewardInput("<answer>4</answer>", ("5",))])[0].overall
    -5.0
    """
    if not isinstance(params, Reward):
        try:
            params = Reward.model_validate({"extraction": "lenient", **(params or {})})
        except ValidationError as error:
            lines = [f"reward.{'.'.join(map(str, path))}: {text}" for _, path, text in messages(error, Reward)]
            raise UserError("; ".join(lines)) from None
    return RewardFunction(params, processes)


class RewardFunction:
    """Scores batches. Built by `build_reward`; `counters` reports what the verifier did since the last call."""

    def __init__(self, params: Reward, processes: int | None = None) -> None:
        self.extraction, self.processes = params.extraction, processes
        self.parts = [_part(part, params) for part in params.parts]
        self.routes = {name: [_part(part, params) for part in route] for name, route in params.routes.items()}
        parts = [*params.parts, *(part for route in params.routes.values() for part in route)]
        self.votes = any(isinstance(part, MajorityPart) for part in parts)
        self.second: Disagreement | None = None
        if second := params.second_grader:
            is_llm = second.type == "llm"
            llm = LLMJudge(second.endpoint or "", second.model or "", params.extraction) if is_llm else None
            self.second = Disagreement(llm or MathVerifyJudge(), second.share)
        self.exact = ExactAudit(params.exact_share)
        self.cascade = Cascade(params.model_verifier) if params.model_verifier else None
        self._rules: Counter[str] = Counter()
        self._timeouts, self._seconds = 0, 0.0

    def score(self, items: Sequence[RewardInput]) -> list[RewardResult]:
        """One result per item, in order.

        Raises:
            UserError: the judge model of `model_verifier` cannot be asked.
        """
        truths = [_truths(item) for item in items]
        verdicts = grade_batch([item.response for item in items], truths, self.extraction, processes=self.processes)
        if self.cascade is not None:
            verdicts = self.cascade.decide(verdicts, truths)
        if self.votes:
            agrees = agree_with_majority([item.prompt for item in items], [verdict.extracted for verdict in verdicts])
            items = [replace(item, agrees=agree) for item, agree in zip(items, agrees, strict=True)]
        return [self._reward(item, verdict) for item, verdict in zip(items, verdicts, strict=True)]

    def check_truth(self, problem: Problem) -> None:
        """Raises UserError: the problem has no answer, and its parts grade against one."""
        item = RewardInput("", problem.answers, row=problem.extra, routes=(*problem.control.routes, problem.source))
        graded = [part.name for part in self.parts_for(item.routes) if part.needs_truth]
        if graded and not _truths(item):
            raise UserError(
                f"problem {problem.id} has no answer, which part {graded[0]} of the reward grades against: write "
                "reward.parts=[{type: majority}] for rows without an answer, or a route of their own (reward.routes)"
            )

    def audit(self, items: Sequence[RewardInput], results: Sequence[RewardResult]) -> None:
        """Grade a share of the responses exactly too, beside the results as they reach whoever trains on them."""
        for item, result in zip(items, results, strict=True):
            self.exact.see(item.prompt, item.response, item.ground_truth, result.correct)

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Weigh the parts of these names so from now on; the others keep their weights.

        Raises:
            UserError: there is no such part.
        """
        every = [self.parts, *self.routes.values()]
        names = sorted({part.name for parts in every for part in parts})
        if unknown := sorted(weights.keys() - set(names)):
            raise UserError(
                f"rl.schedules.reward_weights: no reward part {unknown[0]!r}; there are: {', '.join(names)}"
            )
        for parts in every:
            parts[:] = [replace(part, weight=weights.get(part.name, part.weight)) for part in parts]

    def counters(self) -> dict[str, float]:
        """Metrics of the verifier since the last call: timeouts, seconds, rule shares, what other graders say."""
        graded = self._rules.total()
        metrics = {
            "verifier/graded": float(graded),
            "verifier/timeouts": float(self._timeouts),
            "verifier/mean_seconds": self._seconds / max(graded, 1),
        }
        metrics |= {f"verifier/rule/{rule}": count / graded for rule, count in sorted(self._rules.items())}
        if self.cascade is not None:
            metrics |= self.cascade.counters()
        if self.second is not None:
            metrics["verifier/disagreement"] = self.second.rate
            metrics["verifier/second_graded"] = float(self.second.judged)
            metrics["verifier/second_abstained"] = float(self.second.abstained)
            if self.second.judged:
                metrics["verifier/second_accuracy"] = self.second.right / self.second.judged
                metrics["verifier/second_passed"] = self.second.passed / self.second.judged
            self.second.reset()
        metrics |= self.exact.counters()
        self._rules.clear()
        self._timeouts, self._seconds = 0, 0.0
        return metrics

    def parts_for(self, names: Sequence[str]) -> list[Part]:
        """The parts of the first name (task, data source, source) that has a route, else the default ones (R7)."""
        return next((self.routes[name] for name in names if name in self.routes), self.parts)

    def common_parts(self) -> list[str]:
        """The names of the parts that every response has, whatever its route."""
        routes = [{part.name for part in parts} for parts in self.routes.values()]
        return [part.name for part in self.parts if all(part.name in names for names in routes)]

    def _reward(self, item: RewardInput, verdict: Verdict) -> RewardResult:
        self._rules[verdict.rule.split(";")[0].replace(" ", "_") or "none"] += 1
        self._timeouts += verdict.reason == "timeout"
        self._seconds += verdict.seconds
        disagrees = None
        if self.second is not None:
            disagrees = self.second.see(item.prompt, item.response, item.ground_truth, verdict.correct)
        values: dict[str, float] = {}
        overall = 0.0
        for part in self.parts_for(item.routes):
            value, extra = part.value(item, verdict)
            values[part.name] = value
            values |= {f"{part.name}/{name}": number for name, number in extra.items()}
            overall += part.weight * value
        correct = item.agrees if self.votes and not _truths(item) else verdict.correct
        return RewardResult(overall, correct, values, verdict, disagrees)


def _part(params: RewardPart, reward: Reward) -> Part:
    needs_truth = isinstance(params, AccuracyPart | NoisyAccuracyPart)
    return Part(params.label, params.weight, PARTS[params.type](params.options, reward), needs_truth)


def _truths(item: RewardInput) -> str | tuple[str, ...]:
    """The accepted answers; a Countdown row without a truth gets one from its numbers and target."""
    if item.ground_truth:
        return tuple(item.ground_truth)
    numbers, target = item.row.get("nums", item.row.get("numbers")), item.row.get("target")
    if numbers is not None and target is not None:
        return json.dumps({"numbers": [int(n) for n in numbers], "target": int(target)})
    return tuple(item.ground_truth)


def _user_function(path: str) -> Callable[..., Any]:
    function = import_own(path, "reward function")
    if not callable(function):
        raise UserError(f"reward function {path!r} is not callable; name a function")
    return function  # type: ignore[no-any-return]


def _call_user_function(function: Callable[..., Any], item: RewardInput, options: Mapping[str, Any]) -> PartValue:
    """Calls `f(response, ground_truth, **row)`, `f(reward_input, **kwargs)` or veRL's `f(data_source, …)`."""
    truth = item.ground_truth[0] if len(item.ground_truth) == 1 else list(item.ground_truth)
    names = list(inspect.signature(function).parameters)
    if names[:1] == ["reward_input"]:
        reward_input = {
            "response": item.response,
            "response_length": item.length,
            "ground_truth": truth,
            "prompt": item.prompt,
        }
        result = function(reward_input, **options)
    elif names[:2] == ["data_source", "solution_str"]:
        source = str(item.row.get("data_source", item.row.get("source", "")))
        result = function(source, item.response, truth, dict(item.row), **options)
    else:
        row = {k: v for k, v in item.row.items() if k not in ("response", "ground_truth")}
        result = function(item.response, truth, **row, **options)
    if not isinstance(result, Mapping):
        return float(result), {}
    numbers = {str(k): float(v) for k, v in result.items() if isinstance(v, Real)}  # numpy's too
    for name in ("overall", "score", "reward"):
        if name in numbers:
            return numbers[name], numbers
    raise UserError("a reward function's dict has none of the keys overall, score, reward; add one as the total")
