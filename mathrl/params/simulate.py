"""What `mathrl plan --simulate` simulates: params/simulate/<name>.yaml, or any such file."""

from typing import Literal

from pydantic import Field, model_validator

from mathrl.params.section import Section


class Lengths(Section):
    """Tokens of a response: log-normal, cut off at the limit."""

    mean: float = Field(gt=0, description="Before the limit cuts, in tokens.")
    spread: float = Field(0.8, ge=0, le=3, description="Standard deviation of the logarithm; 0: all alike.")
    limit: int = Field(ge=1, description="Longest response, in tokens.")
    prompt: int = Field(256, ge=0, description="Tokens of a prompt.")


class Sampler(Section):
    """An engine of `gpus` GPUs: a decoding step of b sequences takes step_ms + sequence_ms b."""

    gpus: int = Field(1, ge=1, description="Of one engine (tensor parallel).")
    step_ms: float = Field(gt=0, description="Of a decoding step, however few sequences (reading the weights).")
    sequence_ms: float = Field(ge=0, description="More for each sequence in it.")
    concurrency: int = Field(256, ge=1, description="Sequences that an engine decodes at a time.")


class Trainer(Section):
    """Throughput of the trainer, prompts and responses counted."""

    tokens_per_second: float = Field(gt=0, description="Of a GPU, forward and backward.")
    logprob_tokens_per_second: float | None = Field(
        None, gt=0, description="Of a GPU, old log-probs again, where colocated; null: the sampler's are taken."
    )
    fixed_seconds: float = Field(0.0, ge=0, description="Of a step, however many GPUs (optimizer, waiting).")


class Sync(Section):
    """Sending the weights to the samplers: to every node over its network, there to every GPU, whole."""

    weights_gb: float = Field(ge=0, description="As they are sent, in 10^9 bytes: 2 a parameter in bfloat16.")
    between: float = Field(
        20.0, gt=0, description="10^9 bytes a second into a node; what verl measures (docs/planning.md)."
    )
    within: float = Field(120.0, gt=0, description="10^9 bytes a second into a GPU, inside a node.")
    fixed_seconds: float = Field(
        1.0, ge=0, description="However large the weights: engines stopped, caches emptied, the next batch."
    )


class Simulation(Section):
    """A run at any size.

    Example:
        Simulation(nodes=16, responses=8192, lengths=Lengths(mean=3000, limit=20480),
                   sampler=Sampler(step_ms=8, sequence_ms=0.05), trainer=Trainer(tokens_per_second=3000),
                   sync=Sync(weights_gb=15.2))
    """

    description: str = Field("", description="What it is, and where its numbers are from.")
    nodes: int = Field(1, ge=1, description="Machines; weights cross their network where there are several.")
    gpus_per_node: int = Field(8, ge=1, description="GPUs of each.")
    sampler_gpus: int | None = Field(
        None, ge=1, description="Of them for sampling, where sampling and training are apart; null: half."
    )
    responses: int = Field(ge=1, description="Responses a training step.")
    lengths: Lengths
    sampler: Sampler
    trainer: Trainer
    sync: Sync
    switch_seconds: float = Field(
        0.0, ge=0, description="Colocated: putting one engine to sleep and waking the other, a step."
    )
    parts: int = Field(
        1, ge=1, description="Asynchronous: the trainer takes a batch in so many, each as soon as it is there."
    )
    staleness: float = Field(
        1.0, ge=0, description="Asynchronous: batches that may be begun ahead of the one in training."
    )
    interruptible: bool = Field(
        True, description="Asynchronous: new weights reach responses under way; else those are waited for."
    )
    steps: int = Field(12, ge=2, description="Steps to simulate; the first is not counted.")
    seed: int = Field(0, ge=0, description="Of the drawn lengths.")

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @model_validator(mode="after")
    def _shares(self) -> "Simulation":
        if (self.sampler_gpus or self.gpus // 2) >= self.gpus:
            raise ValueError("sampler_gpus must leave GPUs for training: below nodes x gpus_per_node")
        if self.gpus // 2 < self.sampler.gpus or (self.sampler_gpus or self.gpus) < self.sampler.gpus:
            raise ValueError("sampler.gpus (of one engine) is more than the GPUs for sampling")
        if self.responses % self.parts:
            raise ValueError("responses must be a multiple of parts")
        return self


Mode = Literal["colocated", "one step ahead", "asynchronous"]
MODES: tuple[Mode, ...] = ("colocated", "one step ahead", "asynchronous")
