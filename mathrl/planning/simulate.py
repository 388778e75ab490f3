"""A discrete-event model of a run: when responses end, when the trainer has a batch, who waits for whom.

Engines decode with continuous batching: b sequences advance by one token in step_ms + sequence_ms b, so an
engine is simulated from the end of one response to that of the next. Three ways to share the GPUs:

- colocated: all GPUs sample a batch, then all compute and train, then the weights are sent (synchronous);
- one step ahead: samplers and trainers are apart; batch n + 1 is sampled while batch n is trained on;
- asynchronous: samplers stop only for new weights; the trainer takes the next finished responses; responses
  are started at most `staleness` batches ahead (AReaL, arXiv:2505.24298).
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from mathrl.params.simulate import Mode, Simulation


@dataclass(frozen=True)
class StepTimes:
    """Means per step, after the first. `waiting` is the time that the trainer waits for responses, `sync` the time
    to send the weights, in seconds.

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
    """Follows its sequences: `grown` counts the tokens that a sequence in it would have since the start.

    A decoding step takes `step` + `per_sequence` b seconds for b sequences.
    """

    step: float
    per_sequence: float
    now: float = 0.0
    grown: float = 0.0
    busy: float = 0.0
    running: list[tuple[float, int]] = field(default_factory=list)  # (grown at the end, number), a heap

    def next_end(self) -> float:
        """The time at which its next response ends if none joins."""
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
    """Tokens of one response after the other, seeded; the mean of the log-normal is `lengths.mean`."""
    random = np.random.default_rng(setup.seed)
    lengths = setup.lengths
    location = np.log(lengths.mean) - lengths.spread**2 / 2
    while True:
        for value in np.exp(location + lengths.spread * random.standard_normal(4096)):
            yield float(min(max(1.0, value), lengths.limit))


def simulate(setup: Simulation, mode: Mode) -> StepTimes:
    """A run of `setup.steps` steps in one of the three ways."""
    if mode == "asynchronous":
        return _asynchronous(setup)
    colocated = mode == "colocated"
    sampling = setup.gpus if colocated else setup.sampler_gpus or setup.gpus // 2
    training = setup.gpus if colocated else setup.gpus - sampling
    lengths = response_lengths(setup)
    generations, trainings, busy = [], [], []
    for _ in range(setup.steps):
        batch = [next(lengths) for _ in range(setup.responses)]
        seconds, used = generate(setup, batch, sampling)
        generations.append(seconds)
        trainings.append(train_seconds(setup, sum(batch), training, scored=colocated))
        busy.append(used)
    sync = sync_seconds(setup)
    if colocated:
        steps = [g + t + sync + setup.switch_seconds for g, t in zip(generations, trainings, strict=True)]
        return _outcome(steps, generations, trainings, generations, sync, busy, 0.0)
    # Batch n + 1 is sampled during the training on batch n.
    pairs = list(zip(generations[1:], trainings, strict=False))
    steps = [max(g, t) + sync for g, t in pairs]
    waits = [max(0.0, g - t) for g, t in pairs]
    return _outcome(steps, generations, trainings, waits, sync, busy, 1.0)


def sync_seconds(setup: Simulation) -> float:
    """Seconds to send the weights once: over the network if there are several nodes, then to each GPU.

    Every GPU receives all of them and keeps its share, as vLLM's load_weights does.
    """
    sync = setup.sync
    network = sync.weights_gb / sync.between if setup.nodes > 1 else 0.0
    return network + sync.weights_gb / sync.within + sync.fixed_seconds


def _outcome(
    steps: list[float],
    generations: list[float],
    trainings: list[float],
    waits: list[float],
    sync: float,
    busy: list[float],
    staleness: float,
) -> StepTimes:
    """Means; `busy` is in engine-seconds over all engines, as a share of the generation's length."""
    step = float(np.mean(steps[1:]))
    share = float(np.mean(busy)) * float(np.mean(generations)) / step
    return StepTimes(
        step,
        float(np.mean(generations[1:])),
        float(np.mean(trainings[1:])),
        float(np.mean(waits[1:])),
        sync,
        min(1.0, share),
        staleness,
    )


def train_seconds(setup: Simulation, tokens: float, gpus: int, *, scored: bool = False, parts: int = 1) -> float:
    """Seconds to train on one of `parts` of a batch, with `tokens` response tokens; `scored`: old log-probs too."""
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


def _asynchronous(setup: Simulation) -> StepTimes:
    run = _AsynchronousRun(setup)
    while len(run.begun) <= setup.steps * setup.parts:
        run.start_responses()
        run.start_training()
        run.next_event()
    return run.times()


class _AsynchronousRun:
    """The state of an asynchronous run: `now`, what the engines decode, and until when the trainer computes."""

    def __init__(self, setup: Simulation) -> None:
        self.setup = setup
        self.sampling_gpus = setup.sampler_gpus or setup.gpus // 2
        self.engines, self.lengths = _engines(setup, self.sampling_gpus), response_lengths(setup)
        self.ends = [engine.next_end() for engine in self.engines]
        self.tokens_of: list[float] = []  # of the responses that were started
        self.finished: list[tuple[int, float]] = []  # version of the weights at its end, tokens
        self.begun: list[float] = []  # when the training of each part begins
        self.trainings: list[float] = []  # its seconds
        self.stale: list[float] = []  # the mean age of its responses, in updates
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
        self.begun.append(self.now)
        self.stale.append(float(np.mean([self.version - version for version, _ in part])))
        tokens = sum(tokens for _, tokens in part)
        gpus = self.setup.gpus - self.sampling_gpus
        self.trainings.append(train_seconds(self.setup, tokens, gpus, parts=self.setup.parts))
        self.trained_at = self.now + self.trainings[-1]

    def next_event(self) -> None:
        """Advance to the next event: a response ends, or the training of a part; then new weights may be sent."""
        self.now = min(self.trained_at, *self.ends)
        if self.now == self.trained_at:
            self.trained_at = float("inf")
            if len(self.begun) % self.setup.parts:
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
        """New weights: every engine stands still meanwhile, and then continues its responses."""
        self.version, self.now, self.draining = self.version + 1, self.now + sync_seconds(self.setup), False
        for engine in self.engines:
            engine.now = self.now
        self.ends = [engine.next_end() for engine in self.engines]

    def times(self) -> StepTimes:
        parts, sync = self.setup.parts, sync_seconds(self.setup)
        starts = self.begun[::parts]
        step = float(np.diff(starts)[1:].mean())
        training = float(np.sum(self.trainings[parts:-1])) / (len(starts) - 2)
        busy = sum(engine.busy for engine in self.engines) / (len(self.engines) * self.now)
        staleness = float(np.mean(self.stale[parts:]))
        return StepTimes(step, step, training, max(0.0, step - training - sync), sync, busy, staleness)
