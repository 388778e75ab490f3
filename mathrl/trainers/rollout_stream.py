"""The stream of groups from the sampler to the trainer, both at work at the same time (rl.asynchronous).

The sampler's thread samples segment after segment (`mathrl.trainers.pooled_group`). The trainer takes the next groups
that are ready, trains on them, and between two segments gives the sampler new weights and one more step's problems.
Only then does the pool change by anything but sampling, and only then are groups found too old. There are always as
many groups on their way as `staleness` + 1 steps train on, so a sampler that is far ahead waits.
"""

import ctypes
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from mathrl.core.errors import UserError
from mathrl.core.metrics import JsonlSink, complete_rows
from mathrl.models.device import use_device
from mathrl.params.train import Asynchronous
from mathrl.rewards.cascade import merged_counters
from mathrl.trainers.collect import Collector, RolloutShare
from mathrl.trainers.continuous_pool import ContinuousPool
from mathrl.trainers.pooled_group import GroupPool, PooledGroup, groups_digest
from mathrl.trainers.training_run import TrainingRun

Segment = tuple[list[PooledGroup], dict[str, float]]


class RolloutStream:
    """Samples in a thread of its own within its context.

    Outside of `pause`, nothing else may use the sampler or the reward.
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
        spare, continuous = params.spare_prompts // self.ranks.world, asynchronous.pace == "continuous"
        segment = 1 if continuous else segment
        self.pool = (
            ContinuousPool(collector, run.seed, self.share, spare, lambda step: self.log.arrivals(step))
            if continuous
            else GroupPool(collector, run.seed, segment, self.share, spare)
        )
        self.updates = {0: 0}  # of the policy, by version
        if saved is None:
            for _ in range(min(asynchronous.staleness + 1, self.steps)):
                self.pool.add_round()
            self.pool.add_spare([spare] * self.ranks.world)
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
            **({"rl.asynchronous.pace": "continuous"} if continuous else {}),
            **({"rl.dynamic_sampling": spare} if spare else {}),
        }
        resume_after = step if saved is not None else None
        self.log = EventLog(run.events_file, settings, self.ranks.rank, resume_after, asynchronous.replay)
        self.trained: list[PooledGroup] = []
        self.replaced: list[PooledGroup] = []
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
        self.pool.close()

    def _keep(self, segment: Segment) -> None:
        ready, seconds = segment
        self.pool.ready += ready
        for name in self.seconds:
            self.seconds[name] += seconds[name]

    def _quota(self) -> int | None:
        """How many segments this version has to end with; None: as many as there is time for."""
        if self.asynchronous.pace == "fixed":
            return min(self.pool.version + self.asynchronous.staleness + 1, self.steps)
        return self.log.segments(self.pool.version + 1)

    def _has_work(self) -> bool:
        if not self.pool.has_work:  # as after the last step, with which a log ends
            return False
        quota = self._quota()
        return quota is None or self.pool.segments < quota

    def _wait(self) -> None:
        if not (self.thread.busy or self._has_work()):  # only a log can ask for the impossible
            raise UserError(
                f"rl.asynchronous.replay: at step {self.pool.version + 1} the log asks for {self._quota()} segments, "
                f"after {self.pool.segments} of which nothing is left to sample: it is the log of another run"
            )
        self.thread.wait()

    def take(self) -> RolloutShare:
        """Wait for this rank's groups of a step: the first that were ready, then those that were replaced by them."""
        start = time.perf_counter()
        with self.thread.changed:
            while self.pool.trainable < self.share:
                self._wait()
            taken = self.pool.take(self.share)
            self.trained = [group for group in taken if not group.replaced]
            self.replaced = [group for group in taken if group.replaced]
            seconds, self.seconds = self.seconds, dict.fromkeys(self.seconds, 0.0)
        self.waited["time/rollout_wait"] += time.perf_counter() - start
        groups = [*self.trained, *self.replaced]
        problems = [group.problem for group in groups]
        return RolloutShare(problems, [group.graded for group in groups], seconds, len(self.replaced))

    @contextmanager
    def pause(self, *, updating: bool = False) -> Iterator[None]:
        """Context between two segments, in which the trainer may use the sampler.

        `updating`: the weights will be of another version after it, and `update` is called within it.
        """
        start = time.perf_counter()
        with self.thread.changed:
            quota = self._quota() if updating else None
            while quota is not None and self.pool.segments < quota:
                self._wait()
        with self.thread.pause():
            self.pool.settle()
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
            **({"replaced": [group.number for group in self.replaced]} if pool.spare else {}),
        }
        kept_from = step - self.asynchronous.staleness - 1
        self.updates = {version: count for version, count in self.updates.items() if version >= kept_from}
        self.updates[step] = updates
        partial = sum(len(response.versions) > 1 for response in responses)
        counters = [group.counters for group in (*trained, *self.replaced, *dropped) if group.counters]
        sums = (partial, len(responses), pool.trainable, len(self.replaced))
        shares = self.ranks.gather((event, counters, lags, sums, pool.used))
        self.log.write(step, [share[0] for share in shares])
        pool.arrived, self.trained, self.replaced = [], [], []
        if step + self.asynchronous.staleness < self.steps:
            pool.add_round()
        if pool.spare:
            pool.add_spare([max(0, share[4]) for share in shares])
        all_lags = [lag for share in shares for lag in share[2]]
        partials, counts, ready, replaced = (sum(share[3][place] for share in shares) for place in range(4))
        waited, self.waited = self.waited, dict.fromkeys(self.waited, 0.0)
        waited["time/sampler_wait"], self.thread.waited = self.thread.waited, 0.0
        return {
            **merged_counters([row for share in shares for row in share[1]]),
            "rollout/lag": sum(lag * tokens for lag, tokens in all_lags) / sum(tokens for _, tokens in all_lags),
            "rollout/lag_max": float(max(lag for lag, _ in all_lags)),
            "rollout/partial_share": partials / counts,
            "rollout/dropped_groups": float(sum(len(share[0]["dropped"]) for share in shares)),
            "rollout/ready_groups": float(ready),
            **({"rollout/replaced_groups": float(replaced)} if pool.spare else {}),
            **waited,
        }

    def state(self) -> list[dict[str, Any]]:
        """The groups of every rank on their way, for the checkpoint.

        Called at every rank, within `pause`, after `update`.
        """
        return self.ranks.gather({**self.pool.state(), "updates": dict(self.updates)})


