"""Sections of the training stages: sft, rl, and the controls beside them."""

from typing import Literal

from pydantic import Field, model_validator

from mathrl.params.lora import Lora
from mathrl.params.section import Section

OptimizerType = Literal["adamw", "muon"]
Schedule = Literal["constant", "linear", "flat_linear", "cosine"]
OPTIMIZER = "adamw: AdamW on every weight; muon: Muon on the hidden matrices, AdamW on the rest."
ADAMW_SCALE = "With type muon: AdamW's learning rate (embeddings, norms, biases, adapters) as a multiple of lr."
SCHEDULE = "Decay of the learning rate after warm-up; flat_linear: constant for the first half, then linear to zero."
WARMUP = "Optimizer steps of linear warm-up."
LEARNING_RATE = "Peak learning rate of every weight; with optimizer.type muon AdamW's is this times adamw_scale."


class Optimizer(Section):
    """AdamW on every weight, or Muon on the hidden matrices and AdamW on embeddings, norms, biases and adapters."""

    type: OptimizerType = Field("muon", description=OPTIMIZER)
    adamw_scale: float = Field(0.05, ge=0, description=ADAMW_SCALE)
    beta1: float = Field(0.9, ge=0, lt=1, description="AdamW: decay of the mean of gradients.")
    beta2: float = Field(0.95, ge=0, lt=1, description="AdamW: decay of the mean of their squares.")
    eps: float = Field(1e-8, gt=0, description="AdamW: added to the root of that mean.")
    weight_decay: float = Field(0.0, ge=0, description="Times the learning rate, taken off the weights a step.")
    clip_norm: float | None = Field(1.0, gt=0, description="Largest gradient norm; empty: no clipping.")
    warmup_steps: int = Field(10, ge=0, description=WARMUP)
    schedule: Schedule = Field("linear", description=SCHEDULE)

    def adamw_lr(self, lr: float) -> float:
        """Learning rate of the weights that AdamW trains, where that of the section is `lr`."""
        return lr * self.adamw_scale if self.type == "muon" else lr


class Sft(Section):
    """Supervised fine-tuning on worked solutions of the sft split."""

    steps: int = Field(900, ge=0, description="Optimizer steps; 0 keeps the base model.")
    tokens_per_step: int = Field(2048, ge=16, description="Tokens of a global batch.")
    terse_share: float = Field(
        0.5, ge=0, le=1, description="Share of demonstrations that give the answer without the steps."
    )
    lr: float = Field(0.02, ge=0, le=1, description=LEARNING_RATE)
    optimizer: Optimizer = Optimizer(schedule="flat_linear", adamw_scale=0.15)
    lora: Lora | None = Field(None, description="Train low-rank adapters; empty: all weights.")
    gradient_checkpointing: bool = Field(False, description="Recompute activations to save memory.")
    tokens_per_microbatch: int = Field(8192, ge=16, description="Memory budget of a forward pass, in tokens.")
    eval_every: int = Field(100, ge=0, description="Loss on dev demonstrations every n steps; 0: at the end.")
    checkpoint_every: int = Field(100, ge=1, description="Steps between resume points.")


class Critic(Section):
    """The value model of PPO: the policy's architecture with one output a token."""

    path: str | None = Field(
        None,
        min_length=1,
        description="Model folder that it starts from (a reward model, or a causal LM); empty: the policy. "
        "DVC does not watch it: in a recipe name a step as the critic instead.",
    )
    lr: float = Field(1e-3, ge=0, le=1, description=LEARNING_RATE)
    optimizer: Optimizer = Optimizer(type="adamw", warmup_steps=0)
    lora: Lora | None = Field(None, description="Train low-rank adapters; empty: all weights.")
    clip: float | None = Field(
        0.5, gt=0, description="A value counts as at most this far from the old one; empty: no clipping."
    )
    warmup_steps: int = Field(0, ge=0, description="Steps at the start in which only the critic learns.")


class KlController(Section):
    """The weight of the KL follows the measured KL (Ziegler et al.): up above the target, down below it."""

    target: float = Field(0.1, gt=0, description="The KL a token (the metric kl) that is wanted.")
    horizon: float = Field(10_000, gt=0, description="Responses in which the weight changes by up to 1.2 fold.")


