"""Sections of the training stages: sft, rl, and the controls beside them."""

from typing import Literal

from pydantic import Field, model_validator

from mathrl.params.lora import Lora
from mathrl.params.section import Section


class Optimizer(Section):
    """AdamW everywhere, or Muon on the matrices and AdamW on the rest."""

    type: Literal["adamw", "muon"] = Field("muon", description="muon: on hidden matrices, AdamW elsewhere.")
    muon_lr: float = Field(0.02, ge=0, le=1, description="Learning rate of Muon.")
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.95, ge=0, lt=1)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    clip_norm: float | None = Field(1.0, gt=0, description="Largest gradient norm; empty: no clipping.")
    warmup_steps: int = Field(10, ge=0, description="Linear warm-up.")
    schedule: Literal["constant", "linear", "flat_linear", "cosine"] = Field(
        "linear", description="flat_linear: constant for the first half, then linear to zero."
    )


class Sft(Section):
    """Supervised fine-tuning on worked solutions of the sft split."""

    steps: int = Field(900, ge=0, description="Optimizer steps; 0 keeps the base model.")
    tokens_per_step: int = Field(2048, ge=16, description="Tokens of a global batch.")
    terse_share: float = Field(
        0.5, ge=0, le=1, description="Share of demonstrations that give the answer without the steps."
    )
    lr: float = Field(3e-3, ge=0, le=1, description="Learning rate of AdamW (Muon's is optimizer.muon_lr).")
    optimizer: Optimizer = Optimizer(schedule="flat_linear")
    lora: Lora | None = Field(None, description="Train low-rank adapters; empty: all weights.")
    gradient_checkpointing: bool = Field(False, description="Recompute activations to save memory.")
    tokens_per_microbatch: int = Field(8192, ge=16, description="Memory budget of a forward pass, in tokens.")
    eval_every: int = Field(100, ge=0, description="Loss on dev demonstrations every n steps; 0: at the end.")
    checkpoint_every: int = Field(100, ge=1, description="Steps between resume points.")


class Rl(Section):
    """Reinforcement learning with verifiable rewards (GRPO)."""

    steps: int = Field(60, ge=1, description="Roll-out and update rounds.")
    prompts_per_step: int = Field(32, ge=1, description="Problems a step.")
    group_size: int = Field(16, ge=1, description="Responses a problem.")
    lr: float = Field(5e-4, ge=0, le=1, description="Learning rate of AdamW (Muon's is optimizer.muon_lr).")
    optimizer: Optimizer = Optimizer(muon_lr=0.01)
    lora: Lora | None = Field(None, description="Train low-rank adapters; empty: all weights.")
    temperature: float = Field(1.0, gt=0, description="Of the roll-outs.")
    max_tokens: int = Field(64, ge=1, description="Longest response.")
    advantage: Literal["group_std", "group_mean", "leave_one_out"] = Field(
        "group_std", description="GRPO; Dr.GRPO; RLOO."
    )
    std_ddof: Literal[0, 1] = Field(1, description="1: the unbiased standard deviation.")
    std_eps: float = Field(1e-6, ge=0, description="Added to the standard deviation.")
    clip_low: float = Field(0.2, gt=0, le=1, description="Ratio is clipped below at 1 - clip_low.")
    clip_high: float = Field(0.28, gt=0, description="Ratio is clipped above at 1 + clip_high.")
    aggregation: Literal["token_mean", "sequence_mean", "sequence_sum"] = Field(
        "token_mean", description="Over the global batch; sequence_sum is divided by max_tokens."
    )
    kl_coef: float = Field(
        0.0, ge=0, description="Weight of the KL to the SFT model in the loss; 0: no reference."
    )
    kl_estimator: Literal["k1", "k2", "k3"] = Field("k3", description="Schulman's estimators.")
    entropy_coef: float = Field(0.0, ge=0, description="Weight of the entropy bonus.")
    epochs: int = Field(1, ge=1, description="Passes over a batch of roll-outs.")
    minibatches: int = Field(1, ge=1, description="Updates a pass.")
    tokens_per_microbatch: int = Field(8192, ge=16, description="Memory budget of a forward pass, in tokens.")
    skip_zero_variance: bool = Field(
        True, description="No forward pass for groups without a reward difference."
    )
    truncated: Literal["keep", "mask"] = Field("keep", description="mask: responses cut off have no loss.")
    ema: float | None = Field(
        0.9, gt=0, lt=1, description="Decay of the averaged weights that are evaluated."
    )
    gradient_checkpointing: bool = Field(False, description="Recompute activations to save memory.")
    min_pass_at_8: float = Field(0.3, ge=0, le=1, description="The SFT model's pass@8 must reach this first.")
    eval_every: int = Field(10, ge=0, description="Dev pass@1 every n steps; 0: only at the end.")
    eval_samples: int = Field(4, ge=1, description="Responses a dev problem.")
    eval_temperature: float = Field(0.7, ge=0, description="Of the dev responses; 0 is greedy.")
    checkpoint_every: int = Field(10, ge=1, description="Steps between resume points.")

    @model_validator(mode="after")
    def _groups(self) -> "Rl":
        if self.group_size == 1:
            raise ValueError("group_size must be at least 2: a group of one has no advantage")
        if self.prompts_per_step % self.minibatches:
            raise ValueError("prompts_per_step must be a multiple of minibatches")
        return self


class Controls(Section):
    """Three comparisons that say what RL did."""

    more_sft: bool = Field(True, description="As much time again on more SFT.")
    forced_prefix: str | None = Field("<think>", description="The SFT model's response begun with this.")
    worked_only: bool = Field(True, description="SFT on worked demonstrations alone.")
