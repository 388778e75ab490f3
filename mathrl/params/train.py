"""Sections of the training stages: sft, rl, and the controls beside them."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from mathrl.params.asynchronous import Asynchronous
from mathrl.params.curriculum import Curriculum
from mathrl.params.kept_rollouts import KeepRollouts
from mathrl.params.lora import Lora
from mathrl.params.section import Section
from mathrl.params.verl import Verl

OptimizerType = Literal["adamw", "muon"]
Schedule = Literal["constant", "linear", "flat_linear", "cosine"]
OPTIMIZER = "adamw: AdamW on every weight; muon: Muon on the hidden matrices, AdamW on the rest."
ADAMW_SCALE = "With type muon: AdamW's learning rate (embeddings, norms, biases, adapters) as a multiple of lr."
SCHEDULE = "Decay of the learning rate after warm-up; flat_linear: constant for the first half, then linear to zero."
WARMUP = "Optimizer steps of linear warm-up."
ENGINE = "Engine that trains: mathrl's own loop, or {} (docs/engines.md has what each can do)."
LEARNING_RATE = "Peak learning rate of every weight; with optimizer.type muon AdamW's is this times adamw_scale."

GradientCheckpointing = Annotated[bool, Field(description="Recompute activations in the backward pass to save memory.")]
MICRO_BATCH = "Tokens per micro-batch: the memory budget of a forward pass."
TokensPerMicrobatch = Annotated[int, Field(ge=16, description=MICRO_BATCH)]


class Optimizer(Section):
    """AdamW on every weight, or Muon on the hidden matrices and AdamW on embeddings, norms, biases and adapters."""

    type: OptimizerType = Field("muon", description=OPTIMIZER)
    adamw_scale: float = Field(0.05, ge=0, description=ADAMW_SCALE)
    beta1: float = Field(0.9, ge=0, lt=1, description="AdamW beta1: decay of the first moment.")
    beta2: float = Field(0.95, ge=0, lt=1, description="AdamW beta2: decay of the second moment.")
    eps: float = Field(1e-8, gt=0, description="AdamW epsilon.")
    weight_decay: float = Field(0.0, ge=0, description="Decoupled weight decay (AdamW, Muon).")
    clip_norm: float | None = Field(1.0, gt=0, description="Maximum gradient norm; null: no clipping.")
    warmup_steps: int = Field(10, ge=0, description=WARMUP)
    schedule: Schedule = Field("linear", description=SCHEDULE)

    def adamw_lr(self, lr: float) -> float:
        """Learning rate of the weights that AdamW trains, where that of the section is `lr`."""
        return lr * self.adamw_scale if self.type == "muon" else lr


class Sft(Section):
    """Supervised fine-tuning on worked solutions of the sft split."""

    engine: Literal["mathrl", "trl"] = Field("mathrl", description=ENGINE.format("trl: TRL's SFTTrainer"))
    steps: int = Field(900, ge=0, description="Optimizer steps; 0 keeps the base model.")
    tokens_per_step: int = Field(2048, ge=16, description="Tokens per global batch.")
    terse_share: float = Field(
        0.5, ge=0, le=1, description="Share of demonstrations reduced to the answer, without reasoning steps."
    )
    call_format: Literal["python_block"] | None = Field(
        None,
        description="Tool calls in demonstrations, whose outputs are read and not learned. python_block: ```output "
        "blocks after ```python blocks; null: every token is learned.",
    )
    lr: float = Field(0.02, ge=0, le=1, description=LEARNING_RATE)
    optimizer: Optimizer = Optimizer(schedule="flat_linear", adamw_scale=0.15)
    lora: Lora | None = Field(None, description="Train low-rank adapters (LoRA); null: train all weights.")
    dropout: bool = Field(
        True, description="Keep the dropout of the model's configuration; always off in RL, DPO and reward models."
    )
    gradient_checkpointing: GradientCheckpointing = False
    tokens_per_microbatch: TokensPerMicrobatch = 8192
    eval_every: int = Field(
        100, ge=0, description="Steps between evaluations of the loss on dev demonstrations; 0: only at the end."
    )
    checkpoint_every: int = Field(100, ge=1, description="Steps between checkpoints.")


class Critic(Section):
    """The value model of PPO: the policy's architecture with one output per token."""

    path: str | None = Field(
        None,
        min_length=1,
        description="Folder of the model that initialises the critic (a reward model or a causal LM); null: the "
        "policy. DVC does not watch it; in a recipe, name a step as the critic instead.",
    )
    lr: float = Field(1e-3, ge=0, le=1, description=LEARNING_RATE)
    optimizer: Optimizer = Optimizer(type="adamw", warmup_steps=0)
    lora: Lora | None = Field(None, description="Train low-rank adapters (LoRA); null: train all weights.")
    clip: float | None = Field(
        0.5, gt=0, description="Value clipping: maximum distance of a value from the old value; null: no clipping."
    )
    warmup_steps: int = Field(0, ge=0, description="Steps at the start in which only the critic is trained.")


