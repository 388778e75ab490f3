"""A group of an asynchronous run on its way from problem to trainer: its responses as they grow, then their grades."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any

from mathrl.core.types import Completion, Graded, ToolCall
from mathrl.models.continuation import KeptKeys

Run = tuple[int, int]  # a version of the weights and how many tokens in a row are by it


@dataclass(eq=False)
class PartialResponse:
    """A response as it grows.

    Example:
        PartialResponse(tokens=[5, 9, 2], logprobs=[-0.1, -0.7, 0.0], versions=[(3, 2), (4, 1)])

    Each log-prob is by the weights that sampled the token: here two tokens are by version 3, one by version 4.
    `completion` is there once the response is whole. `kept` is what the engine has computed of it with the weights of
    the last segment.
    """

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[Run] = field(default_factory=list)
    completion: Completion | None = None
    kept: KeptKeys | None = None

    def add(self, completion: Completion, version: int) -> None:
        """Append what an engine sampled."""
        count = len(completion.tokens)
        if self.versions and self.versions[-1][0] == version:
            count += self.versions.pop()[1]
        self.versions.append((version, count))
        self.tokens += completion.tokens.tolist()
        self.logprobs += completion.logprobs.tolist()

    def to_row(self) -> dict[str, Any]:
        """For the checkpoint, which is written while the response grows: copies."""
        completion = None if self.completion is None else _completion_row(asdict(self.completion))
        grown = {name: list(getattr(self, name)) for name in ("tokens", "logprobs", "versions")}
        return {**grown, "completion": completion}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "PartialResponse":
        versions = [(version, count) for version, count in row["versions"]]
        completion = None if row["completion"] is None else _completion(row["completion"])
        return cls(row["tokens"], row["logprobs"], versions, completion)


@dataclass(eq=False)
class PooledGroup:
    """A group on its way; `number` is that of its problem's turn, and `size` the number of its responses.

    Example:
        PooledGroup(number=64, problem=17, size=16)

    It has `responses` once it runs, and `graded` once all of them are whole. `counters` are the verifier's of all
    groups that were graded together, at the first of them.
    """

    number: int
    problem: int
    size: int
    responses: list[PartialResponse] = field(default_factory=list)
    graded: list[Graded] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)

    @property
    def oldest(self) -> int:
        """The oldest version of the weights that sampled a token."""
        return min(response.versions[0][0] for response in self.responses)

    @property
    def tokens(self) -> dict[int, int]:
        """How many tokens each version sampled."""
        counts: dict[int, int] = {}
        for version, count in chain.from_iterable(response.versions for response in self.responses):
            counts[version] = counts.get(version, 0) + count
        return counts

    def event(self) -> list[Any]:
        """For the log: number, problem, and the versions of each response's tokens."""
        return [self.number, self.problem, [response.versions for response in self.responses]]

    def to_row(self) -> dict[str, Any]:
        row = {"number": self.number, "problem": self.problem, "size": self.size}
        graded = [_graded_row(response) for response in self.graded]
        responses = [response.to_row() for response in self.responses]
        return row | {"responses": responses, "graded": graded, "counters": self.counters}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "PooledGroup":
        """Read what `to_row` gave, through JSON."""
        responses = [PartialResponse.from_row(response) for response in row["responses"]]
        graded = [_graded(response) for response in row["graded"]]
        return cls(row["number"], row["problem"], row["size"], responses, graded, row["counters"])


def groups_digest(groups: Sequence[PooledGroup]) -> str:
    """The digest of what a step trains on: tokens, log-probs, versions and rewards, to the bit."""
    made = hashlib.sha256()
    for group in groups:
        for response, graded in zip(group.responses, group.graded, strict=True):
            completion = graded.completion
            made.update(completion.tokens.tobytes() + completion.logprobs.tobytes())
            made.update(repr((group.problem, response.versions, graded.reward)).encode())
    return made.hexdigest()[:16]


def _graded_row(graded: Graded) -> dict[str, Any]:
    row = asdict(graded)
    return row | {"completion": _completion_row(row["completion"])}


def _graded(row: Mapping[str, Any]) -> Graded:
    return Graded(**{**row, "completion": _completion(row["completion"])})


def _completion_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "tokens": row["tokens"].tolist(), "logprobs": row["logprobs"].tolist()}


def _completion(row: Mapping[str, Any]) -> Completion:
    return Completion(**{**row, "calls": tuple(ToolCall(**call) for call in row["calls"])})
