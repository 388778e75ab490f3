"""Reward functions put together from parameters: weighted parts, routed by a row's task or source.

    build_reward({"parts": [{"type": "accuracy", "weight": 0.75}, {"type": "format_lines", "weight": 0.25}]})

The parts: accuracy, format_lines, r1_tags, countdown, language, overlong, repetition, function. Every part is
reported under its own name, before its weight; `overall` is the weighted sum.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mathrl.core.errors import UserError
from mathrl.grading.countdown import countdown_correct, read_truth
from mathrl.grading.engine import default_engine
from mathrl.grading.extract import extract
from mathrl.grading.parallel import grade_batch
from mathrl.grading.verdict import Verdict
from mathrl.rewards.disagreement import Disagreement, LLMJudge, MathVerifyJudge, SecondGrader
from mathrl.rewards.format import format_lines, r1_tags
from mathrl.rewards.language import language_share
from mathrl.rewards.length import soft_overlong
from mathrl.rewards.repetition import repetition_penalty

PART_TYPES = ("accuracy", "format_lines", "r1_tags", "countdown", "language", "overlong", "repetition", "function")


@dataclass(frozen=True, slots=True)
class RewardInput:
    """One response to score.

    Example:
        RewardInput(response="<answer>2</answer>", ground_truth=("2",), length=9, max_length=64)

    `length` and `max_length` are in tokens; `row` is the row of the problem, for routing and for user functions.
    """

    response: str
    ground_truth: tuple[str, ...]
    prompt: str = ""
    length: int = 0
    max_length: int = 0
    truncated: bool = False
    row: Mapping[str, Any] = field(default_factory=dict)


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


@dataclass(frozen=True, slots=True)
class Part:
    """One weighted part. Example: Part("format_lines", 0.25, "format", {"lines": 0.3, "marker": 0.2})"""

    type: str
    weight: float
    name: str
    options: Mapping[str, Any]


def _read(source: Any, name: str, default: Any) -> Any:
    value = source.get(name, default) if isinstance(source, Mapping) else getattr(source, name, default)
    return default if value is None else value


def _part(source: Any, where: str) -> Part:
    kind = str(_read(source, "type", "accuracy"))
    if kind not in PART_TYPES:
        raise UserError(f"{where}.type: {kind!r} is no reward part; write one of {', '.join(PART_TYPES)}")
    options = dict(_read(source, "options", {}))
    if isinstance(source, Mapping):
        options |= {k: v for k, v in source.items() if k not in ("type", "weight", "name", "options")}
    if kind == "function" and "path" not in options:
        raise UserError(f"{where}.options.path: missing; write the dotted path of your function, such as my.module.f")
    return Part(kind, float(_read(source, "weight", 1.0)), str(_read(source, "name", kind)), options)


def build_reward(params: Any = None) -> RewardFunction:
    """The reward function that `params` describes: an object or mapping with the Reward section's fields.

    Raises:
        UserError: an unknown part, option or judge, or a function that cannot be imported.

    >>> reward = build_reward({"correct": 5.0, "incorrect": -5.0})
    >>> reward.score([RewardInput("<answer>4</answer>", ("5",))])[0].overall
    -5.0
    """
    return RewardFunction(params if params is not None else {})


class RewardFunction:
    """Scores batches. Built by `build_reward`; `counters` reports what the verifier did since the last call."""

    def __init__(self, params: Any) -> None:
        self.extraction = _read(params, "extraction", "lenient")
        if self.extraction not in ("strict", "lenient"):
            raise UserError(f"reward.extraction: {self.extraction!r}; write strict or lenient")
        self.correct = float(_read(params, "correct", 1.0))
        self.incorrect = float(_read(params, "incorrect", 0.0))
        self.processes = _read(params, "processes", None)
        parts = _read(params, "parts", ()) or ({"type": "accuracy"},)
        self.parts = [_part(part, f"reward.parts[{i}]") for i, part in enumerate(parts)]
        self.routes = {
            name: [_part(part, f"reward.routes.{name}[{i}]") for i, part in enumerate(route)]
            for name, route in dict(_read(params, "routes", {})).items()
        }
        all_parts = [*self.parts, *(part for route in self.routes.values() for part in route)]
        self.functions = {id(p): _user_function(str(p.options["path"])) for p in all_parts if p.type == "function"}
        self._keep = all_parts  # ids stay valid
        self.second = _second_grader(_read(params, "second_grader", None))
        self._rules: Counter[str] = Counter()
        self._graded = self._timeouts = 0
        self._seconds = 0.0

    def score(self, items: Sequence[RewardInput]) -> list[RewardResult]:
        """One result per item, in order."""
        verdicts = grade_batch(
            [item.response for item in items],
            [_truths(item) for item in items],
            self.extraction,
            processes=self.processes,
        )
        return [self._reward(item, verdict) for item, verdict in zip(items, verdicts, strict=True)]

    def counters(self) -> dict[str, float]:
        """Metrics of the verifier since the last call: timeouts, seconds, rule shares, disagreement."""
        graded = max(self._graded, 1)
        metrics = {
            "verifier/graded": float(self._graded),
            "verifier/timeouts": float(self._timeouts),
            "verifier/mean_seconds": self._seconds / graded,
        }
        metrics |= {f"verifier/rule/{rule}": count / graded for rule, count in sorted(self._rules.items())}
        if self.second is not None:
            metrics["verifier/disagreement"] = self.second.rate
            metrics["verifier/second_graded"] = float(self.second.judged)
            metrics["verifier/second_abstained"] = float(self.second.abstained)
            self.second.judged = self.second.differed = self.second.abstained = 0
        self._rules.clear()
        self._graded = self._timeouts = 0
        self._seconds = 0.0
        return metrics

    def warm_up(self) -> bool:
        """Start the symbolic engine now instead of at the first pair that needs it."""
        return default_engine().warm_up()

    def parts_for(self, row: Mapping[str, Any]) -> list[Part]:
        """The parts that a row's `task` or `data_source` selects, else the default ones (R7)."""
        for name in ("task", "data_source", "source"):
            route = self.routes.get(str(row.get(name, "")))
            if route is not None:
                return route
        return self.parts

    def _reward(self, item: RewardInput, verdict: Verdict) -> RewardResult:
        self._count(item, verdict)
        values: dict[str, float] = {}
        overall = 0.0
        for part in self.parts_for(item.row):
            value, extra = self._value(part, item, verdict)
            values[part.name] = value
            values |= {f"{part.name}/{name}": number for name, number in extra.items()}
            overall += part.weight * value
        return RewardResult(overall, verdict.correct, values, verdict)

    def _count(self, item: RewardInput, verdict: Verdict) -> None:
        self._graded += 1
        self._seconds += verdict.seconds
        self._timeouts += verdict.reason == "timeout"
        self._rules[verdict.rule.split(";")[0].replace(" ", "_") or "none"] += 1
        if self.second is not None:
            self.second.see(item.prompt, item.response, item.ground_truth, verdict.correct)

    def _value(self, part: Part, item: RewardInput, verdict: Verdict) -> tuple[float, dict[str, float]]:
        try:
            return self._value_of(part, item, verdict)
        except TypeError as error:
            raise UserError(f"reward part {part.name!r}: {error}; check its options") from error

    def _value_of(self, part: Part, item: RewardInput, verdict: Verdict) -> tuple[float, dict[str, float]]:
        options = dict(part.options)
        if part.type == "accuracy":
            right = float(options.get("correct", self.correct))
            return (right if verdict.correct else float(options.get("incorrect", self.incorrect))), {}
        if part.type == "format_lines":
            return format_lines(item.response, **options), {}
        if part.type == "r1_tags":
            return r1_tags(item.response, **options), {}
        if part.type == "countdown":
            tags = r1_tags(item.response, bool(options.get("think_open", False)))
            bonus = float(options.get("format", 0.1)) * tags
            return float(_countdown(item, self.extraction)) + bonus, {"format": tags}
        if part.type == "language":
            return language_share(item.response, **options), {}
        if part.type == "overlong":
            maximum = int(options.pop("max_length", 0) or item.max_length)
            buffer = int(options.pop("buffer", max(1, maximum // 5)))
            return soft_overlong(item.length, maximum, buffer, **options), {}
        if part.type == "repetition":
            return repetition_penalty(item.response, **options), {}
        return _call_user_function(self.functions[id(part)], item, verdict, options)


def _truths(item: RewardInput) -> str | tuple[str, ...]:
    """The accepted answers; a Countdown row without a JSON truth gets one from its numbers and target."""
    numbers, target = item.row.get("nums", item.row.get("numbers")), item.row.get("target")
    if numbers is not None and target is not None:
        return json.dumps({"numbers": [int(n) for n in numbers], "target": int(target)})
    return tuple(item.ground_truth)


def _countdown(item: RewardInput, extraction: Any) -> bool:
    truths = _truths(item)
    game = read_truth(truths if isinstance(truths, str) else next(iter(truths), ""))
    if game is None:
        raise UserError(
            'countdown part: a row has no numbers and target; give it fields "nums" and "target" or a truth '
            '{"numbers": [4, 6], "target": 24}'
        )
    return countdown_correct(extract(item.response, extraction).text or "", *game)[0]


def _user_function(path: str) -> Callable[..., Any]:
    module, _, name = path.rpartition(".")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"reward function {path!r} cannot be imported ({error}); write package.module.function"
        ) from error
    if not callable(function):
        raise UserError(f"reward function {path!r} is not callable; name a function")
    return function  # type: ignore[no-any-return]


def _call_user_function(
    function: Callable[..., Any], item: RewardInput, verdict: Verdict, options: dict[str, Any]
) -> tuple[float, dict[str, float]]:
    """Calls `f(response, ground_truth, **row)`, `f(reward_input, **kwargs)` or veRL's `f(data_source, …)`."""
    options.pop("path")
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
    numbers = {str(k): float(v) for k, v in result.items() if isinstance(v, int | float)}
    for name in ("overall", "score", "reward"):
        if name in numbers:
            return numbers[name], numbers
    raise UserError("a reward function's dict has none of the keys overall, score, reward; add one as the total")


def _second_grader(params: Any) -> Disagreement | None:
    if params is None:
        return None
    kind = _read(params, "type", "math_verify")
    judge: SecondGrader
    if kind == "math_verify":
        judge = MathVerifyJudge()
    elif kind == "llm":
        judge = LLMJudge(str(_read(params, "endpoint", "")), str(_read(params, "model", "")))
    else:
        raise UserError(f"reward.second_grader.type: {kind!r}; write math_verify or llm")
    return Disagreement(judge, float(_read(params, "share", 0.01)))