class KlController(Section):
    """Adaptive KL coefficient (Ziegler et al.): it rises while the KL is above the target, else it falls."""

    target: float = Field(0.1, gt=0, description="Target KL per token (the metric kl).")
    horizon: float = Field(
        10_000,
        gt=0,
        description="Number of responses over which the coefficient changes by a factor of at most about 1.2.",
    )


class Importance(Section):
    """Importance sampling between trainer and sampler: old log-probs from the trainer, weights for the mismatch."""

    when: Literal["always", "other_engine"] = Field(
        "always", description="other_engine: only where vLLM samples, which computes log-probs in its own way."
    )
    kind: Literal["truncated", "masked"] = Field(
        "truncated", description="truncated: the ratio is capped at high; masked: no loss outside [low, high]."
    )
    level: Literal["token", "sequence"] = Field("token", description="Ratio per token, or per response.")
    low: float = Field(0.5, ge=0, description="Lower bound of the ratio, with kind masked.")
    high: float = Field(2.0, gt=0, description="Upper bound of the ratio.")

    @model_validator(mode="after")
    def _bounds(self) -> "Importance":
        if self.low >= self.high:
            raise ValueError("importance.low must be below importance.high")
        return self


class Ramp(Section):
    """A number that moves linearly over the first steps."""

    start: float = Field(description="Value at the first step.")
    end: float = Field(description="Value after `steps` steps, and from then on.")
    steps: int = Field(ge=1, description="Number of steps from start to end.")

    def at(self, step: int) -> float:
        """The value at the step, counted from 0.

        >>> Ramp(start=1.0, end=0.0, steps=4).at(1)
        0.75
        """
        return self.start + (self.end - self.start) * min(1.0, step / self.steps)


GROUP_RELATIVE = ("group_std", "group_mean", "leave_one_out", "part_std", "max_rl", "pass_at_k", "max_at_k")
SETS = ("pass_at_k", "max_at_k")
OUTCOME_FREE = ("correct", "process", "distillation")


