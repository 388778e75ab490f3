"""Data types: what flows from a source to the registry.

What mathrl notes about a problem, apart from the columns of the user's row.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mathrl.core.errors import UserError
from mathrl.core.files import from_fields, read_numbered_jsonl, write_jsonl


@dataclass(frozen=True, slots=True)
class Control:
    """How a problem is prompted, routed and demonstrated. A user's columns never end up here by their names alone.

    Example:
        Control(messages=({"role": "user", "content": "What is 2+2?"},), data_source="openai/gsm8k")

    `messages` is the prompt as a chat list, without an assistant turn at its end, and `cut_turns` the number of such
    turns that were cut. `templated`: the question is the prompt as it is. `task` and `data_source` choose a route of
    prompt and reward. `response` is a policy's response to imitate, `demonstrated_answer` the answer that a
    demonstration shows instead of the truth, `begun` the tokens of a response to continue.
    """

    messages: tuple[Mapping[str, str], ...] = ()
    templated: bool = False
    task: str | None = None
    data_source: str | None = None
    response: str | None = None
    demonstrated_answer: str | None = None
    begun: tuple[int, ...] = ()
    cut_turns: int = 0

    @property
    def routes(self) -> tuple[str, ...]:
        """The names that may choose a route, the first first."""
        return tuple(name for name in (self.task, self.data_source) if name is not None)

    def to_row(self) -> dict[str, Any]:
        """The JSON object on disk: fields that are set."""
        if self is NO_CONTROL:
            return {}
        row = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in row.items()
            if value != self.__dataclass_fields__[name].default
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any], where: str = "row") -> "Control":
        """Read what `to_row` wrote.

        Raises:
            UserError: an unknown field; `where` (file and line) stands in the message.
        """
        if not row:
            return NO_CONTROL
        unknown = [name for name in row if name not in cls.__dataclass_fields__]
        if unknown:
            raise UserError(f"{where}: field control has unknown fields: {', '.join(unknown)}; run curate again")
        return from_fields(cls, row)


NO_CONTROL = Control()


# "stop_string": a part of a response, which ended with a string of `Sampling.stop`; its last tokens spell it.
FinishReason = Literal["stop", "length", "stop_string"]
# How a call ended; "limit": the response had no call or no time left, so nothing ran.
CallStatus = Literal["ok", "error", "timeout", "killed", "unavailable", "limit"]
Tokens = npt.NDArray[np.int32]
Logprobs = npt.NDArray[np.float32]
Sampled = npt.NDArray[np.bool_]
TokenIds = Sequence[int] | Tokens


@dataclass(frozen=True, slots=True)
class Problem:
    """A question with a verifiable answer.

    Example:
        Problem(id="chain/rl/00012", question="7+5-3*4=", answers=("36",), source="chain", split="rl",
                level=3, solution="7+5=12;12-3=9;9*4=36")

    `answers` holds every accepted answer; `pass_rate` is a policy's measured share of correct samples;
    `extra` keeps whatever else the row had (lang, unit, …), for breakdowns and user functions; `control` is what
    mathrl notes itself about prompt, routes and demonstration.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    source: str
    split: str
    solution: str | None = None
    level: int | None = None
    subject: str | None = None
    pass_rate: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    control: Control = NO_CONTROL

    def to_row(self) -> dict[str, Any]:
        """The JSON object on disk: `answers` a list, empty fields left out."""
        row = {name: getattr(self, name) for name in self.__dataclass_fields__}
        row |= {"answers": list(self.answers), "control": self.control.to_row()}
        return {name: value for name, value in row.items() if value is not None and value != {}}

    @classmethod
    def from_row(cls, row: Mapping[str, Any], where: str = "row") -> "Problem":
        """Read what `to_row` wrote.

        Raises:
            UserError: a field is missing or unknown; `where` (file and line) stands in the message.
        """
        names = cls.__dataclass_fields__
        missing = [name for name in ("id", "question", "answers", "source", "split") if name not in row]
        unknown = [name for name in row if name not in names]
        if missing or unknown:
            raise UserError(
                f"{where}: not a curated problem (missing: {', '.join(missing) or 'none'}; "
                f"unknown: {', '.join(unknown) or 'none'}); run the curate stage to make such rows"
            )
        control = Control.from_row(row.get("control", {}), where)
        return cls(**{**row, "answers": tuple(row["answers"]), "control": control})

    def with_(self, **changes: Any) -> "Problem":
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call of a response: tokens `start` to `end` (exclusive) of the response are the tool's, not sampled.

    Example:
        ToolCall(start=14, end=29, code="print(17*23)", output="391", status="ok", seconds=0.004)

    `output` is what the model was given, cut to its limit. `seconds`, of the wall clock, count in no comparison.
    """

    start: int
    end: int
    code: str
    output: str
    status: CallStatus
    seconds: float = field(compare=False)


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled response to one prompt.

    Example:
        Completion(tokens=np.array([5, 9, 2]), logprobs=np.array([-0.1, -0.7, -0.01]), text="<answer>9</answer>",
                   finish_reason="stop")

    `tokens` includes the end token when `finish_reason` is "stop"; `logprobs` are the natural-log
    probabilities, under the distribution that was sampled from, of exactly these tokens. Both may be given as any
    sequence and are int32 and float32 arrays. The tokens of `calls` were not sampled: their log-probs are 0.
    """

    tokens: Tokens
    logprobs: Logprobs
    text: str
    finish_reason: FinishReason
    calls: tuple[ToolCall, ...] = ()

    @property
    def sampled_mask(self) -> Sampled:
        """Whether each token was sampled; the others are outputs of tools."""
        sampled = np.ones(len(self.tokens), np.bool_)
        for call in self.calls:
            sampled[call.start : call.end] = False
        return sampled

    @property
    def sampled_count(self) -> int:
        return len(self.tokens) - sum(call.end - call.start for call in self.calls)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", np.asarray(self.tokens, np.int32))
        object.__setattr__(self, "logprobs", np.asarray(self.logprobs, np.float32))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Completion)
            and (self.text, self.finish_reason, self.calls) == (other.text, other.finish_reason, other.calls)
            and np.array_equal(self.tokens, other.tokens)
            and np.array_equal(self.logprobs, other.logprobs)
        )