class Importance(Section):
    """Old log-probs from the trainer, and weights for their distance from the sampler's."""

    kind: Literal["truncated", "masked"] = Field(
        "truncated", description="truncated: the ratio, at most high; masked: no loss outside [low, high]."
    )
    level: Literal["token", "sequence"] = Field("token", description="Ratio of a token, or of a response.")
    low: float = Field(0.5, ge=0, description="Lower bound, for masked.")
    high: float = Field(2.0, gt=0, description="Upper bound.")

    @model_validator(mode="after")
    def _bounds(self) -> "Importance":
        if self.low >= self.high:
            raise ValueError("importance.low must be below importance.high")
        return self


class Curriculum(Section):
    """The order in which the problems are trained on."""

    order: Literal["shuffled", "as_given", "easy_to_hard", "pass_rate"] = Field(
        "shuffled",
        description="shuffled: anew each pass; as_given: as the mixture stands; easy_to_hard: by measured "
        "pass rate, else by level; pass_rate: drawn with weight p (1 - p) of the pass rate in training.",
    )
    floor: float = Field(0.02, ge=0, le=0.25, description="Added to p (1 - p), so that no problem is lost.")
    memory: float = Field(0.5, ge=0, lt=1, description="Share of the old estimate in a new p.")


GROUP_RELATIVE = ("group_std", "group_mean", "leave_one_out")
OUTCOME_FREE = ("correct", "process", "distillation")