class Rl(Section):
    """Reinforcement learning with verifiable rewards: GRPO and its relatives, REINFORCE, PPO."""

    engine: Literal["mathrl", "trl", "verl"] = Field(
        "mathrl", description=ENGINE.format("trl: TRL's GRPOTrainer, or verl: verl's trainer on Ray")
    )
    verl: Verl = Verl()
    steps: int = Field(60, ge=1, description="Number of training steps, each a rollout and an update.")
    prompts_per_step: int = Field(32, ge=1, description="Prompts per step.")
    group_size: int = Field(16, ge=1, description="Responses per prompt (group size).")
    lr: float = Field(0.01, ge=0, le=1, description=LEARNING_RATE)
    optimizer: Optimizer = Optimizer()
    lora: Lora | None = Field(None, description="Train low-rank adapters (LoRA); null: train all weights.")
    temperature: float = Field(
        1.0,
        ge=0.01,
        description="Sampling temperature of the rollouts; log-probs, KL and entropy are those at this temperature.",
    )
    max_tokens: int = Field(64, ge=1, description="Maximum response length, in tokens.")
    advantage: Literal[
        "group_std",
        "group_mean",
        "leave_one_out",
        "part_std",
        "max_rl",
        "pass_at_k",
        "max_at_k",
        "none",
        "greedy",
        "correct",
        "process",
        "gae",
        "distillation",
    ] = Field(
        "group_std",
        description="group_std: GRPO; group_mean: Dr.GRPO (no division by the std); leave_one_out: RLOO; part_std: "
        "GDPO (each reward part normalised in its group); max_rl: MaxRL (divided by the group's mean); pass_at_k: "
        "pass@k training; max_at_k: policy gradient of pass@k (PKPO); none: REINFORCE (the return); greedy: ReMax "
        "(baseline: the greedy response's reward); correct: online RFT (1 or 0); process: GRPO with process "
        "supervision; gae: PPO (needs a critic); distillation: on-policy distillation (teacher minus policy log-prob).",
    )
    std_ddof: Literal[0, 1] = Field(
        1, description="Delta degrees of freedom of the group std; 1: unbiased. Only for group_std, part_std, process."
    )
    std_eps: float = Field(
        1e-6, ge=0, description="Added to the group std. Only for group_std, part_std, pass_at_k and process."
    )
    step_returns: Literal["sum", "mean"] = Field(
        "sum",
        description="How the scores of the steps that end at or after each token make its advantage; mean does not "
        "grow with their number. Only for advantage process.",
    )
    k: int = Field(4, ge=2, description="Number of responses per set; only for advantage pass_at_k and max_at_k.")
    part_weights: dict[str, float | Ramp] = Field(
        {},
        description="Weights of reward parts for advantage part_std, by name (default 1), instead of the parts' own: a "
        "number, or {start: 1, end: 0, steps: 50}.",
    )
    whiten: bool = Field(
        False, description="Normalise advantages to mean 0 and variance 1 over all tokens of the batch (REINFORCE++)."
    )
    gamma: float = Field(1.0, ge=0, le=1, description="Per-token discount; only for advantage none, greedy and gae.")
    gae_lambda: float = Field(
        1.0, ge=0, le=1, description="Lambda of generalised advantage estimation; only for advantage gae."
    )
    critic: Critic | None = Field(None, description="The value model; needed by advantage gae.")
    policy_loss: Literal["clip", "gspo", "cispo", "reinforce", "sapo", "geo_mean", "dppo_tv", "dppo_kl"] = Field(
        "clip",
        description="clip: per-token PPO clipping; gspo: sequence-level ratio; cispo: clipped importance weight; "
        "reinforce: no ratio; sapo: smooth gate instead of a clip; geo_mean: geometric mean of clipped ratios (GMPO); "
        "dppo_tv, dppo_kl: tokens whose probability moved too far have no loss (DPPO).",
    )
    clip_low: float = Field(
        0.2,
        gt=0,
        le=1,
        description="The ratio is clipped below at 1 - clip_low. geo_mean: its log at -clip_low; dppo_*: largest "
        "divergence of tokens that become less likely.",
    )
    clip_high: float = Field(
        0.28,
        gt=0,
        description="The ratio is clipped above at 1 + clip_high. geo_mean: its log at clip_high; dppo_*: largest "
        "divergence of tokens that become more likely.",
    )
    dual_clip: float | None = Field(
        None,
        gt=1,
        description="Upper bound of the ratio for negative advantages (verl: 3), with dppo_* for all (verl: 20); "
        "null: no bound.",
    )
    sapo_temperatures: tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]] = Field(
        (1.0, 1.05), description="Temperatures of SAPO's gate: for positive and for other advantages."
    )
    log_ratio_penalty: float = Field(
        0.0, ge=0, description="Coefficient of the squared log-ratio per token, a term of the loss (prime-rl: 0.001)."
    )
    aggregation: Literal["token_mean", "sequence_mean", "sequence_sum"] = Field(
        "token_mean",
        description="How token losses of the global batch are averaged; sequence_sum: sums divided by max_tokens.",
    )
    kl_coef: float = Field(0.0, ge=0, description="KL coefficient (to the reference); 0: no reference.")
    kl_probe: int = Field(
        0, ge=0, description="With kl_coef 0: groups per step on which the KL to the reference is still measured."
    )
    kl_in: Literal["loss", "reward"] = Field(
        "loss", description="loss: a term of the loss; reward: minus kl_coef times k1 at each token."
    )
    kl_estimator: Literal["k1", "k2", "k3", "k3+"] = Field(
        "k3",
        description="KL estimator of Schulman; k3+: value of k3, gradient of k2. k1 only with kl_in "
        "reward, which needs it: as a loss its expected gradient is 0.",
    )
    kl_controller: KlController | None = Field(None, description="Adaptive kl_coef; null: fixed.")
    entropy_coef: float = Field(0.0, ge=0, description="Coefficient of the entropy bonus.")
    # A factory: a section given in part is {when: always}, whatever the default has.
    importance: Importance | None = Field(
        default_factory=lambda: Importance(when="other_engine"),
        description="Importance weights for the sampler-trainer mismatch. Empty: where vLLM samples; null: never, the "
        "sampler's log-probs are the old log-probs.",
    )
    drop_ratio: float | None = Field(
        None, gt=1, description="Skip updates whose mean ratio is above this (RLinf: 5); null: skip none."
    )
    epochs: int = Field(1, ge=1, description="Epochs over the rollouts of a step.")
    minibatches: int = Field(1, ge=1, description="Mini-batches (optimizer steps) per epoch over the rollouts.")
    tokens_per_microbatch: TokensPerMicrobatch = 8192
    skip_zero_variance: bool = Field(True, description="Skip the forward pass for groups whose advantages are all 0.")
    truncated: Literal["keep", "mask"] = Field(
        "keep", description="Truncated responses: keep: trained on; mask: excluded from the loss."
    )
    dynamic_sampling: int = Field(
        0,
        ge=0,
        le=64,
        description="Maximum sampling rounds per step until every group has correct and incorrect responses (DAPO); "
        "0: off.",
    )
    prompts_per_round: int | None = Field(
        None,
        ge=1,
        description="With dynamic_sampling: prompts sampled per round (DAPO: three times prompts_per_step); null: "
        "prompts_per_step.",
    )
    asynchronous: Asynchronous | None = Field(
        None, description="Sample while the trainer updates, with weights a little older; null: sample, then train."
    )
    curriculum: Curriculum = Curriculum()
    ema: float | None = Field(
        0.9,
        gt=0,
        lt=1,
        description="Decay of the weights' moving average, which is evaluated and exported; null: no average.",
    )
    gradient_checkpointing: GradientCheckpointing = False
    min_pass_at_8: float = Field(
        0.3, ge=0, le=1, description="Minimum pass@8 of the start model (stage difficulty); below it RL does not start."
    )
    eval_every: int = Field(10, ge=0, description="Steps between dev evaluations (pass@1); 0: only at the end.")
    eval_samples: int = Field(4, ge=1, description="Responses per dev problem.")
    eval_temperature: float = Field(0.7, ge=0, description="Sampling temperature of the dev responses; 0: greedy.")
    export: Literal["last", "best"] = Field("last", description="Weights to export: last, or best by dev accuracy.")
    checkpoint_every: int = Field(10, ge=1, description="Steps between checkpoints.")
    keep_rollouts: KeepRollouts = KeepRollouts()

    @property
    def kept_size(self) -> str:
        """How much the kept rollouts will take at most; empty if none are kept."""
        if self.keep_rollouts.which == "none":
            return ""
        rounds = max(1, self.dynamic_sampling)
        prompts = self.prompts_per_round or self.prompts_per_step if self.dynamic_sampling else self.prompts_per_step
        return self.keep_rollouts.size(self.steps * rounds * prompts * self.group_size, self.max_tokens)

    @model_validator(mode="after")
    def _fit(self) -> "Rl":
        if self.group_size == 1 and self.advantage in GROUP_RELATIVE:
            raise ValueError(f"group_size must be at least 2 for {self.advantage}: a group of one has no advantage")
        if self.group_size == 1 and self.dynamic_sampling:
            raise ValueError("dynamic_sampling needs group_size of at least 2: one response has no variance")
        if self.prompts_per_step % self.minibatches:
            raise ValueError("prompts_per_step must be a multiple of minibatches")
        if (self.advantage == "gae") != (self.critic is not None):
            raise ValueError("advantage gae and a critic go together: set both, such as critic: {}, or neither")
        if self.critic is not None and self.critic.warmup_steps >= self.steps:
            raise ValueError("critic.warmup_steps must be below steps: the policy would never learn")
        weighted = self.importance is not None and self.importance.when == "always"
        older = self.asynchronous is not None and self.asynchronous.staleness > 0
        if older and self.policy_loss == "reinforce" and not weighted:
            raise ValueError(
                "asynchronous with policy_loss reinforce needs importance, such as importance: {}: without "
                "a ratio nothing corrects for rollouts of older weights"
            )
        if self.asynchronous is not None and self.dynamic_sampling:
            raise ValueError(
                "dynamic_sampling fills a step round by round, and asynchronous has no rounds: set dynamic_sampling 0, "
                "and choose problems of middling pass rate with curriculum.order pass_rate or pools"
            )
        if self.kl_controller is not None and not self.kl_coef:
            raise ValueError("kl_controller needs kl_coef above 0 to start from")
        if self.kl_coef and self.kl_in == "loss" and self.kl_estimator == "k1":
            raise ValueError(
                "kl_in loss with kl_estimator k1 has an expected gradient of 0: set kl_estimator k3+ (unbiased), k3 or "
                "k2, or kl_in reward"
            )
        adapters = {"lora": self.lora, "critic.lora": self.critic.lora if self.critic is not None else None}
        for name, lora in adapters.items():
            if lora is not None and lora.dropout:
                raise ValueError(
                    f"{name}.dropout must be 0, and is {lora.dropout:g}: sampling has no dropout, so the update would "
                    "train another policy than the one that sampled; regularise with kl_coef or a smaller lr"
                )
        if self.kl_coef and self.kl_in == "reward":
            if self.kl_estimator != "k1":
                raise ValueError("kl_in reward needs kl_estimator k1: as a reward the others are biased")
            if self.advantage in (*OUTCOME_FREE, "part_std"):
                raise ValueError(f"kl_in reward has no effect on advantage {self.advantage}: set kl_in loss")
            if self.advantage == "max_rl":
                raise ValueError("advantage max_rl needs rewards of at least 0, which a KL lowers: set kl_in loss")
        if self.advantage in SETS and self.k > self.group_size:
            raise ValueError(f"k must be at most group_size = {self.group_size}: a set has k of a group's responses")
        adaptive = self.curriculum.adaptive
        if adaptive is not None and self.advantage == "part_std":
            raise ValueError(
                "curriculum.adaptive makes groups of different sizes, which advantage part_std cannot take"
            )
        if adaptive is not None and self.advantage in SETS and self.k > adaptive.least:
            raise ValueError(
                f"curriculum.adaptive.least must be at least k = {self.k}: a set has k of a group's responses"
            )
        if self.dual_clip is not None and self.policy_loss not in ("clip", "gspo", "dppo_tv", "dppo_kl"):
            raise ValueError(f"dual_clip has no effect on policy_loss {self.policy_loss}: leave it empty")
        return self

    def at_step(self, step: int) -> "Rl":
        """The settings at a step, counted from 0: every ramp has its value."""
        weights = {
            n: weight.at(step) if isinstance(weight, Ramp) else weight for n, weight in self.part_weights.items()
        }
        return self.model_copy(update={"part_weights": weights})


class Controls(Section):
    """Control runs to compare RL with."""

    more_sft: bool = Field(True, description="Control: SFT for as much computation as RL took.")
    forced_prefix: str | None = Field(
        "<think>", description="Control: responses of the SFT model must start with this text; null: no such control."
    )
    worked_only: bool = Field(True, description="Control: SFT on demonstrations with reasoning steps only.")
