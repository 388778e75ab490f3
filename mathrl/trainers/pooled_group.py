"""Groups of an asynchronous run on their way from problem to trainer: responses as they grow, then their grades."""

import hashlib
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from typing import Any

import numpy as np

from mathrl.core.hashing import derive_seed
from mathrl.core.types import Completion, FinishReason, Graded, ToolCall
from mathrl.models.decode import KeptKeys
from mathrl.models.device import state_kept
from mathrl.rollout.engine import Ended, Groups, Keep, Prompts, Sampling
from mathrl.trainers.collect import Collector

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
    groups that were graded together, at the first of them. A group that is `replaced` by one of another problem, since
    its responses are all right or all wrong, is counted and not trained on.
    """

    number: int
    problem: int
    size: int
    responses: list[PartialResponse] = field(default_factory=list)
    graded: list[Graded] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)
    replaced: bool = False

    @property
    def uniform(self) -> bool:
        """Whether the responses are all right or all wrong."""
        return len({response.correct for response in self.graded}) < 2

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
        row: dict[str, Any] = {"number": self.number, "problem": self.problem, "size": self.size}
        graded = [_graded_row(response) for response in self.graded]
        responses = [response.to_row() for response in self.responses]
        row |= {"responses": responses, "graded": graded, "counters": self.counters}
        return row | ({"replaced": True} if self.replaced else {})

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "PooledGroup":
        """Read what `to_row` gave, through JSON."""
        responses = [PartialResponse.from_row(response) for response in row["responses"]]
        graded = [_graded_from_row(response) for response in row["graded"]]
        replaced = row.get("replaced", False)
        return cls(row["number"], row["problem"], row["size"], responses, graded, row["counters"], replaced)


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


def _graded_from_row(row: Mapping[str, Any]) -> Graded:
    return Graded(**{**row, "completion": _completion(row["completion"])})


def _completion_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "tokens": row["tokens"].tolist(), "logprobs": row["logprobs"].tolist()}


def _completion(row: Mapping[str, Any]) -> Completion:
    return Completion(**{**row, "calls": tuple(ToolCall(**call) for call in row["calls"])})


class GroupPool:
    """Pending groups wait for room, running ones are sampled, ready ones wait for the trainer.

    `startable` of the pending groups may be started; the others are spare: one of them is started for a group that is
    uniform. One thread calls `sample`; the other methods are for the trainer's while that thread is paused.
    """

    def __init__(self, collector: Collector, seed: int, segment: int, most_running: int, spare: int) -> None:
        """`segment` is the number of tokens by which a response grows at a time; `most_running` counts groups.

        `spare` is the number of uniform groups that may be replaced between two updates.
        """
        self.collector, self.seed = collector, seed
        self.segment, self.most_running, self.spare, self.startable = segment, most_running, spare, 0
        self.pending: deque[PooledGroup] = deque()
        self.running: list[PooledGroup] = []
        self.ready: list[PooledGroup] = []
        self.version, self.segments, self.numbered = 0, 0, 0
        self.arrived: list[list[Any]] = []  # events since the last update

    @property
    def has_work(self) -> bool:
        return bool(self.startable or self.running)

    @property
    def used(self) -> int:
        """How many spare groups were started since the last `add_spare`."""
        return self.spare - (len(self.pending) - self.startable)

    def add_round(self) -> None:
        """Take the problems of one more step from the order; this rank's share of them is pending."""
        count, ranks = self.collector.params.prompts_per_step, self.collector.ranks
        places = range(ranks.rank, count, ranks.world)
        self._take(count, places)
        self.startable += len(places)

    def add_spare(self, used: Sequence[int]) -> None:
        """Take the problems of as many spare groups as each rank has used from the order."""
        rank = self.collector.ranks.rank
        if any(used):
            self._take(sum(used), range(sum(used[:rank]), sum(used[: rank + 1])))

    def _take(self, count: int, places: range) -> None:
        """Take problems from the order; those at these places are this rank's."""
        order = self.collector.order
        problems = order.take(count)
        sizes = order.sample_counts(problems, self.collector.params.group_size)
        for place in places:
            self.pending.append(PooledGroup(self.numbered + place, problems[place], sizes[place]))
        self.numbered += len(problems)

    @property
    def trainable(self) -> int:
        """How many ready groups are to be trained on."""
        return sum(not group.replaced for group in self.ready)

    def take(self, count: int) -> list[PooledGroup]:
        """The first ready groups, replaced ones among them, up to the one that makes `count` to be trained on."""
        ends = [end for end, group in enumerate(self.ready, 1) if not group.replaced]
        taken, self.ready = self.ready[: ends[count - 1]], self.ready[ends[count - 1] :]
        return taken

    def _replace_uniform(self, groups: Sequence[PooledGroup]) -> None:
        """Start a spare group for each of the groups that is uniform, as long as there is one.

        DAPO (arXiv:2503.14476, section 3.2), without its rounds: the others go on meanwhile.
        """
        for group in groups:
            if len(self.pending) > self.startable and group.uniform:
                group.replaced = True
                self.startable += 1

    def update(self, version: int, staleness: int) -> list[PooledGroup]:
        """The weights are of this version from now on; the groups that are too old for it.

        Their problems come first again, so that no problem is lost.
        """
        self.version = version
        limit = version - staleness
        old = [group for group in (*self.ready, *self.running) if group.oldest < limit and not group.replaced]
        self.ready = [group for group in self.ready if group not in old]
        self.running = [group for group in self.running if group not in old]
        self.pending.extendleft(PooledGroup(group.number, group.problem, group.size) for group in reversed(old))
        self.startable += len(old)
        for response in chain.from_iterable(group.responses for group in self.running):
            response.kept = None
        return old

    @state_kept()
    def sample(self) -> tuple[list[PooledGroup], dict[str, float]]:
        """Sample one segment: the groups that it completes, graded, and the seconds of its parts."""
        start, sampler = time.perf_counter(), self.collector.sampler
        seed = derive_seed(self.seed, "rl", self.segments, self.collector.ranks.rank)
        self.keys_left = sampler.engine.rollout.max_sequences
        new = self._start(self.most_running - len(self.running))
        self._continue(derive_seed(seed, "continued"))
        if new:
            self._begin(new, seed)
        self.running += new
        self.segments += 1
        middle = time.perf_counter()
        whole = [group for group in self.running if all(response.completion for response in group.responses)]
        self.running = [group for group in self.running if group not in whole]
        self._grade(whole)
        self._replace_uniform(whole)
        tools = sampler.turns.waited if sampler.turns is not None else 0.0
        return whole, {"generation": middle - start, "reward": time.perf_counter() - middle, "tools": tools}

    def _start(self, most: int) -> list[PooledGroup]:
        """The next groups, at most so many; they are no longer pending."""
        count = min(most, self.startable)
        self.startable -= count
        return [self.pending.popleft() for _ in range(count)]

    def _begin(self, new: Sequence[PooledGroup], seed: int) -> None:
        """The first segment of new groups; a prompt is sampled in parts of as many responses as all sizes allow."""
        params, part = self.collector.params, math.gcd(*(group.size for group in new))
        limit = min(self.segment, params.max_tokens)
        for group in new:
            group.responses = [PartialResponse() for _ in range(group.size)]
        responses = [response for group in new for response in group.responses]
        prompts = [self._prompt(group) for group in new for _ in range(group.size // part)]
        limits = () if limit == params.max_tokens else (limit,) * len(prompts)
        groups = self._generate(responses, prompts, Sampling(part, params.temperature, limit, limits=limits), seed)
        self._add(responses, groups)

    def _continue(self, seed: int) -> None:
        """The next segment of the responses that are not whole."""
        params = self.collector.params
        pairs = [
            (group, response) for group in self.running for response in group.responses if response.completion is None
        ]
        if not pairs:
            return
        responses = [response for _, response in pairs]
        prompts = [[*self._prompt(group), *response.tokens] for group, response in pairs]
        limits = tuple(min(self.segment, params.max_tokens - len(response.tokens)) for response in responses)
        kept = tuple(response.kept for response in responses)
        for response in responses:
            response.kept = None
        sampling = Sampling(1, params.temperature, max(limits), limits=limits, kept=kept)
        self._add(responses, self._generate(responses, prompts, sampling, seed))

    def _generate(
        self, responses: Sequence[PartialResponse], prompts: Prompts, sampling: Sampling, seed: int
    ) -> Groups:
        sampler, most = self.collector.sampler, self.collector.params.max_tokens
        if sampler.turns is not None:  # responses that call a tool are sampled whole
            return sampler.turns.generate(prompts, sampling, seed)

        def keep_keys(prompt: int, sample: int, tokens: Sequence[int], reason: FinishReason, keep: Keep) -> None:
            response = responses[prompt * sampling.samples + sample]
            if reason == "length" and len(response.tokens) + len(tokens) < most and self.keys_left > 0:
                response.kept = keep()
                self.keys_left -= 1

        on_end: Ended = keep_keys if sampling.limits else None
        return sampler.engine.generate(prompts, sampling, seed, on_end=on_end)

    def _add(self, responses: Sequence[PartialResponse], groups: Groups) -> None:
        most, tokenizer = self.collector.params.max_tokens, self.collector.sampler.tokenizer
        for response, completion in zip(responses, chain.from_iterable(groups), strict=True):
            first = not response.tokens
            response.add(completion, self.version)
            if completion.finish_reason == "length" and len(response.tokens) < most and self.segment < most:
                continue
            if not first:
                tokens, logprobs = response.tokens, response.logprobs
                text = tokenizer.decode(tokens, skip_special_tokens=True)
                completion = Completion(np.array(tokens), np.array(logprobs), text, completion.finish_reason)
            response.completion, response.kept = completion, None

    def _grade(self, groups: Sequence[PooledGroup]) -> None:
        if not groups:
            return
        collector, params = self.collector, self.collector.params
        pairs = [
            (collector.problems[group.problem], response.completion)
            for group in groups
            for response in group.responses
            if response.completion is not None
        ]
        graded = iter(collector.sampler.grade(pairs, params.max_tokens, collector.reward))
        for group in groups:
            group.graded = list(islice(graded, group.size))
        self.arrived += [group.event() for group in groups]
        groups[0].counters = dict(collector.reward.counters())

    def _prompt(self, group: PooledGroup) -> Sequence[int]:
        prompt = self.collector.prompts[group.problem]
        assert prompt is not None  # orders hand out problems whose prompts fit
        return prompt

    def settle(self) -> None:
        """Wait until the reward is free: `sample` itself grades."""

    def close(self) -> None:
        """Nothing is left to end."""

    def state(self) -> dict[str, Any]:
        """As JSON, for the checkpoint."""
        parts = {"pending": self.pending, "running": self.running, "ready": self.ready}
        rows = {name: [group.to_row() for group in groups] for name, groups in parts.items()}
        counts = {"version": self.version, "segments": self.segments, "numbered": self.numbered}
        return {**counts, "startable": self.startable, **rows}

    def load(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Restore the `state` of every rank; other ranks than those that saved it are dealt equal shares."""
        rank, world = self.collector.ranks.rank, self.collector.ranks.world
        if len(states) == world:
            states, place = [states[rank]], slice(None)
        else:
            place = slice(rank, None, world)
        shares = world if place.step else 1
        self.version, self.numbered = states[0]["version"], states[0]["numbered"]
        self.segments = max(state["segments"] for state in states)
        parts = [(name, row) for name in ("ready", "running", "pending") for state in states for row in state[name]]
        if place.step:  # as many of each share are trained on
            parts.sort(key=lambda part: part[1].get("replaced", False))
        groups = [(name, PooledGroup.from_row(row)) for name, row in parts[place]]
        self.ready, self.running, pending = (
            [group for kind, group in groups if kind == name] for name in ("ready", "running", "pending")
        )
        self.pending = deque(pending)
        wanted = sum(state.get("startable", len(state["pending"])) + len(state["running"]) for state in states)
        wanted += sum(not row.get("replaced", False) for state in states for row in state["ready"])
        self.startable = wanted // shares - len(self.running) - self.trainable
