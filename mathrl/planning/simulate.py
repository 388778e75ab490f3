"""`mathrl plan --simulate`: seconds per step of a run on any number of nodes, by a discrete-event model.

Engines decode with continuous batching: a step of b sequences takes step_ms + sequence_ms b. Three ways to share GPUs:
colocated: all sample a batch, then all train, then the weights are sent (synchronous);
one step ahead: samplers and trainers are apart; batch n + 1 is sampled while batch n is trained on;
asynchronous: samplers stop only for new weights, the trainer takes the next finished responses, and responses are
started at most `staleness` batches ahead (AReaL, arXiv:2505.24298).
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from pydantic import Field, model_validator

from mathrl.core.errors import UserError
from mathrl.params.load import read_yaml, validate_section
from mathrl.params.messages import did_you_mean
from mathrl.params.section import Section

SETUPS = Path(__file__).with_name("simulations")  # YAML files by name
Mode = Literal["colocated", "one step ahead", "asynchronous"]
MODES: tuple[Mode, ...] = get_args(Mode)
NEVER = float("inf")


class ResponseLengths(Section):
    """Response lengths: log-normal, cut off at the limit."""

    mean: float = Field(gt=0, description="Mean response length before the limit, in tokens.")
    spread: float = Field(0.8, ge=0, le=3, description="Standard deviation of the log length; 0: equal lengths.")
    limit: int = Field(ge=1, description="Maximum response length, in tokens.")
    prompt: int = Field(256, ge=0, description="Prompt length, in tokens.")


class SamplingEngine(Section):
    """A sampling engine of `gpus` GPUs: a decoding step of b sequences takes step_ms + b x sequence_ms."""

    gpus: int = Field(1, ge=1, description="GPUs per engine (tensor parallel).")
    step_ms: float = Field(gt=0, description="Fixed time of a decoding step (reading the weights), in ms.")
    sequence_ms: float = Field(ge=0, description="Additional time of a decoding step per sequence, in ms.")
    concurrency: int = Field(256, ge=1, description="Maximum number of sequences decoded at a time per engine.")


class Trainer(Section):
    """Throughput of the trainer; prompt and response tokens count."""

    tokens_per_second: float = Field(gt=0, description="Tokens per second and GPU, forward and backward.")
    logprob_tokens_per_second: float | None = Field(
        None, gt=0, description="Old log-probs; null: the sampler's are used."
    )
    fixed_seconds: float = Field(0.0, ge=0, description="Seconds per step that do not shrink with more GPUs.")


class Sync(Section):
    """Weight sync: all weights go to every node over the network, and within a node to every GPU."""

    weights_gb: float = Field(ge=0, description="Size of the weights, in 10^9 bytes; bfloat16: 2 per parameter.")
    between: float = Field(20.0, gt=0, description="Bandwidth into a node, in 10^9 bytes per second (as verl's).")
    within: float = Field(120.0, gt=0, description="Bandwidth into a GPU within a node, in 10^9 bytes per second.")
    fixed_seconds: float = Field(1.0, ge=0, description="Seconds per sync whatever its size: pause, empty caches.")


class Simulation(Section):
    """A simulated run at any size."""

    description: str = Field("", description="What is simulated, and the source of its numbers.")
    nodes: int = Field(1, ge=1, description="Number of nodes; with several, weights cross the network.")
    gpus_per_node: int = Field(8, ge=1, description="GPUs per node.")
    sampler_gpus: int | None = Field(None, ge=1, description="Not colocated: GPUs that sample; null: half of all.")
    responses: int = Field(ge=1, description="Responses per step.")
    lengths: ResponseLengths
    sampler: SamplingEngine
    trainer: Trainer
    sync: Sync
    switch_seconds: float = Field(0.0, ge=0, description="Colocated: seconds per step to swap the two engines.")
    parts: int = Field(1, ge=1, description="Asynchronous: parts of a batch; each is trained on when it is complete.")
    staleness: float = Field(1.0, ge=0, description="Asynchronous: maximum number of batches sampled ahead.")
    steps: int = Field(12, ge=2, description="Steps to simulate; the means leave out the first.")
    seed: int = Field(0, ge=0, description="Seed of the response lengths.")

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def apart(self) -> int:
        return self.sampler_gpus or self.gpus // 2

    @model_validator(mode="after")
    def _shares(self) -> "Simulation":
        if not self.sampler.gpus <= min(self.apart, self.gpus // 2) <= self.apart < self.gpus:
            raise ValueError("sampler_gpus must hold an engine (sampler.gpus) and leave GPUs for training")
        if self.responses % self.parts:
            raise ValueError("responses must be a multiple of parts")
        return self

    def response_lengths(self) -> Iterator[float]:
        """Lengths of responses in tokens, seeded, without end; the mean of the log-normal is `lengths.mean`."""
        random, lengths = np.random.default_rng(self.seed), self.lengths
        location = np.log(lengths.mean) - lengths.spread**2 / 2
        while True:
            for value in np.exp(location + lengths.spread * random.standard_normal(4096)):
                yield float(min(max(1.0, value), lengths.limit))

    def sync_seconds(self) -> float:
        """Seconds to send the weights once; each GPU receives all and keeps its share, as vLLM's load_weights does."""
        sync = self.sync
        return sync.weights_gb * ((self.nodes > 1) / sync.between + 1 / sync.within) + sync.fixed_seconds

    def train_seconds(self, tokens: float, gpus: int, scored: bool = False, parts: int = 1) -> float:
        """Seconds to train on one of `parts` of a batch of `tokens` response tokens; `scored`: plus old log-probs."""
        total, speed = (tokens + self.responses * self.lengths.prompt / parts) / gpus, self.trainer
        scoring = speed.logprob_tokens_per_second if scored else None
        return speed.fixed_seconds / parts + total / speed.tokens_per_second + (total / scoring if scoring else 0.0)


