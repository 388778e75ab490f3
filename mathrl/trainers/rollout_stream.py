"""The stream of groups from the sampler to the trainer, both at work at the same time (rl.asynchronous).

The sampler's thread samples segment after segment (`mathrl.trainers.group_pool`). The trainer takes the next groups
that are ready, trains on them, and between two segments gives the sampler new weights and one more step's problems.
Only then does the pool change by anything but sampling, and only then are groups found too old. There are always as
many groups on their way as `staleness` + 1 steps train on, so a sampler that is far ahead waits.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mathrl.core.errors import UserError
from mathrl.params.asynchronous import Asynchronous
from mathrl.rewards.counters import merged_counters
from mathrl.trainers.collect import Collector, RolloutShare
from mathrl.trainers.event_log import EventLog
from mathrl.trainers.group_pool import GroupPool
from mathrl.trainers.pooled_group import PooledGroup, groups_digest
from mathrl.trainers.sampler_thread import SamplerThread
from mathrl.trainers.training_run import TrainingRun

Segment = tuple[list[PooledGroup], dict[str, float]]


class RolloutStream:
    """Samples in a thread of its own within its context.

    While it is not `paused`, nothing else may use the sampler or the reward.
    """

    def __init__(
        self,
        collector: Collector,
        asynchronous: Asynchronous,
        run: TrainingRun,
        step: int,
        saved: list[Mapping[str, Any]] | None,
    ) -> None:
        """`step` is that of the checkpoint that the run resumes from, `saved` the `state` in it.

        Raises:
            UserError: ranks cannot have equal shares of a step, or the log to be repeated is another run's.
        """
        params, self.ranks, self.asynchronous = collector.params, collector.ranks, asynchronous
        if params.prompts_per_step % self.ranks.world:
            raise UserError(
                f"rl.asynchronous: rl.prompts_per_step is {params.prompts_per_step}, which {self.ranks.world} "
                "processes cannot share equally: make it a multiple of run.processes"
            )
        self.steps, self.share = params.steps, params.prompts_per_step // self.ranks.world
        segment = asynchronous.segment(params.max_tokens)
        if collector.sampler.turns is not None:  # a turn of a response that calls a tool is not cut
            segment = params.max_tokens
        self.pool = GroupPool(collector, run.seed, segment, self.share)
        self.updates = {0: 0}  # of the policy, by version
        if saved is None:
            for _ in range(min(asynchronous.staleness + 1, self.steps)):
                self.pool.add_round()
        else:
            self.pool.load(saved)
            self.updates = {int(version): updates for version, updates in saved[0]["updates"].items()}
        settings = {
            "run.seed": run.seed,
            "run.processes": self.ranks.world,
            "rl.prompts_per_step": params.prompts_per_step,
            "rl.group_size": params.group_size,
            "rl.max_tokens": params.max_tokens,
            "rl.asynchronous.staleness": asynchronous.staleness,
            "rl.asynchronous.segment_tokens": segment,
        }
        resume_after = step if saved is not None else None
        self.log = EventLog(run.events_file, settings, self.ranks.rank, resume_after, asynchronous.replay)
        self.trained: list[PooledGroup] = []
        self.seconds = {"generation": 0.0, "reward": 0.0, "tools": 0.0}
        self.waited = {"time/rollout_wait": 0.0, "time/sync_wait": 0.0}
        self.thread: SamplerThread[Segment] = SamplerThread(
            self.ranks.device, self._has_work, self.pool.sample, self._keep
        )

    def __enter__(self) -> "RolloutStream":
        self.thread.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.thread.__exit__(*error)

    def _keep(self, segment: Segment) -> None:
        ready, seconds = segment
        self.pool.ready += ready
        for name in self.seconds:
            self.seconds[name] += seconds[name]

    def _quota(self) -> int | None:
        """How many segments this version has to end with; None: as many as there is time for."""
        if self.asynchronous.pace == "fixed":
            return min(self.pool.version + self.asynchronous.staleness + 1, self.steps)
        return self.log.segments(self.pool.version + 1) if self.pool.version < self.steps else None

    def _has_work(self) -> bool:
        quota = self._quota()
        return self.pool.has_work and (quota is None or self.pool.segments < quota)

    def _wait(self) -> None:
        if not (self.thread.busy or self._has_work()):  # only a log can ask for the impossible
            raise UserError(
                f"rl.asynchronous.replay: at step {self.pool.version + 1} the log asks for {self._quota()} segments, "
                f"after {self.pool.segments} of which nothing is left to sample: it is the log of another run"
            )
        self.thread.wait()

    def take(self) -> RolloutShare:
        """Wait for this rank's groups of a step: the first that were ready."""
        start = time.perf_counter()
        with self.thread.changed:
            while len(self.pool.ready) < self.share:
                self._wait()
            self.trained, self.pool.ready = self.pool.ready[: self.share], self.pool.ready[self.share :]
            seconds, self.seconds = self.seconds, dict.fromkeys(self.seconds, 0.0)
        self.waited["time/rollout_wait"] += time.perf_counter() - start
        problems = [group.problem for group in self.trained]
        return RolloutShare(problems, [group.graded for group in self.trained], seconds)

    @contextmanager
    def paused(self, *, updating: bool = False) -> Iterator[None]:
        """Context between two segments, in which the trainer may use the sampler.

        `updating`: the weights will be of another version after it, and `update` is called within it.
        """
        start = time.perf_counter()
        with self.thread.changed:
            quota = self._quota() if updating else None
            while quota is not None and self.pool.segments < quota:
                self._wait()
        with self.thread.paused():
            self.waited["time/sync_wait"] += time.perf_counter() - start
            yield

    def update(self, step: int, updates: int) -> dict[str, float]:
        """The sampler has the weights after `step` steps, of which the policy took `updates` updates; figures of it.

        Called at every rank.
        """
        pool, trained = self.pool, self.trained
        lags = [
            (self.updates[pool.version] - self.updates[version], tokens)
            for group in trained
            for version, tokens in group.tokens.items()
        ]
        responses = [response for group in trained for response in group.responses]
        dropped = pool.update(step, self.asynchronous.staleness)
        event = {
            "segments": pool.segments,
            "arrived": pool.arrived,
            "trained": [group.number for group in trained],
            "dropped": [group.number for group in dropped],
            "digest": groups_digest(trained),
        }
        kept_from = step - self.asynchronous.staleness - 1
        self.updates = {version: count for version, count in self.updates.items() if version >= kept_from}
        self.updates[step] = updates
        partial = sum(len(response.versions) > 1 for response in responses)
        counters = [group.counters for group in (*trained, *dropped) if group.counters]
        shares = self.ranks.gather((event, counters, lags, (partial, len(responses), len(pool.ready))))
        self.log.write(step, [share[0] for share in shares])
        pool.arrived, self.trained = [], []
        if step + self.asynchronous.staleness < self.steps:
            pool.add_round()
        all_lags = [lag for share in shares for lag in share[2]]
        partials, counts, ready = (sum(share[3][place] for share in shares) for place in range(3))
        waited, self.waited = self.waited, dict.fromkeys(self.waited, 0.0)
        waited["time/sampler_wait"], self.thread.waited = self.thread.waited, 0.0
        return {
            **merged_counters([row for share in shares for row in share[1]]),
            "rollout/lag": sum(lag * tokens for lag, tokens in all_lags) / sum(tokens for _, tokens in all_lags),
            "rollout/lag_max": float(max(lag for lag, _ in all_lags)),
            "rollout/partial_share": partials / counts,
            "rollout/dropped_groups": float(sum(len(share[0]["dropped"]) for share in shares)),
            "rollout/ready_groups": float(ready),
            **waited,
        }

    def state(self) -> list[dict[str, Any]] | None:
        """The groups of every rank on their way, for the checkpoint that rank 0 writes; None at the others.

        Within `paused`, after `update`.
        """
        states: list[dict[str, Any]] = self.ranks.gather({**self.pool.state(), "updates": dict(self.updates)})
        return states if self.ranks.rank == 0 else None