AWAKE = 1.0  # seconds: an error elsewhere ends a thread only where it runs Python
Sampled = TypeVar("Sampled")


class SamplerThread(Generic[Sampled]):
    """Within its context calls `sample` whenever `has_work`, and hands each result to `keep`.

    `has_work` and `keep` are called with the condition `changed` held. `waited` are the seconds without a call of
    `sample`, which the caller resets.
    """

    def __init__(
        self,
        device: torch.device,
        has_work: Callable[[], bool],
        sample: Callable[[], Sampled],
        keep: Callable[[Sampled], None],
    ) -> None:
        self.device, self.has_work, self.sample, self.keep = device, has_work, sample, keep
        self.changed = threading.Condition()
        self.busy, self.waited = False, 0.0
        self._pauses, self._closing, self._ident = 0, False, 0
        self._executor = ThreadPoolExecutor(1, "rollouts")
        self._running: Future[None] | None = None

    def __enter__(self) -> "SamplerThread[Sampled]":
        self._running = self._executor.submit(self._run)
        return self

    def __exit__(self, *error: object) -> None:
        """Sample nothing more; what is being sampled, because of an error, ends at its next line of Python.

        The interpreter waits for every thread before it exits, also for one that samples for minutes.
        """
        with self.changed:
            self._closing = True
            self.changed.notify_all()
        self._executor.shutdown(wait=False, cancel_futures=True)
        if self.busy and self._running is not None and not self._running.done():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._ident), ctypes.py_object(SystemExit))

    def _run(self) -> None:
        self._ident = threading.get_ident()
        use_device(self.device)
        while self._may_sample():
            sampled = self.sample()
            with self.changed:
                self.keep(sampled)
                self.busy = False
                self.changed.notify_all()

    def _may_sample(self) -> bool:
        """Wait until there is something to sample; False once the context is left."""
        start = time.perf_counter()
        with self.changed:
            while not self._closing and (self._pauses or not self.has_work()):
                self.changed.wait(AWAKE)
            self.waited += time.perf_counter() - start
            self.busy = not self._closing
            return self.busy

    def wait(self) -> None:
        """Wait for a change, with `changed` held. Raises what ended the thread."""
        if self._running is not None and self._running.done():
            self._running.result()
        self.changed.wait(AWAKE)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Context in which nothing is sampled; it begins at the end of the call that is under way."""
        with self.changed:
            self._pauses += 1
            while self.busy:
                self.wait()
        try:
            yield
        finally:
            with self.changed:
                self._pauses -= 1
                self.changed.notify_all()


Event = dict[str, Any]


class EventLog:
    """Writes the events of a run, at rank 0, and holds those of the run that it repeats, if it repeats one."""

    def __init__(
        self, file: Path, settings: Mapping[str, Any], rank: int, resume_after: int | None, replay: str | None
    ) -> None:
        """Lines after the step `resume_after` are dropped; None starts a new log.

        Raises:
            UserError: `replay` is not a log of events, or one of a run with other settings.
        """
        self.rank, self.processes = rank, settings["run.processes"]
        self.recorded = _read(Path(replay), settings) if replay is not None else None
        self.sink = JsonlSink(file, resume_after=resume_after) if rank == 0 else None
        if self.sink is not None and not self.sink.rows():
            self.sink.append({"step": 0, "settings": dict(settings)})

    def segments(self, step: int) -> int | None:
        """How many segments this rank had sampled before the update of this step; None if no run is repeated."""
        return None if self.recorded is None else int(self._event(step)[self.rank]["segments"])

    def arrivals(self, step: int) -> dict[int, list[int]] | None:
        """The groups whose grades arrived at each pass before the update of this step; None if no run is repeated."""
        if self.recorded is None:
            return None
        passes: dict[int, list[int]] = {}
        for number, *_, arrived_at in self._event(step)[self.rank]["arrived"]:
            passes.setdefault(arrived_at, []).append(number)
        return passes

    def write(self, step: int, events: Sequence[Event]) -> None:
        """Write the events of every rank before the update of this step.

        Raises:
            UserError: the run that is repeated had others.
        """
        if self.recorded is not None:
            for rank, (event, recorded) in enumerate(zip(events, self._event(step), strict=True)):
                differing = [name for name in recorded if as_json(event[name]) != recorded[name]]
                if differing:
                    raise UserError(
                        f"rl.asynchronous.replay: step {step} departs from the log at rank {rank}: "
                        f"{', '.join(differing)} differ; a replay needs the same code, model, data, parameters, "
                        "machine and number of threads, and an engine whose samples are the same to the bit"
                    )
        if self.sink is not None:
            self.sink.append({"step": step, "ranks": list(events)})

    def _event(self, step: int) -> list[Event]:
        assert self.recorded is not None
        if step not in self.recorded:
            raise UserError(
                f"rl.asynchronous.replay: the log has no events of step {step}, the last is of step "
                f"{max(self.recorded, default=0)}: set rl.steps to that"
            )
        events = self.recorded[step]
        if len(events) != self.processes:
            raise UserError(
                f"rl.asynchronous.replay: the run was resumed with run.processes {len(events)} before step {step} of "
                f"the log, and cannot be repeated from there: set rl.steps to {step - 1}"
            )
        return events


def as_json(value: Any) -> Any:
    """The value as it comes back from JSON: tuples are lists."""
    return [as_json(entry) for entry in value] if isinstance(value, list | tuple) else value


def _read(file: Path, settings: Mapping[str, Any]) -> dict[int, list[Event]]:
    where = f"rl.asynchronous.replay: {file}"
    if not file.is_file():
        raise UserError(f"{where}: no such file; name the events.jsonl of a run's record or of reports/rl")
    rows = complete_rows(file)
    if not rows or "settings" not in rows[0]:
        raise UserError(f"{where}: not a log of events; name the events.jsonl of a run's record or of reports/rl")
    recorded = rows[0]["settings"]
    for name in {**settings, **recorded}:
        if recorded.get(name) != settings.get(name):
            raise UserError(
                f"{where}: {name} is {recorded.get(name)} there and {settings.get(name)} here; set it as in the log"
            )
    return {int(row["step"]): row["ranks"] for row in rows[1:]}
