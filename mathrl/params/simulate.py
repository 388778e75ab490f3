"""Set-ups of `mathrl plan --simulate`: mathrl/planning/simulations/<name>.yaml, or any such file."""

from typing import Literal

from pydantic import Field, model_validator

from mathrl.params.section import Section


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
        None,
        gt=0,
        description="Colocated: tokens per second and GPU to recompute old log-probs; null: the sampler's are used.",
    )
    fixed_seconds: float = Field(0.0, ge=0, description="Seconds per step that do not shrink with more GPUs.")


class Sync(Section):
    """Weight sync: all weights go to every node over the network, and within a node to every GPU."""

    weights_gb: float = Field(ge=0, description="Size of the weights, in 10^9 bytes; bfloat16: 2 per parameter.")
    between: float = Field(
        20.0, gt=0, description="Bandwidth into a node, in 10^9 bytes per second (docs/planning.md: verl's)."
    )
    within: float = Field(120.0, gt=0, description="Bandwidth into a GPU within a node, in 10^9 bytes per second.")
    fixed_seconds: float = Field(1.0, ge=0, description="Seconds per sync whatever its size: pause, empty caches.")


class Simulation(Section):
    """A simulated run at any size.

    Example:
        Simulation(nodes=16, responses=8192, lengths=ResponseLengths(mean=3000, limit=20480),
                   sampler=SamplingEngine(step_ms=8, sequence_ms=0.05), trainer=Trainer(tokens_per_second=3000),
                   sync=Sync(weights_gb=15.2))
    """

    description: str = Field("", description="What is simulated, and the source of its numbers.")
    nodes: int = Field(1, ge=1, description="Number of nodes; with several, weights cross the network.")
    gpus_per_node: int = Field(8, ge=1, description="GPUs per node.")
    sampler_gpus: int | None = Field(
        None, ge=1, description="GPUs that sample when sampling and training are apart; null: half of all."
    )
    responses: int = Field(ge=1, description="Responses per step.")
    lengths: ResponseLengths
    sampler: SamplingEngine
    trainer: Trainer
    sync: Sync
    switch_seconds: float = Field(
        0.0, ge=0, description="Colocated: seconds per step to put one engine to sleep and wake the other."
    )
    parts: int = Field(
        1, ge=1, description="Asynchronous: parts of a batch; training on a part starts when it is complete."
    )
    staleness: float = Field(1.0, ge=0, description="Asynchronous: maximum number of batches sampled ahead.")
    interruptible: bool = Field(
        True, description="Asynchronous: running responses continue with new weights; false: the sync waits for them."
    )
    steps: int = Field(12, ge=2, description="Steps to simulate; the means leave out the first.")
    seed: int = Field(0, ge=0, description="Seed of the response lengths.")

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @model_validator(mode="after")
    def _shares(self) -> "Simulation":
        if (self.sampler_gpus or self.gpus // 2) >= self.gpus:
            raise ValueError("sampler_gpus must leave GPUs for training: below nodes x gpus_per_node")
        if self.gpus // 2 < self.sampler.gpus or (self.sampler_gpus or self.gpus) < self.sampler.gpus:
            raise ValueError("sampler.gpus (per engine) must be at most the number of GPUs that sample")
        if self.responses % self.parts:
            raise ValueError("responses must be a multiple of parts")
        return self


Mode = Literal["colocated", "one step ahead", "asynchronous"]
MODES: tuple[Mode, ...] = ("colocated", "one step ahead", "asynchronous")