@dataclass(frozen=True, slots=True)
class Graded:
    """A completion with its verdict and reward.

    Example:
        Graded(problem_id="chain/rl/00012", completion=Completion(...), correct=True, reward=1.0,
               parts={"accuracy": 1.0}, extracted="36", rule="answer tag")

    `disagrees` says whether the second grader's verdict differs; None where it was not asked or abstained.
    """

    problem_id: str
    completion: Completion
    correct: bool
    reward: float
    parts: Mapping[str, float]
    extracted: str | None
    rule: str
    disagrees: bool | None = None


@dataclass(frozen=True, slots=True)
class EvalRow:
    """One problem's k graded samples under one model.

    Example:
        EvalRow(model="rl", benchmark="test", problem_id="chain/test/00003", level=2, subject=None,
                correct=(True, True, False), extracted=("9", "9", "8"), lengths=(34, 31, 40),
                truncated=(False, False, False))

    `lengths` count the tokens that were sampled; `calls` the calls of each response, where it may call a tool.
    """

    model: str
    benchmark: str
    problem_id: str
    level: int | None
    subject: str | None
    correct: tuple[bool, ...]
    extracted: tuple[str | None, ...]
    lengths: tuple[int, ...]
    truncated: tuple[bool, ...]
    calls: tuple[int, ...] = ()


def read_problems(path: Path) -> list[Problem]:
    """Read a curated file.

    Raises:
        UserError: no such file, a malformed row, or no rows.
    """
    problems = [Problem.from_row(row, f"{path}, line {number}") for number, row in read_numbered_jsonl(path)]
    if not problems:
        raise UserError(f"{path}: no problems in it; {_share(path)}")
    return problems


def _share(path: Path) -> str:
    """How a split gets problems: `curate.sft_share` and its like, or a source of its own."""
    if path.stem in ("sft", "dev", "test"):
        return (
            f"set curate.{path.stem}_share above 0 (a share of the rows), or give it a source with split: {path.stem}"
        )
    return "give the split a source in params/curate.yaml"


def write_problems(path: Path, problems: Iterable[Problem]) -> int:
    return write_jsonl(path, (problem.to_row() for problem in problems))
