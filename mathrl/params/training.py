"""Section training: which engine holds weights and optimizer while training, and what happens on faults.

Section health: limits of healthy training.

Sections rl.engine and sft.engine: which engine trains, and for verl where it runs and what of its own is set.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from mathrl.core.errors import UserError
from mathrl.params.section import Section


class DeepSpeed(Section):
    """ZeRO (arXiv:1910.02054): optimizer states, gradients and weights partitioned over the ranks."""

    stage: Literal[1, 2, 3] = Field(
        2, description="ZeRO stage; partitioned: 1: optimizer states; 2: also gradients; 3: also weights."
    )
    offload_optimizer: bool = Field(False, description="Keep optimizer states, and run the optimizer step, on the CPU.")
    offload_parameters: bool = Field(
        False, description="Keep weights in CPU memory until they are used; needs stage 3."
    )

    @model_validator(mode="after")
    def _offload(self) -> "DeepSpeed":
        if self.offload_parameters and self.stage != 3:
            raise ValueError("offload_parameters needs stage 3: only then are weights partitioned")
        return self


class Fsdp(Section):
    """PyTorch's FSDP2: weights, gradients and optimizer states partitioned over the ranks."""

    context_parallel: Literal[1, 2, 4, 8] = Field(
        1,
        description="Ranks that share the tokens of each micro-batch (Ulysses), for long responses: divides its "
        "activations among them. The number of ranks and the model's attention heads must be multiples.",
    )


class Training(Section):
    """Settings of every stage that trains a model."""

    backend: Literal["torch", "deepspeed", "fsdp"] = Field(
        "torch",
        description="torch: every rank holds all weights; deepspeed: partitioned by ZeRO; fsdp: partitioned by "
        "PyTorch's FSDP2 (weights, gradients and optimizer states).",
    )
    deepspeed: DeepSpeed = DeepSpeed()
    fsdp: Fsdp = Fsdp()
    most_bad_updates: int = Field(
        10,
        ge=0,
        description="Maximum number of updates skipped for a non-finite loss or gradient; one more stops the run.",
    )
    checkpoint_minutes: float | None = Field(
        10.0,
        gt=0,
        description="Also checkpoint when the last checkpoint is older than this many minutes; null: only every "
        "checkpoint_every steps.",
    )
    collective_timeout_minutes: float = Field(
        120.0,
        gt=0,
        description="Minutes that a rank waits for the other ranks in an exchange; then the run stops and names where "
        "it waited.",
    )
    on_out_of_memory: Literal["stop", "halve"] = Field(
        "stop", description="halve: retry with micro-batches of half the tokens; the gradient stays the same."
    )

    @property
    def context_ranks(self) -> int:
        """The number of ranks that share the tokens of each micro-batch; 1 without context parallelism."""
        return self.fsdp.context_parallel if self.backend == "fsdp" else 1

    def check_ranks(self, ranks: int) -> None:
        """Raises UserError: the ranks cannot be divided into groups that share micro-batches."""
        size = self.context_ranks
        if ranks % size:
            raise UserError(
                f"training.fsdp.context_parallel is {size}, but there {'are' if ranks > 1 else 'is'} {ranks} "
                f"rank{'s' * (ranks > 1)}: make run.processes (under torchrun the number of its ranks) a multiple of "
                f"{size}, or set training.fsdp.context_parallel to 1"
            )

    @model_validator(mode="after")
    def _fit(self) -> "Training":
        if self.on_out_of_memory == "halve" and self.backend != "torch":
            raise ValueError(
                f"on_out_of_memory halve needs backend torch: within the backward pass of {self.backend} the processes "
                "exchange gradients, so none can retry; lower tokens_per_microbatch of the stage instead"
            )
        return self


Override = Annotated[str, Field(pattern=r"^\+{0,2}[A-Za-z_][\w.]*=.*$")]


class MathRl(Section):
    """mathrl's own loop."""

    type: Literal["mathrl"] = "mathrl"


class Trl(Section):
    """TRL's trainer."""

    type: Literal["trl"] = "trl"


class Verl(Section):
    """verl's trainer, on its machines and with settings of its own."""

    type: Literal["verl"] = "verl"
    nodes: int = Field(1, ge=1, le=1024, description="Machines that verl trains on, each with run.processes GPUs.")
    ray_address: str | None = Field(
        None,
        min_length=1,
        description="Ray cluster to train on: auto (that of this machine) or host:port; null: verl starts Ray here.",
    )
    overrides: tuple[Override, ...] = Field(
        (),
        description="Settings of verl that mathrl does not set, as Hydra overrides: "
        "[actor_rollout_ref.actor.fsdp_config.param_offload=true].",
    )


RlEngine = Annotated[MathRl | Trl | Verl, Field(discriminator="type")]
SftEngine = Annotated[MathRl | Trl, Field(discriminator="type")]


Values = tuple[Any, ...]
MATHRL = "mathrl does it"
UNUSED = "no effect"


@dataclass(frozen=True)
class Meaning:
    """What an engine makes of a parameter: `becomes`, its own argument or who does it instead.

    `only` are the values that it can do, the first of them the one to write; empty: all. `instead` says why, and what
    follows from writing it.

    Example: Meaning("rl.ema", "refused", (None,), "it keeps no moving average of the weights")
    """

    setting: str
    becomes: str
    only: Values = ()
    instead: str = ""

    def refusal(self, value: Any) -> str:
        """What to write instead of `value` and why; empty where the engine can do it."""
        if not self.only or value in self.only:
            return ""
        return f"{self.setting}={yaml_value(self.only[0])} ({self.instead})"