@dataclass(frozen=True)
class StepTimes:
    """Means per step without the first, in seconds, and of a response's last token the updates that it is behind."""

    step_seconds: float
    generation: float
    training: float
    waiting: float  # the trainer, for responses
    sync: float
    sampler_busy: float  # a share
    staleness: float


class _Samplers:
    """Engines and the responses that run in them."""

    def __init__(self, setup: Simulation, gpus: int) -> None:
        self.sampler, count = setup.sampler, gpus // setup.sampler.gpus
        self.now = [0.0] * count  # the time up to which an engine has decoded
        self.decoded = [0.0] * count  # tokens of a response that runs since the start
        self.running = [list[tuple[float, float]]() for _ in range(count)]  # heaps of (decoded at the end, tokens)
        self.loads, self.pace = [0] * count, [0.0] * count  # how many run, and seconds per token
        self.ends = [NEVER] * count  # the time at which an engine's next response ends
        self.busy = 0.0  # seconds of decoding of all engines

    def start(self, now: float, tokens: float) -> bool:
        """Start a response in the engine with the fewest; false if all are full."""
        place = self.loads.index(load := min(self.loads))
        if load >= self.sampler.concurrency:
            return False
        self._decode(place, now)
        heapq.heappush(self.running[place], (self.decoded[place] + tokens, tokens))
        self._look_ahead(place)
        return True

    def finish(self) -> float:
        """Decode until the next response ends; its tokens."""
        place = self.ends.index(end := min(self.ends))
        self._decode(place, end)
        self.decoded[place], tokens = heapq.heappop(self.running[place])
        self._look_ahead(place)
        return tokens

    def pause(self, now: float, until: float) -> None:
        for place in range(len(self.now)):
            self._decode(place, now)
            self.now[place] = until
            self._look_ahead(place)

    def _decode(self, place: int, now: float) -> None:
        if self.running[place]:
            self.busy += now - self.now[place]
            self.decoded[place] += (now - self.now[place]) / self.pace[place]
        self.now[place] = now

    def _look_ahead(self, place: int) -> None:
        running = self.running[place]
        self.loads[place] = len(running)
        self.pace[place] = (self.sampler.step_ms + self.sampler.sequence_ms * len(running)) / 1e3
        left = running[0][0] - self.decoded[place] if running else NEVER
        self.ends[place] = self.now[place] + left * self.pace[place]


