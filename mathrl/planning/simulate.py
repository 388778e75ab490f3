"""A discrete-event model of a run: when responses end, when the trainer has a batch, and which side waits.

Engines decode with continuous batching: b sequences advance by one token in step_ms + sequence_ms b, so an
engine is simulated from the end of one response to the end of the next. Three ways to share the GPUs:

- colocated: all GPUs sample a batch, then all compute and train, then the weights are sent (synchronous);
- one step ahead: samplers and trainers are apart; batch n + 1 is sampled while batch n is trained on;
- asynchronous: samplers stop only for new weights; the trainer takes the next finished responses; responses
  are started at most `staleness` batches ahead (AReaL, arXiv:2505.24298).
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mathrl.params.simulate import Mode, Simulation

SETUPS = Path(__file__).with_name("simulations")  # YAML files by name


@dataclass(frozen=True)
class StepTimes:
    """Means per step without the first, in seconds: `waiting` is the trainer's wait for responses, `sync` the weight
    sync.

    `staleness` is the number of updates that a response's last token is behind the weights that train on it.
    """

    step_seconds: float
    generation: float
    training: float
    waiting: float
    sync: float
    sampler_busy: float
    staleness: float


@dataclass
class SimulatedEngine:
    """An engine and its sequences; `grown` counts the tokens of a sequence that runs since the start.

    A decoding step takes `step` + `per_sequence` b seconds for b sequences.
    """

    step: float
    per_sequence: float
    now: float = 0.0
    grown: float = 0.0
    busy: float = 0.0
    running: list[tuple[float, int]] = field(default_factory=list)  # (grown at the end, number), a heap

    def next_end(self) -> float:
        """The time at which the next response ends if none is added."""
        if not self.running:
            return float("inf")
        return self.now + (self.running[0][0] - self.grown) * self._pace()

    def _pace(self) -> float:
        return self.step + self.per_sequence * len(self.running)

    def advance(self, time: float) -> None:
        if self.running and time > self.now:
            self.grown += (time - self.now) / self._pace()
            self.busy += time - self.now
        self.now = max(self.now, time)

    def join(self, number: int, tokens: float) -> None:
        heapq.heappush(self.running, (self.grown + tokens, number))

    def pop(self) -> int:
        """The response that ends now."""
        ends, number = heapq.heappop(self.running)
        self.grown = max(self.grown, ends)
        return number


def response_lengths(setup: Simulation) -> Iterator[float]:
    """Lengths of responses in tokens, seeded, without end; the mean of the log-normal is `lengths.mean`."""
    random = np.random.default_rng(setup.seed)
    lengths = setup.lengths
    location = np.log(lengths.mean) - lengths.spread**2 / 2
    while True:
        for value in np.exp(location + lengths.spread * random.standard_normal(4096)):
            yield float(min(max(1.0, value), lengths.limit))


def simulate(setup: Simulation, mode: Mode) -> StepTimes:
    """A run of `setup.steps` steps in one of the three ways."""
    if mode == "asynchronous":
        return _AsynchronousRun(setup).times()
    colocated = mode == "colocated"
    sampling = setup.gpus if colocated else setup.sampler_gpus or setup.gpus // 2
    training = setup.gpus if colocated else setup.gpus - sampling
    lengths = response_lengths(setup)
    batches = []
    for _ in range(setup.steps):
        batch = [next(lengths) for _ in range(setup.responses)]
        batches.append((*generate(setup, batch, sampling), train_seconds(setup, sum(batch), training, colocated)))
    generations, busy, trainings = np.array(batches).T
    sync = sync_seconds(setup)
    if colocated:
        steps, waits, staleness = generations + trainings + sync + setup.switch_seconds, generations, 0.0
    else:  # batch n + 1 is sampled during the training on batch n
        ready, trained = generations[1:], trainings[:-1]
        steps, waits, staleness = np.maximum(ready, trained) + sync, np.maximum(0.0, ready - trained), 1.0
    step = float(np.mean(steps[1:]))
    share = float(np.mean(busy)) * float(np.mean(generations)) / step  # busy: as a share of the generation's length
    generation, trained_for, waited = (float(np.mean(values[1:])) for values in (generations, trainings, waits))
    return StepTimes(step, generation, trained_for, waited, sync, min(1.0, share), staleness)


def sync_seconds(setup: Simulation) -> float:
    """Seconds to send the weights once: over the network if there are several nodes, then to each GPU.

    Every GPU receives all of them and keeps its share, as vLLM's load_weights does.
    """
    sync = setup.sync
    network = sync.weights_gb / sync.between if setup.nodes > 1 else 0.0
    return network + sync.weights_gb / sync.within + sync.fixed_seconds


def train_seconds(setup: Simulation, tokens: float, gpus: int, scored: bool = False, parts: int = 1) -> float:
    """Seconds to train on one of `parts` of a batch with `tokens` response tokens; `scored`: plus old log-probs."""
    total = tokens + setup.responses * setup.lengths.prompt / parts
    trainer = setup.trainer
    seconds = trainer.fixed_seconds / parts + total / (trainer.tokens_per_second * gpus)
    if scored and trainer.logprob_tokens_per_second is not None:
        seconds += total / (trainer.logprob_tokens_per_second * gpus)
    return seconds


def _engines(setup: Simulation, gpus: int) -> list[SimulatedEngine]:
    sampler = setup.sampler
    return [SimulatedEngine(sampler.step_ms / 1e3, sampler.sequence_ms / 1e3) for _ in range(gpus // sampler.gpus)]


def generate(setup: Simulation, lengths: list[float], gpus: int) -> tuple[float, float]:
    """Seconds until the whole batch is sampled, and the share of them in which engines had work."""
    engines = _engines(setup, gpus)
    waiting = list(enumerate(lengths))[::-1]
    for _ in range(setup.sampler.concurrency):
        for engine in engines:
            if waiting:
                engine.join(*waiting.pop())
    last = 0.0
    ends = [(engine.next_end(), place) for place, engine in enumerate(engines) if engine.running]
    heapq.heapify(ends)
    while ends:
        last, place = heapq.heappop(ends)
        engine = engines[place]
        engine.advance(last)
        engine.pop()
        if waiting:
            engine.join(*waiting.pop())
        if engine.running:
            heapq.heappush(ends, (engine.next_end(), place))
    return last, sum(engine.busy for engine in engines) / (len(engines) * last)


class _AsynchronousRun:
    """The state of an asynchronous run: the time `now`, the engines, and the end of the trainer's work."""

    def __init__(self, setup: Simulation) -> None:
        self.setup = setup
        self.sampling_gpus = setup.sampler_gpus or setup.gpus // 2
        self.engines, self.lengths = _engines(setup, self.sampling_gpus), response_lengths(setup)
        self.ends = [engine.next_end() for engine in self.engines]
        self.tokens_of: list[float] = []  # tokens of the responses started so far
        self.finished: list[tuple[int, float]] = []  # version of the weights at the end, tokens
        self.training_starts: list[float] = []  # time of each part's start
        self.trainings: list[float] = []  # seconds of each part
        self.stale: list[float] = []  # mean staleness of each part, in updates
        self.version, self.now, self.trained_at, self.draining = 0, 0.0, float("inf"), False

    def start_responses(self) -> None:
        """Start responses, in the engine with the fewest first, as far ahead as staleness allows."""
        limit = int((self.setup.staleness + 1 + self.version) * self.setup.responses)
        while len(self.tokens_of) < limit and not self.draining:
            loads = [len(engine.running) for engine in self.engines]
            place = loads.index(min(loads))
            if loads[place] >= self.setup.sampler.concurrency:
                break
            self.tokens_of.append(next(self.lengths))
            self.engines[place].join(len(self.tokens_of) - 1, self.tokens_of[-1])
            self.ends[place] = self.engines[place].next_end()

    def start_training(self) -> None:
        """Start training on the next part of a batch if its responses have finished and the trainer is idle."""
        size = self.setup.responses // self.setup.parts
        if self.trained_at < float("inf") or self.draining or len(self.finished) < size:
            return
        part, self.finished = self.finished[:size], self.finished[size:]
        self.training_starts.append(self.now)
        self.stale.append(float(np.mean([self.version - version for version, _ in part])))
        tokens = sum(tokens for _, tokens in part)
        gpus = self.setup.gpus - self.sampling_gpus
        self.trainings.append(train_seconds(self.setup, tokens, gpus, parts=self.setup.parts))
        self.trained_at = self.now + self.trainings[-1]

    def next_event(self) -> None:
        """Advance to the end of the next response or of a part's training; then weights may be synced."""
        self.now = min(self.trained_at, *self.ends)
        if self.now == self.trained_at:
            self.trained_at = float("inf")
            if len(self.training_starts) % self.setup.parts:
                return
            for engine in self.engines:
                engine.advance(self.now)
            self.draining = not self.setup.interruptible
        else:
            self._finish_response(self.ends.index(self.now))
            if not self.draining:
                return
        if not self.draining or not any(engine.running for engine in self.engines):
            self._sync()

    def _finish_response(self, place: int) -> None:
        engine = self.engines[place]
        engine.advance(self.now)
        self.finished.append((self.version, self.tokens_of[engine.pop()]))
        self.ends[place] = engine.next_end()

    def _sync(self) -> None:
        """Weight sync: all engines pause, then continue their responses."""
        self.version, self.now, self.draining = self.version + 1, self.now + sync_seconds(self.setup), False
        for engine in self.engines:
            engine.now = self.now
        self.ends = [engine.next_end() for engine in self.engines]

    def times(self) -> StepTimes:
        """Simulate the whole run."""
        while len(self.training_starts) <= self.setup.steps * self.setup.parts:
            self.start_responses()
            self.start_training()
            self.next_event()
        parts, sync = self.setup.parts, sync_seconds(self.setup)
        starts = self.training_starts[::parts]
        step = float(np.diff(starts)[1:].mean())
        training = float(np.sum(self.trainings[parts:-1])) / (len(starts) - 2)
        busy = sum(engine.busy for engine in self.engines) / (len(self.engines) * self.now)
        staleness = float(np.mean(self.stale[parts:]))
        return StepTimes(step, step, training, max(0.0, step - training - sync), sync, busy, staleness)