def yaml_value(value: Any) -> str:
    """The value as an override has it.

    >>> yaml_value(None), yaml_value(False), yaml_value(1e-4), yaml_value("adamw")
    ('null', 'false', '0.0001', 'adamw')
    """
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else f"{value}"


RuleName = Literal[
    "loss", "collapse", "kl", "mismatch", "stale_sampler", "importance", "entropy", "length", "repetition",
    "no_success", "flat", "spikes", "zero_variance", "truncated", "critic", "reward_parts", "timeouts",
    "reward_hacking", "reward_alone", "centring", "agreement", "dev_gap", "entropy_rise", "empty",
    "tool_down", "tool_calls", "told_answers", "dropped_groups",
    "sampling_share", "long_tail", "idle_trainer", "idle_sampler", "slow_rank",
]  # fmt: skip


class Health(Section):
    """Limits of the health rules on the metrics of sft and rl (docs/how_to/health.md)."""

    action: Literal["warn", "stop"] = Field(
        "warn", description="warn: report findings; stop: the first red finding stops the run."
    )
    without: tuple[RuleName, ...] = Field((), description="Rules to switch off.")
    window: int = Field(5, ge=2, description="Number of latest steps whose mean is a metric's current value.")
    patience: int = Field(
        50,
        ge=4,
        description="Steps without improvement before a run counts as flat; also the look-back of trend rules.",
    )
    progress: float = Field(0.02, ge=0, le=1, description="Smallest gain in accuracy that counts as progress.")
    solved: float = Field(
        0.9, gt=0, le=1, description="Accuracy from which low entropy and zero-variance groups are accepted."
    )
    loss: float = Field(10.0, gt=0, description="Maximum absolute value of the loss.")
    lr: float = Field(1e-5, gt=0, description="Learning rates above this are reported as the likely cause.")
    kl: float = Field(0.3, gt=0, description="Maximum KL per token, unless accuracy rises with it.")
    entropy: float = Field(0.005, ge=0, description="Minimum entropy per token while accuracy is below solved.")
    length_rise: float = Field(
        1.3, gt=1, description="Growth factor of the response length from which accuracy must grow too."
    )
    right_correlation: float = Field(
        0.1,
        ge=-1,
        le=1,
        description="Correlation with correctness from which growing responses, or a growing part of the reward, are "
        "accepted: the right responses have more of it.",
    )
    repetition: float = Field(0.1, ge=0, le=1, description="Maximum share of repeated 16-grams.")
    truncated: float = Field(0.05, ge=0, le=1, description="Maximum share of truncated responses.")
    zero_variance: float = Field(0.9, gt=0, le=1, description="Maximum share of zero-variance groups.")
    drop: float = Field(0.2, gt=0, le=1, description="Drop of the accuracy from its best that counts as a collapse.")
    alignment: float = Field(
        1.05, gt=1, description="Maximum mean of exp(|log-prob difference|) between trainer and sampler."
    )
    importance: float = Field(
        0.1, gt=0, description="Maximum distance from 1 of the mean ratio and the mean importance weight."
    )
    dropped_groups: float = Field(
        0.1, ge=0, le=1, description="Maximum share of groups that asynchronous RL drops as too old."
    )
    hacking: float = Field(
        0.3,
        gt=0,
        description="Maximum rise of what is paid above that of what is right, in standard deviations of a response.",
    )
    agreement: float = Field(
        0.3,
        ge=-1,
        le=1,
        description="Minimum agreement of the verdicts with the exact grader's: Cohen's kappa, 0: chance, 1: always.",
    )
    dev_gap: float = Field(
        0.2, ge=0, le=1, description="Maximum accuracy of the rollouts above that on dev, beyond what chance explains."
    )
    entropy_rise: float = Field(
        2.0, gt=1, description="Growth factor of the entropy from which accuracy must grow too."
    )
    empty: float = Field(0.05, ge=0, le=1, description="Maximum share of prompts to which every response is empty.")
    timeouts: float = Field(0.01, ge=0, le=1, description="Maximum share of verifications that time out.")
    tool_unavailable: float = Field(
        0.05, ge=0, le=1, description="Maximum share of tool calls for which the tool itself fails."
    )
    tool_rise: float = Field(
        2.0, gt=1, description="Growth factor of the calls per response from which accuracy must grow too."
    )
    tool_echo: float = Field(
        0.5, ge=0, le=1, description="Maximum share of tool calls whose code has their output in it."
    )
    sampling_share: float = Field(0.9, ge=0, le=1, description="Maximum share of a step's time that sampling takes.")
    long_tail: float = Field(8.0, gt=1, description="Maximum length of a step's longest response, in median lengths.")
    idle: float = Field(
        0.5, ge=0, le=1, description="Maximum share of its time that trainer or sampler waits in asynchronous RL."
    )
    slow_rank: float = Field(
        1.5,
        gt=1,
        description="Maximum sampling time of the slowest rank, in medians of the others, if always the same.",
    )
