"""Section health: limits of healthy training."""

from typing import Literal

from pydantic import Field

from mathrl.params.section import Section

RuleName = Literal[
    "loss", "collapse", "kl", "mismatch", "stale_sampler", "importance", "entropy", "length", "repetition",
    "no_success", "flat", "spikes", "zero_variance", "truncated", "critic", "reward_parts", "timeouts",
    "reward_hacking", "reward_alone", "centring", "agreement", "dev_gap", "entropy_rise", "empty",
    "tool_down", "tool_calls", "told_answers", "dropped_groups",
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
