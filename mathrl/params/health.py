"""Section health: when training counts as ill."""

from typing import Literal

from pydantic import Field

from mathrl.params.section import Section

RuleName = Literal[
    "loss", "collapse", "kl", "mismatch", "stale_sampler", "importance", "entropy", "length", "repetition",
    "no_success", "flat", "spikes", "zero_variance", "truncated", "critic", "reward_parts", "timeouts",
]  # fmt: skip


class Health(Section):
    """Limits of the rules that watch the metrics of sft and rl (docs/health.md)."""

    action: Literal["warn", "stop"] = Field("warn", description="stop: the first red finding ends the run.")
    without: tuple[RuleName, ...] = Field((), description="Rules that are left out.")
    window: int = Field(5, ge=2, description="Steps whose mean counts as now.")
    patience: int = Field(
        40, ge=4, description="Steps without progress that count as none; also how far back a trend looks."
    )
    progress: float = Field(0.02, ge=0, le=1, description="A smaller gain in accuracy is none.")
    solved: float = Field(
        0.9, gt=0, le=1, description="Accuracy from which low entropy and groups without difference are fine."
    )
    loss: float = Field(10.0, gt=0, description="Largest loss, in absolute value.")
    lr: float = Field(0.1, gt=0, description="Learning rates above this are named as the cause.")
    kl: float = Field(1.0, gt=0, description="Largest KL a token, unless accuracy rises with it.")
    entropy: float = Field(0.005, ge=0, description="Least entropy a token, while accuracy is below solved.")
    length_rise: float = Field(1.3, gt=1, description="Growth of responses that must come with accuracy.")
    repetition: float = Field(0.1, ge=0, le=1, description="Largest share of 16-grams said before.")
    truncated: float = Field(0.05, ge=0, le=1, description="Largest share of responses that are cut off.")
    zero_variance: float = Field(0.9, gt=0, le=1, description="Largest share of groups without difference.")
    drop: float = Field(0.2, gt=0, le=1, description="Fall of the accuracy from its best that is a collapse.")
    alignment: float = Field(1.05, gt=1, description="Of the mean exp |log-prob difference|, with sampler.")
    importance: float = Field(0.1, gt=0, description="Distance from 1 of mean ratios and weights.")
    timeouts: float = Field(0.01, ge=0, le=1, description="Largest share of verifications that time out.")