class Rl(Section):
    """Reinforcement learning with verifiable rewards: GRPO and its relatives, REINFORCE, PPO."""

    steps: int = Field(60, ge=1, description="Roll-out and update rounds.")
    prompts_per_step: int = Field(32, ge=1, description="Problems a step.")
    group_size: int = Field(16, ge=1, description="Responses a problem.")
    lr: float = Field(0.01, ge=0, le=1, description=LEARNING_RATE)
    optimizer: Optimizer = Optimizer()
    lora: Lora | None = Field(None, description="Train low-rank adapters; empty: all weights.")
    temperature: float = Field(1.0, gt=0, description="Of the roll-outs.")
    max_tokens: int = Field(64, ge=1, description="Longest response.")
    advantage: Literal[
        "group_std", "group_mean", "leave_one_out", "none", "greedy", "correct", "process", "gae", "distillation"
    ] = Field(
        "group_std",
        description="group_std: GRPO; group_mean: Dr.GRPO; leave_one_out: RLOO; none: the reward "
        "(REINFORCE); greedy: minus the greedy response's (ReMax); correct: 1 or 0 (online RFT); process: "
        "rewards of steps (GRPO); gae: with a critic (PPO); distillation: teacher - policy log-prob.",
    )
    std_ddof: Literal[0, 1] = Field(1, description="1: the unbiased standard deviation.")
    std_eps: float = Field(1e-6, ge=0, description="Added to the standard deviation.")
    whiten: bool = Field(
        False, description="Advantages to mean 0 and variance 1 over all tokens of the batch (REINFORCE++)."
    )
    gamma: float = Field(1.0, ge=0, le=1, description="Discount a token, for none, greedy and gae.")
    gae_lambda: float = Field(1.0, ge=0, le=1, description="Of the generalised advantage estimate.")
    critic: Critic | None = Field(None, description="The value model, for the advantage gae.")
    policy_loss: Literal["clip", "gspo", "cispo", "reinforce"] = Field(
        "clip", description="clip: PPO's, a token; gspo: a sequence; cispo: clipped weight; reinforce: no ratio."
    )
    clip_low: float = Field(0.2, gt=0, le=1, description="Ratio is clipped below at 1 - clip_low.")
    clip_high: float = Field(0.28, gt=0, description="Ratio is clipped above at 1 + clip_high.")
    dual_clip: float | None = Field(
        None, gt=1, description="Bound of the ratio where the advantage is negative (verl: 3); empty: none."
    )
    aggregation: Literal["token_mean", "sequence_mean", "sequence_sum"] = Field(
        "token_mean", description="Over the global batch; sequence_sum is divided by max_tokens."
    )
    kl_coef: float = Field(0.0, ge=0, description="Weight of the KL to the reference; 0: no reference.")
    kl_probe: int = Field(
        0, ge=0, description="With kl_coef 0: groups a step on which the KL is measured nevertheless."
    )
    kl_in: Literal["loss", "reward"] = Field("loss", description="reward: minus kl_coef times k1 at each token.")
    kl_estimator: Literal["k1", "k2", "k3", "k3+"] = Field(
        "k3", description="Schulman's estimators; k3+: k3's value with k2's gradient. In the reward: k1."
    )
    kl_controller: KlController | None = Field(None, description="Adapts kl_coef; empty: it is fixed.")
    entropy_coef: float = Field(0.0, ge=0, description="Weight of the entropy bonus.")
    importance: Importance | None = Field(
        None, description="Correction of the sampler's log-probs; empty: they are the old ones."
    )
    drop_ratio: float | None = Field(
        None, gt=1, description="An update whose mean ratio is above this is dropped (RLinf: 5); empty: none."
    )
    epochs: int = Field(1, ge=1, description="Passes over a batch of roll-outs.")
    minibatches: int = Field(1, ge=1, description="Updates a pass.")
    tokens_per_microbatch: int = Field(8192, ge=16, description="Memory budget of a forward pass, in tokens.")
    skip_zero_variance: bool = Field(True, description="No forward pass for groups in which every advantage is 0.")
    truncated: Literal["keep", "mask"] = Field("keep", description="mask: responses cut off have no loss.")
    dynamic_sampling: int = Field(
        0,
        ge=0,
        le=64,
        description="Most rounds of sampling until all groups hold right and wrong answers (DAPO); 0: off.",
    )
    prefetch: bool = Field(
        False, description="Sample the next step's rollouts during the update, with the weights from before it."
    )
    curriculum: Curriculum = Curriculum()
    ema: float | None = Field(0.9, gt=0, lt=1, description="Decay of the averaged weights that are evaluated.")
    gradient_checkpointing: bool = Field(False, description="Recompute activations to save memory.")
    min_pass_at_8: float = Field(0.3, ge=0, le=1, description="The SFT model's pass@8 must reach this first.")
    eval_every: int = Field(10, ge=0, description="Dev pass@1 every n steps; 0: only at the end.")
    eval_samples: int = Field(4, ge=1, description="Responses a dev problem.")
    eval_temperature: float = Field(0.7, ge=0, description="Of the dev responses; 0 is greedy.")
    export: Literal["last", "best"] = Field("last", description="best: the weights of the best dev accuracy.")
    checkpoint_every: int = Field(10, ge=1, description="Steps between resume points.")

    @model_validator(mode="after")
    def _fit(self) -> "Rl":
        if self.group_size == 1 and self.advantage in GROUP_RELATIVE:
            raise ValueError(f"group_size must be at least 2 for {self.advantage}: a group of one has no advantage")
        if self.group_size == 1 and self.dynamic_sampling:
            raise ValueError("dynamic_sampling needs group_size of at least 2: one response does not differ")
        if self.prompts_per_step % self.minibatches:
            raise ValueError("prompts_per_step must be a multiple of minibatches")
        if (self.advantage == "gae") != (self.critic is not None):
            raise ValueError("advantage gae and a critic go together: set both, such as critic: {}, or neither")
        if self.critic is not None and self.critic.warmup_steps >= self.steps:
            raise ValueError("critic.warmup_steps must be below steps: the policy would never learn")
        if self.prefetch and self.policy_loss == "reinforce" and self.importance is None:
            raise ValueError(
                "prefetch with policy_loss reinforce needs importance, such as importance: {}: without "
                "a ratio nothing corrects for roll-outs of older weights"
            )
        if self.kl_controller is not None and not self.kl_coef:
            raise ValueError("kl_controller needs kl_coef above 0 to start from")
        if self.kl_coef and self.kl_in == "reward":
            if self.kl_estimator != "k1":
                raise ValueError("kl_in reward needs kl_estimator k1: as a reward the others are biased")
            if self.advantage in OUTCOME_FREE:
                raise ValueError(f"kl_in reward has no effect on advantage {self.advantage}: set kl_in loss")
        if self.dual_clip is not None and self.policy_loss not in ("clip", "gspo"):
            raise ValueError(f"dual_clip has no effect on policy_loss {self.policy_loss}: leave it empty")
        return self


class Controls(Section):
    """Three comparisons that say what RL did."""

    more_sft: bool = Field(True, description="As much time again on more SFT.")
    forced_prefix: str | None = Field("<think>", description="The SFT model's response begun with this.")
    worked_only: bool = Field(True, description="SFT on worked demonstrations alone.")
