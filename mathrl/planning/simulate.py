"""A discrete-event model of a run: when responses end, when the trainer has a batch, who waits for whom.

Engines decode with continuous batching: b sequences advance by a token each in step_ms + sequence_ms b, so an
engine is followed from one ending response to the next. Three ways to share the GPUs:

- colocated: all GPUs sample a batch, then all compute and train, then the weights are sent (synchronous);
- one step ahead: samplers and trainers are apart; batch n + 1 is sampled while batch n is trained on;
- asynchronous: samplers never stop but for new weights; the trainer takes the next finished responses; no
  more is begun than `staleness` batches ahead (AReaL, arXiv:2505.24298).
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from mathrl.params.simulate import Mode, Simulation


@dataclass(frozen=True)
class Outcome:
    """Means a step, after the first. `waiting` is what the trainer waits for responses, `sync` for the
    weights to be sent, in seconds.

    `staleness` is how many updates a response's last token is behind the weights that train on it.
    """

    step_seconds: float
    generation: float
    training: float
    waiting: float
    sync: float
    sampler_busy: float
    staleness: float


@dataclass
class Engine:
    """Follows its sequences: `grown` counts tokens that every sequence in it has got since the start."""

    step: float
    each: float
    now: float = 0.0
    grown: float = 0.0
    busy: float = 0.0
    running: list[tuple[float, int]] = field(default_factory=list)  # (grown at the end, number), a heap

    def next_end(self) -> float:
        """When its next response ends if nothing joins."""
        if not self.running:
            return float("inf")
        return self.now + (self.running[0][0] - self.grown) * self._pace()

    def _pace(self) -> float:
        return self.step + self.each * len(self.running)

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
    """Tokens of one response after the other, seeded; the log-normal's mean is `lengths.mean`."""
    random = np.random.default_rng(setup.seed)
    given = setup.lengths
    location = np.log(given.mean) - given.spread**2 / 2
    while True:
        for value in np.exp(location + given.spread * random.standard_normal(4096)):
            yield float(min(max(1.0, value), given.limit))


def simulate(setup: Simulation, mode: Mode) -> Outcome:
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
        steps = [g + t + sync + setup.switch_seconds for g, t in _pairs(generations, trainings)]
        return _outcome(steps, generations, trainings, generations, sync, busy, 0.0)
    # Batch n + 1 is sampled during the training on batch n.
    pairs = list(zip(generations[1:], trainings, strict=False))
    steps = [max(g, t) + sync for g, t in pairs]
    waits = [max(0.0, g - t) for g, t in pairs]
    return _outcome(steps, generations, trainings, waits, sync, busy, 1.0)


def sync_seconds(setup: Simulation) -> float:
    """Of sending the weights once: over the nodes' networks (none where there is one), then to each GPU.

    Every GPU takes them whole and keeps its share of them, as vLLM's load_weights does.
    """
    own = setup.sync
    network = own.weights_gb / own.between if setup.nodes > 1 else 0.0
    return network + own.weights_gb / own.within + own.fixed_seconds


def _pairs(first: list[float], second: list[float]) -> Iterator[tuple[float, float]]:
    return zip(first, second, strict=True)


def _outcome(
    steps: list[float],
    generations: list[float],
    trainings: list[float],
    waits: list[float],
    sync: float,
    busy: list[float],
    staleness: float,
) -> Outcome:
    """Means; `busy` is in engine-seconds over all engines, as a share of the generation's length."""
    step = float(np.mean(steps[1:]))
    share = float(np.mean(busy)) * float(np.mean(generations)) / step
    return Outcome(
        step,
        float(np.mean(generations[1:])),
        float(np.mean(trainings[1:])),
        float(np.mean(waits[1:])),
        sync,
        min(1.0, share),
        staleness,
    )


def train_seconds(setup: Simulation, tokens: float, gpus: int, *, scored: bool = False, parts: int = 1) -> float:
    """Of the trainer on so many response tokens, of a part of a batch; `scored`: also their old log-probs."""
    everything = tokens + setup.responses * setup.lengths.prompt / parts
    own = setup.trainer
    seconds = own.fixed_seconds / parts + everything / (own.tokens_per_second * gpus)
    if scored and own.logprob_tokens_per_second is not None:
        seconds += everything / (own.logprob_tokens_per_second * gpus)
    return seconds


def _engines(setup: Simulation, gpus: int) -> list[Engine]:
    own = setup.sampler
    return [Engine(own.step_ms / 1e3, own.sequence_ms / 1e3) for _ in range(gpus // own.gpus)]


def generate(setup: Simulation, lengths: list[float], gpus: int) -> tuple[float, float]:
    """Seconds until a batch is sampled whole, and the share of them in which engines had work."""
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


def _asynchronous(setup: Simulation) -> Outcome:
    sampling = setup.sampler_gpus or setup.gpus // 2
    engines, lengths, sync = _engines(setup, sampling), response_lengths(setup), sync_seconds(setup)
    wanted = setup.responses // setup.parts  # responses that the trainer takes at a time
    tokens_of: list[float] = []
    finished: list[tuple[int, float]] = []  # version of the weights at its end, tokens
    begun: list[float] = []  # when the training of a part begins
    trainings: list[float] = []
    stale: list[float] = []
    version, now, until, draining = 0, 0.0, float("inf"), False
    ends = [engine.next_end() for engine in engines]
    while len(begun) <= setup.steps * setup.parts:
        # Begin responses, in the emptiest engine first, as far ahead as staleness allows.
        ahead = int((setup.staleness + 1 + version) * setup.responses)
        while len(tokens_of) < ahead and not draining:
            loads = [len(engine.running) for engine in engines]
            place = loads.index(min(loads))
            if loads[place] >= setup.sampler.concurrency:
                break
            tokens_of.append(next(lengths))
            engines[place].join(len(tokens_of) - 1, tokens_of[-1])
            ends[place] = engines[place].next_end()
        training = until < float("inf")
        if not training and not draining and len(finished) >= wanted:
            part, finished = finished[:wanted], finished[wanted:]
            begun.append(now)
            stale.append(float(np.mean([version - at for at, _ in part])))
            tokens = sum(tokens for _, tokens in part)
            trainings.append(train_seconds(setup, tokens, setup.gpus - sampling, parts=setup.parts))
            until = now + trainings[-1]
        # The next thing that happens: a response ends, or the training of a part.
        now = min(until, *ends)
        if now == until:
            until = float("inf")
            if len(begun) % setup.parts:
                continue
            for each in engines:
                each.advance(now)
            draining = not setup.interruptible
        else:
            place = ends.index(now)
            engines[place].advance(now)
            finished.append((version, tokens_of[engines[place].pop()]))
            ends[place] = engines[place].next_end()
            if not draining:
                continue
        if not draining or not any(each.running for each in engines):
            # New weights: every engine stands still meanwhile, and goes on with what it was at.
            version, now, draining = version + 1, now + sync, False
            for each in engines:
                each.now = now
            ends = [engine.next_end() for engine in engines]
    starts = begun[:: setup.parts]
    step = float(np.diff(starts)[1:].mean())
    training_ = float(np.sum(trainings[setup.parts : -1])) / (len(starts) - 2)
    share = sum(engine.busy for engine in engines) / (len(engines) * now)
    staleness = float(np.mean(stale[setup.parts :]))
    return Outcome(step, step, training_, max(0.0, step - training_ - sync), sync, share, staleness)
