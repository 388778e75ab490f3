"""The pool of an asynchronous run of pace continuous: a group begins as soon as there is room for its responses.

Each call of `sample` is one forward pass. Weights arrive between two passes, and a thread of its own grades, so nothing
waits for the longest response or for the grader. The number of passes before each update and the pass at which each
group's grades arrived are all that a replay needs: `EventLog` has both.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mathrl.core.errors import UserError
from mathrl.core.hashing import derive_seed
from mathrl.core.types import Completion, FinishReason, Graded
from mathrl.rollout.continuous_batch import ContinuousBatch, NewSequences, SampledPart
from mathrl.rollout.torch_engine import REMOVE_AT, TorchEngine
from mathrl.trainers.collect import Collector
from mathrl.trainers.pooled_group import GroupPool, PartialResponse, PooledGroup

Arrivals = dict[int, list[int]]  # the numbers of the groups whose grades arrive at each pass
Verdicts = tuple[list[Graded], dict[str, float]]  # and the verifier's counters


class ContinuousPool(GroupPool):
    """A `GroupPool` whose segments are single tokens; `running` also has the groups that are being graded."""

    def __init__(
        self, collector: Collector, seed: int, most_running: int, spare: int, recorded: Callable[[int], Arrivals | None]
    ) -> None:
        """`recorded` gives the arrivals of the log that the run repeats, before a step's update; None: it repeats none.

        Raises:
            UserError: the engine cannot let responses join and leave a batch.
        """
        super().__init__(collector, seed, 1, most_running, spare)
        engine = collector.sampler.engine
        if not isinstance(engine, TorchEngine) or collector.sampler.turns is not None:
            what = "rollout.tool calls a tool" if isinstance(engine, TorchEngine) else "vLLM samples"
            raise UserError(
                f"rl.asynchronous.pace is continuous, but {what}: set pace to free, or rollout.engine to torch and "
                "rollout.tool.kind to none"
            )
        self.engine, self.recorded = engine, recorded
        self.most_rows = min(most_running * collector.params.group_size, engine.rollout.max_sequences)
        self.batch: ContinuousBatch | None = None
        self.grader = ThreadPoolExecutor(1, "grading")
        self.grading: dict[int, Future[Verdicts]] = {}  # by the number of the group

    def sample(self) -> tuple[list[PooledGroup], dict[str, float]]:
        """Sample a token of every response under way: the groups whose grades have arrived, and the seconds."""
        start = time.perf_counter()
        arrived = self._take_arrivals()
        middle = time.perf_counter()
        for part in self._batch().step(self._new_sequences()):
            self._add_part(part)
        self._submit(self.running)
        self.segments += 1
        return arrived, {"generation": time.perf_counter() - middle, "reward": middle - start, "tools": 0.0}

    def update(self, version: int, staleness: int) -> list[PooledGroup]:
        """See `GroupPool.update`: what the batch has sampled is of the version before."""
        for part in self.batch.parts() if self.batch is not None else []:
            self._add_part(part)
        self.batch = None
        dropped = super().update(version, staleness)
        for group in dropped:
            self.grading.pop(group.number, None)
        return dropped

    def settle(self) -> None:
        """Wait until nothing is being graded; the grades arrive at the next pass or later."""
        wait(self.grading.values())

    def close(self) -> None:
        self.grader.shutdown(wait=False, cancel_futures=True)

    def load(self, states: Sequence[Mapping[str, Any]]) -> None:
        super().load(states)
        self._submit(self.running)

    def _take_arrivals(self) -> list[PooledGroup]:
        """The groups whose grades are there, in the order in which they became whole, or as the log has it."""
        arrivals = self.recorded(self.version + 1)
        numbers = arrivals.get(self.segments, []) if arrivals is not None else self._graded_first()
        groups = []
        by_number = {group.number: group for group in self.running}
        for number in numbers:
            if number not in self.grading:
                raise UserError(
                    f"rl.asynchronous.replay: at step {self.version + 1} group {number} of the log is not whole at "
                    f"pass {self.segments}: it is the log of another run"
                )
            group = by_number[number]
            group.graded, group.counters = self.grading.pop(number).result()
            groups.append(group)
        self.running = [group for group in self.running if group not in groups]
        self.arrived += [[*group.event(), self.segments] for group in groups]
        self._replace_uniform(groups)
        return groups

    def _graded_first(self) -> list[int]:
        """The groups that are graded by now; at least one if nothing else is under way."""
        numbers: list[int] = []
        for number, future in self.grading.items():
            waiting = not numbers and not self.startable and len(self.grading) == len(self.running)
            if waiting:
                wait([future])
            if not future.done():
                break
            numbers.append(number)
        return numbers

    def _submit(self, groups: Iterable[PooledGroup]) -> None:
        """Have the whole groups graded that are not as yet."""
        for group in groups:
            if group.number not in self.grading and all(response.completion for response in group.responses):
                self.grading[group.number] = self.grader.submit(self._verdicts, group)

    def _verdicts(self, group: PooledGroup) -> Verdicts:
        collector, problem = self.collector, self.collector.problems[group.problem]
        pairs = [(problem, response.completion) for response in group.responses if response.completion is not None]
        graded = collector.sampler.grade(pairs, collector.params.max_tokens, collector.reward)
        return graded, dict(collector.reward.counters())

    def _batch(self) -> ContinuousBatch:
        if self.batch is None:
            params = self.collector.params
            self.batch = ContinuousBatch(self.engine, params.temperature, params.max_tokens)
        return self.batch

    def _new_sequences(self) -> list[NewSequences]:
        """The sequences that join the batch: at a version's first pass those under way, and groups that have room."""
        joining: list[NewSequences] = []
        rows, empty = self._batch().going, not self._batch().names
        if empty:
            joining = [sequence for group in self.running for sequence in self._under_way(group)]
            rows = len(joining)
        if rows and self.most_rows - rows < REMOVE_AT * self.most_rows:
            return joining
        while self.startable and (not rows or rows + self.pending[0].size <= self.most_rows):
            (group,) = self._start(1)
            group.responses = [PartialResponse() for _ in range(group.size)]
            joining.append(NewSequences(self._prompt(group), group.responses, self._random(group, self.version)))
            self.running.append(group)
            rows += group.size
        return joining

    def _under_way(self, group: PooledGroup) -> list[NewSequences]:
        """The responses of a group that are not whole, each to be run again by the new weights."""
        if all(response.completion for response in group.responses):
            return []
        prompt, uniform_GL = self._prompt(group), self._random(group, group.oldest)
        return [
            NewSequences([*prompt, *response.tokens], [response], uniform_GL[place, None], len(response.tokens))
            for place, response in enumerate(group.responses)
            if response.completion is None
        ]

    def _random(self, group: PooledGroup, began: int) -> Tensor:
        """The random numbers of all tokens of a group's responses, by the version at which it began."""
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "rl", group.number, began))
        return torch.rand(group.size, self.collector.params.max_tokens, generator=generator)

    def _add_part(self, part: SampledPart) -> None:
        response: PartialResponse = part.name
        tokens, logprobs = np.array(part.tokens, np.int32), np.array(part.logprobs, np.float32)
        response.add(Completion(tokens, logprobs, "", part.reason or "length"), self.version)
        if part.reason is not None:
            response.completion = self._completion(response, part.reason)

    def _completion(self, response: PartialResponse, reason: FinishReason) -> Completion:
        text = self.collector.sampler.tokenizer.decode(response.tokens, skip_special_tokens=True)
        tokens, logprobs = np.array(response.tokens, np.int32), np.array(response.logprobs, np.float32)
        return Completion(tokens, logprobs, text, reason)