def generate(setup: Simulation, lengths: list[float], gpus: int) -> tuple[float, float]:
    """Seconds until the whole batch is sampled, and the share of them in which engines had work."""
    samplers, now, started = _Samplers(setup, gpus), 0.0, 0
    for _ in lengths:
        while started < len(lengths) and samplers.start(now, lengths[started]):
            started += 1
        now = min(samplers.ends)
        samplers.finish()
    return now, samplers.busy / (len(samplers.now) * now)


def simulate(setup: Simulation, mode: Mode) -> StepTimes:
    """A run of `setup.steps` steps in one of the three ways."""
    if mode == "asynchronous":
        return _asynchronous(setup)
    colocated, lengths, sync = mode == "colocated", setup.response_lengths(), setup.sync_seconds()
    sampling, training = (setup.gpus, setup.gpus) if colocated else (setup.apart, setup.gpus - setup.apart)
    batches = [[next(lengths) for _ in range(setup.responses)] for _ in range(setup.steps)]
    generations, busy = np.array([generate(setup, batch, sampling) for batch in batches]).T
    trainings = np.array([setup.train_seconds(sum(batch), training, colocated) for batch in batches])
    if colocated:
        steps, waits = generations + trainings + sync + setup.switch_seconds, generations
    else:  # batch n + 1 is sampled during the training on batch n
        waits = np.maximum(0.0, generations[1:] - trainings[:-1])
        steps = trainings[:-1] + waits + sync
    step, generation, trained_for, waited = (float(v[1:].mean()) for v in (steps, generations, trainings, waits))
    share = min(1.0, float(busy.mean() * generations.mean()) / step)  # busy: as a share of the generation's length
    return StepTimes(step, generation, trained_for, waited, sync, share, 0.0 if colocated else 1.0)


def _asynchronous(setup: Simulation) -> StepTimes:
    samplers, lengths, sync = _Samplers(setup, setup.apart), setup.response_lengths(), setup.sync_seconds()
    parts, size = setup.parts, setup.responses // setup.parts
    finished: list[tuple[int, float]] = []  # version of the weights at the end, tokens
    starts, trainings, stale = list[float](), list[float](), list[float]()  # of each part
    now, trained_at, version, started, tokens = 0.0, NEVER, 0, 0, next(lengths)
    while len(starts) <= setup.steps * parts:
        limit = (setup.staleness + 1 + version) * setup.responses
        while started < limit and samplers.start(now, tokens):
            started, tokens = started + 1, next(lengths)
        if trained_at == NEVER and len(finished) >= size:
            part, finished = finished[:size], finished[size:]
            starts.append(now)
            stale.append(float(np.mean([version - ended for ended, _ in part])))
            trainings.append(setup.train_seconds(sum(n for _, n in part), setup.gpus - setup.apart, parts=parts))
            trained_at = now + trainings[-1]
        now = min(trained_at, *samplers.ends)
        if now < trained_at:
            finished.append((version, samplers.finish()))
            continue
        trained_at = NEVER
        if len(starts) % parts == 0:
            samplers.pause(now, now + sync)
            version, now = version + 1, now + sync
    step = float(np.diff(starts[::parts])[1:].mean())
    training = sum(trainings[parts:-1]) / (setup.steps - 1)
    busy = samplers.busy / (len(samplers.now) * now)
    return StepTimes(step, step, training, max(0.0, step - training - sync), sync, busy, float(np.mean(stale[parts:])))


def load_setup(name: str) -> Simulation:
    """The set-up of a YAML file, or of a name of mathrl/planning/simulations; a UserError names all that is wrong."""
    names = ", ".join(known := sorted(file.stem for file in SETUPS.glob("*.yaml")))
    file = Path(name) if name.endswith((".yaml", ".yml")) else SETUPS / f"{name}.yaml"
    if not file.is_file():
        raise UserError(f"no set-up {name!r}{did_you_mean(name, known)}; give a YAML file, or one of {names}")
    return validate_section(Simulation, read_yaml(file), str(file))
