"""Sections of the training stages: sft, rl, and the controls beside them.

Sections of the recipes' own stages: sample, dpo, reward_model.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from mathrl.params.advantage import Advantage, Critic, DrGrpo, Gae, Gdpo, Grpo, MaxRl, Rloo
from mathrl.params.curriculum import AdaptiveSamples, Curriculum, PoolCurriculum, Shuffled
from mathrl.params.imitation import Imitation, Luffy, OwnRight, SftTerm, Solutions
from mathrl.params.loss import Gmpo, Gspo, Importance, Kl, KlProbe, Loss, PpoClip, ReinforceLoss, RewardKl, Truncated
from mathrl.params.optimizer import AdamW, Adapters, Lora, Optimizer
from mathrl.params.responses import DynamicSampling, KeepRollouts, ResponseFilter
from mathrl.params.run import RemoteModel
from mathrl.params.schedules import Schedules
from mathrl.params.section import Section, types_help
from mathrl.params.training import MathRl, RlEngine, SftEngine

MOST_STALENESS = 8
SEGMENTS, SHORTEST_SEGMENT = 4, 16  # of a response of full length; tokens


class Asynchronous(Section):
    """Sampler and trainer at the same time: groups go to the trainer as they end (docs/how_to/asynchronous.md)."""

    staleness: int = Field(
        1,
        ge=0,
        le=MOST_STALENESS,
        description="Maximum number of weight versions (one per step) that a trained token is behind; older groups are "
        "dropped and sampled again. 0: sampler and trainer take turns, with the bits of a run without this section.",
    )
    pace: Literal["free", "continuous", "fixed"] = Field(
        "free",
        description="free: the sampler goes on at its own speed, and responses go on over weight updates; continuous: "
        "so, and responses begin as others end, weights arrive between two tokens, and grading has a thread of its own "
        "(torch engine); fixed: one round of whole responses per step, staleness steps ahead, so that two runs are "
        "equal to the bit.",
    )
    segment_tokens: int | None = Field(
        None,
        ge=1,
        description="With pace free: tokens by which responses grow before the sampler takes new weights; null: a "
        "quarter of max_tokens, at least 16.",
    )
    replay: str | None = Field(
        None,
        min_length=1,
        description="Log of events (events.jsonl) of an earlier run to repeat to the bit; DVC does not watch it.",
    )

    @model_validator(mode="after")
    def _fit(self) -> "Asynchronous":
        if self.pace == "fixed" and self.replay is not None:
            raise ValueError("replay repeats what happened at pace free: leave it out, pace fixed repeats itself")
        if self.pace == "continuous" and not self.staleness:
            raise ValueError("pace continuous needs staleness of at least 1: with 0 sampler and trainer take turns")
        if self.segment_tokens is not None and (self.pace != "free" or not self.staleness):
            raise ValueError("segment_tokens needs pace free and staleness of at least 1: else responses are whole")
        return self

    def segment(self, max_tokens: int) -> int:
        """Tokens by which responses of up to `max_tokens` grow between two looks for new weights.

        >>> Asynchronous().segment(1024), Asynchronous().segment(40), Asynchronous(pace="fixed").segment(1024)
        (256, 16, 1024)
        """
        if self.pace == "fixed" or not self.staleness:
            return max_tokens
        return min(max_tokens, self.segment_tokens or max(SHORTEST_SEGMENT, -(-max_tokens // SEGMENTS)))


ENGINE = "Engine that trains: mathrl's own loop, or {} (docs/reference/engines.md has what each can do)."

GradientCheckpointing = Annotated[bool, Field(description="Recompute activations in the backward pass to save memory.")]
MICRO_BATCH = "Tokens per micro-batch: the memory budget of a forward pass."
TokensPerMicrobatch = Annotated[int, Field(ge=16, description=MICRO_BATCH)]


class Sft(Section):
    """Supervised fine-tuning on worked solutions of the sft split."""

    engine: SftEngine = Field(MathRl(), description=ENGINE.format("trl: TRL's SFTTrainer"))
    steps: int = Field(0, ge=0, description="Optimizer steps; 0 keeps the base model.")
    tokens_per_step: int = Field(16384, ge=16, description="Tokens per global batch.")
    terse_share: float = Field(
        0.0, ge=0, le=1, description="Share of demonstrations reduced to the answer, without reasoning steps."
    )
    call_format: Literal["python_block"] | None = Field(
        None,
        description="Tool calls in demonstrations, whose outputs are read and not learned. python_block: ```output "
        "blocks after ```python blocks; null: every token is learned.",
    )
    # The rate of verl's SFT trainer; Tulu 3 (arXiv:2411.15124) takes 5e-6 at 8B.
    optimizer: Optimizer = Field(AdamW(lr=1e-5, schedule="cosine"), description=types_help(Optimizer))
    lora: Lora | None = Field(None, description="Train low-rank adapters (LoRA); null: train all weights.")
    dropout: bool = Field(
        True, description="Keep the dropout of the model's configuration; always off in RL, DPO and reward models."
    )
    gradient_checkpointing: GradientCheckpointing = True
    tokens_per_microbatch: TokensPerMicrobatch = 8192
    eval_every: int = Field(
        100, ge=0, description="Steps between evaluations of the loss on dev demonstrations; 0: only at the end."
    )
    checkpoint_every: int = Field(100, ge=1, description="Steps between checkpoints.")


class Dev(Section):
    """Evaluation on the dev split during RL (pass@1), and which weights it chooses."""

    every: int = Field(10, ge=0, description="Steps between dev evaluations; 0: only at the end.")
    samples: int = Field(4, ge=1, description="Responses per dev problem.")
    temperature: float = Field(0.7, ge=0, description="Sampling temperature of the dev responses; 0: greedy.")
    export: Literal["last", "best"] = Field("last", description="Weights to export: last, or best by dev accuracy.")


class EvalBenchmark(Section):
    """A benchmark that is measured during RL, with the temperature of rl.dev and the lengths of the rollouts."""

    name: str = Field(min_length=1, description="Benchmark, as in evaluate.benchmarks; $MATHRL_DATA has its files.")
    every: int = Field(10, ge=0, description="Steps between its evaluations; 0: only at the end.")
    samples: int = Field(1, ge=1, description="Responses per problem.")
    limit: int | None = Field(200, ge=1, description="Maximum number of problems (seeded choice); null: all.")


class Rl(Section):
    """Reinforcement learning with verifiable rewards: GRPO and its relatives, REINFORCE, PPO."""

    engine: RlEngine = Field(
        MathRl(), description=ENGINE.format("trl: TRL's GRPOTrainer, or verl: verl's trainer on Ray")
    )
    steps: int = Field(100, ge=1, description="Number of training steps, each a rollout and an update.")
    # verl trains GSM8K with 128 prompts on one GPU of 24 GB; DeepSeekMath and DAPO take 16 x 64 and 512 x 16 responses.
    prompts_per_step: int = Field(128, ge=1, description="Prompts per step.")
    group_size: int = Field(8, ge=1, description="Responses per prompt (group size).")
    max_tokens: int = Field(1024, ge=1, description="Maximum response length, in tokens.")
    temperature: float = Field(
        1.0,
        ge=0.01,
        description="Sampling temperature of the rollouts; log-probs, KL and entropy are those at this temperature.",
    )
    epochs: int = Field(1, ge=1, description="Epochs over the rollouts of a step.")
    minibatches: int = Field(1, ge=1, description="Mini-batches (optimizer steps) per epoch over the rollouts.")
    # DeepSeekMath (arXiv:2402.03300) at 7B, DAPO (arXiv:2503.14476) at 32B and verl at 0.5B.
    optimizer: Optimizer = Field(
        AdamW(lr=1e-6, beta2=0.999, weight_decay=0.01, warmup_steps=5, schedule="constant"),
        description=types_help(Optimizer),
    )
    lora: Adapters | None = Field(None, description="Train low-rank adapters (LoRA); null: train all weights.")
    advantage: Advantage = Field(Grpo(), description=types_help(Advantage))
    loss: Loss = Field(PpoClip(), description=types_help(Loss))
    kl: Kl | None = Field(None, description=types_help(Kl, "KL to the reference; null: none, no reference. "))
    imitation: Imitation | None = Field(
        None, description=types_help(Imitation, "What is imitated beside the advantages; null: nothing. ")
    )
    # A factory: a section given in part is {when: always}, whatever the default has.
    importance: Importance | None = Field(
        default_factory=lambda: Truncated(when="other_engine"),
        description="Importance weights for the sampler-trainer mismatch: old log-probs from the trainer. Empty: where "
        "vLLM samples; null: never, the sampler's log-probs are the old log-probs.",
    )
    truncated: Literal["keep", "mask"] = Field(
        "keep", description="Truncated responses: keep: trained on; mask: excluded from the loss."
    )
    filters: tuple[ResponseFilter, ...] = Field(
        (), description="Responses that are graded and not trained on, such as [{type: gibberish}]; first match counts."
    )
    dynamic_sampling: DynamicSampling | None = Field(
        None, description="Sample until every group has correct and incorrect responses (DAPO); null: one round."
    )
    asynchronous: Asynchronous | None = Field(
        None, description="Sample while the trainer updates, with weights a little older; null: sample, then train."
    )
    schedules: Schedules | None = Field(None, description="Settings that move over the steps; null: none.")
    curriculum: Curriculum = Field(Shuffled(), description=types_help(Curriculum, "Order of the problems. "))
    ema: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Decay of the weights' moving average, which is evaluated and exported; null: no average.",
    )
    tokens_per_microbatch: TokensPerMicrobatch = 8192
    gradient_checkpointing: GradientCheckpointing = True
    dev: Dev = Dev()
    eval_benchmarks: tuple[EvalBenchmark, ...] = Field(
        (), description="Benchmarks measured beside dev, such as {name: math500, every: 20}; they choose nothing."
    )
    min_pass_at_8: float = Field(
        0.3, ge=0, le=1, description="Minimum pass@8 of the start model (stage difficulty); below it RL does not start."
    )
    checkpoint_every: int = Field(10, ge=1, description="Steps between checkpoints.")
    keep_rollouts: KeepRollouts = KeepRollouts()

    @property
    def kept_size(self) -> str:
        """How much the kept rollouts will take at most; empty if none are kept."""
        if self.keep_rollouts.which == "none":
            return ""
        prompts = self.prompts_per_step
        if self.dynamic_sampling is not None:
            prompts = self.dynamic_sampling.rounds * (self.dynamic_sampling.prompts_per_round or prompts)
        return self.keep_rollouts.size(self.steps * prompts * self.group_size, self.max_tokens)

    @property
    def spare_prompts(self) -> int:
        """Prompts that an asynchronous run has at hand in the place of those whose groups are uniform."""
        return 0 if self.dynamic_sampling is None else self.dynamic_sampling.spare(self.prompts_per_step)

    @property
    def kl_coef(self) -> float:
        """The coefficient at the start of a KL that is trained with; 0: there is none."""
        return 0.0 if self.kl is None or isinstance(self.kl, KlProbe) else self.kl.coef

    @property
    def needs_reference(self) -> bool:
        """Whether the KL to a reference is trained with, or measured."""
        return bool(self.kl_coef) or isinstance(self.kl, KlProbe)

    @property
    def critic(self) -> Critic | None:
        """The settings of the value model; None where the advantage needs none."""
        return self.advantage.critic if isinstance(self.advantage, Gae) else None

    @property
    def adaptive(self) -> AdaptiveSamples | None:
        """How many responses which prompts get (`AdaptiveSamples`); None: group_size each."""
        return self.curriculum.adaptive if isinstance(self.curriculum, PoolCurriculum) else None

    def at_step(self, step: int) -> "Rl":
        """The settings at a step, counted from 0: every ramp and schedule has its value."""
        changes = self.schedules.changes(self, step) if self.schedules is not None else {}
        if isinstance(self.advantage, Gdpo):
            changes["advantage"] = self.advantage.at_step(step)
        if isinstance(self.imitation, SftTerm):
            changes["imitation"] = self.imitation.at_step(step)
        return self.model_copy(update=changes) if changes else self

    @model_validator(mode="after")
    def _groups(self) -> "Rl":
        advantage, adaptive = self.advantage, self.adaptive
        if self.group_size < advantage.set_size:
            why = "a group of one has no advantage" if self.group_size == 1 else "a set has k of a group's responses"
            raise ValueError(f"group_size must be at least {advantage.set_size} for advantage {advantage.type}: {why}")
        if self.group_size == 1 and self.dynamic_sampling is not None:
            raise ValueError("dynamic_sampling needs group_size of at least 2: one response has no variance")
        if adaptive is not None and isinstance(advantage, Gdpo):
            raise ValueError("curriculum.adaptive makes groups of different sizes, which advantage gdpo cannot take")
        if adaptive is not None and advantage.set_size > adaptive.least:
            raise ValueError(
                f"curriculum.adaptive.least must be at least {advantage.set_size}: a set has k of a group's responses"
            )
        return self

    @model_validator(mode="after")
    def _counts(self) -> "Rl":
        if self.prompts_per_step % self.minibatches:
            raise ValueError("prompts_per_step must be a multiple of minibatches")
        if self.critic is not None and self.critic.warmup_steps >= self.steps:
            raise ValueError("advantage.critic.warmup_steps must be below steps: the policy would never learn")
        return self

    @model_validator(mode="after")
    def _rewards_with_kl(self) -> "Rl":
        if self.lora is not None and getattr(self.kl, "reset_every", None) is not None:
            raise ValueError(
                "kl.reset_every needs a reference of its own, and with lora it is the start: set lora null"
            )
        if isinstance(self.kl, RewardKl) and self.kl.coef:
            if not self.advantage.from_rewards:
                raise ValueError(f"kl.type reward has no effect on advantage {self.advantage.type}: set kl.type loss")
            if isinstance(self.advantage, MaxRl):
                raise ValueError("advantage max_rl needs rewards of at least 0, which a KL lowers: set kl.type loss")
        return self

    @model_validator(mode="after")
    def _experts(self) -> "Rl":
        if self.imitation is None or isinstance(self.imitation, OwnRight | Solutions):
            return self
        if not isinstance(self.advantage, Grpo | DrGrpo | Rloo):
            raise ValueError(
                f"imitation {self.imitation.type} needs advantage grpo, dr_grpo or rloo, not {self.advantage.type}"
            )
        if isinstance(self.imitation, Luffy) and isinstance(self.kl, RewardKl):
            raise ValueError("imitation luffy compares rewards without a KL: set kl.type loss, or kl null")
        if isinstance(self.imitation, Luffy) and isinstance(self.loss, Gspo | Gmpo):
            raise ValueError(f"imitation luffy needs a loss per token, not {self.loss.type}, such as clip")
        return self

    @model_validator(mode="after")
    def _fit_loss_and_schedules(self) -> "Rl":
        scheduled = next(self.schedules.problems(self), "") if self.schedules is not None else ""
        if problem := self.loss.conflict(self.advantage, self.imitation) or scheduled:
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _older_rollouts(self) -> "Rl":
        weighted = self.importance is not None and self.importance.when == "always"
        older = self.asynchronous is not None and self.asynchronous.staleness > 0
        if older and isinstance(self.loss, ReinforceLoss) and not weighted:
            raise ValueError(
                "asynchronous with loss reinforce needs importance, such as importance: {}: without a ratio nothing "
                "corrects for rollouts of older weights"
            )
        fixed = self.asynchronous is not None and self.asynchronous.pace == "fixed"
        if fixed and self.dynamic_sampling is not None:
            raise ValueError(
                "dynamic_sampling samples until a step is full, and asynchronous.pace fixed one round per step: set "
                "asynchronous.pace free, or dynamic_sampling null"
            )
        return self


class Controls(Section):
    """Control runs to compare RL with."""

    forced_prefix: str | None = Field(
        None, description="Control: responses of the start must begin with this text; null: no such control."
    )


class Sample(Section):
    """Graded samples of a model: responses to imitate, preference pairs, labels of reasoning steps."""

    samples: int = Field(8, ge=1, description="Responses per problem.")
    temperature: float = Field(1.0, gt=0, description="Sampling temperature of responses and continuations.")
    max_tokens: int = Field(1024, ge=1, description="Maximum response length, in tokens.")
    max_problems: int | None = Field(None, ge=1, description="Maximum number of problems (seeded choice); null: all.")
    per_problem: int = Field(4, ge=1, description="Maximum number of correct responses per problem kept for imitation.")
    pairs_per_problem: int = Field(2, ge=1, description="Maximum number of preference pairs per problem.")
    max_length: int | None = Field(
        None, ge=1, description="Maximum length of a response to imitate, in tokens; null: no limit."
    )
    language: Literal["en", "zh"] | None = Field(
        None, description="Imitate only responses that reason in this language; null: any."
    )
    max_repetition: float | None = Field(
        0.2, ge=0, le=1, description="Maximum share of repeated n-grams in a response to imitate; null: no limit."
    )
    teacher: RemoteModel | None = Field(
        None, description="Sample from the model at this endpoint in place of the step's start; null: the start."
    )
    continuations: int = Field(
        0,
        ge=0,
        description="Continuations sampled from the end of each step to label it (Monte-Carlo); 0: no step labels.",
    )
    labelled_per_problem: int = Field(2, ge=1, description="Responses per problem whose steps are labelled.")

    @model_validator(mode="after")
    def _teacher_writes_whole_responses(self) -> "Sample":
        if self.teacher is not None and self.continuations:
            raise ValueError(
                "continuations go on from the middle of a response, which an endpoint cannot: set them to 0"
            )
        return self


class Dpo(Section):
    """Direct preference optimisation (arXiv:2305.18290)."""

    steps: int = Field(60, ge=1, description="Optimizer steps.")
    pairs_per_step: int = Field(64, ge=1, description="Preference pairs per optimizer step.")
    beta: float = Field(0.1, gt=0, description="DPO beta: strength of the pull towards the reference.")
    label_smoothing: float = Field(
        0.0, ge=0, lt=0.5, description="Assumed probability that a pair is mislabelled (conservative DPO)."
    )
    length_normalised: bool = Field(
        False, description="Divide log-ratios by the response length (mean per token instead of sum)."
    )
    # Tulu 3 (arXiv:2411.15124) at 8B.
    optimizer: Optimizer = Field(AdamW(lr=5e-7), description=types_help(Optimizer))
    lora: Lora | None = Field(None, description="Train low-rank adapters (LoRA); null: train all weights.")
    dev_share: float = Field(0.1, ge=0, lt=1, description="Share of the problems held out to measure dev/judged_right.")
    tokens_per_microbatch: TokensPerMicrobatch = 8192
    eval_every: int = Field(20, ge=0, description="Steps between dev evaluations; 0: only at the end.")
    checkpoint_every: int = Field(20, ge=1, description="Steps between checkpoints.")


class RewardModel(Section):
    """A reward model of responses (Bradley-Terry, on pairs) or of steps (on Monte-Carlo labels)."""

    steps: int = Field(100, ge=1, description="Optimizer steps.")
    batch: int = Field(64, ge=1, description="Pairs, or responses with labelled steps, per optimizer step.")
    # InstructGPT (arXiv:2203.02155), appendix C.
    optimizer: Optimizer = Field(AdamW(lr=1e-5), description=types_help(Optimizer))
    lora: Lora | None = Field(None, description="Train low-rank adapters (LoRA) and the head; null: train all weights.")
    labels: Literal["soft", "hard"] = Field(
        "soft", description="Label of a step: soft: share of correct continuations; hard: whether any was correct."
    )
    replay: float = Field(0.1, ge=0, le=1, description="Share of the rows of earlier sample steps to train on again.")
    dev_share: float = Field(0.1, ge=0, lt=1, description="Share of the problems held out to measure dev/judged_right.")
    tokens_per_microbatch: TokensPerMicrobatch = 8192
    eval_every: int = Field(20, ge=0, description="Steps between dev evaluations; 0: only at the end.")
    checkpoint_every: int = Field(20, ge=1, description="Steps between checkpoints.")
