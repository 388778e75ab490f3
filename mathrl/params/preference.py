"""Sections of the recipes' own stages: sample, dpo, reward_model."""

from typing import Literal

from pydantic import Field

from mathrl.params.lora import Lora
from mathrl.params.optimizer import OPTIMIZER, AdamW, Optimizer
from mathrl.params.section import Section
from mathrl.params.train import TokensPerMicrobatch


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
    continuations: int = Field(
        0,
        ge=0,
        description="Continuations sampled from the end of each step to label it (Monte-Carlo); 0: no step labels.",
    )
    labelled_per_problem: int = Field(2, ge=1, description="Responses per problem whose steps are labelled.")


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
    optimizer: Optimizer = Field(AdamW(lr=5e-7), description=OPTIMIZER)
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
    optimizer: Optimizer = Field(AdamW(lr=1e-5), description=OPTIMIZER)
    lora: Lora | None = Field(None, description="Train low-rank adapters (LoRA) and the head; null: train all weights.")
    labels: Literal["soft", "hard"] = Field(
        "soft", description="Label of a step: soft: share of correct continuations; hard: whether any was correct."
    )
    replay: float = Field(0.1, ge=0, le=1, description="Share of the rows of earlier sample steps to train on again.")
    dev_share: float = Field(0.1, ge=0, lt=1, description="Share of the problems held out to measure dev/judged_right.")
    tokens_per_microbatch: TokensPerMicrobatch = 8192
    eval_every: int = Field(20, ge=0, description="Steps between dev evaluations; 0: only at the end.")
    checkpoint_every: int = Field(20, ge=1, description="Steps between checkpoints.")
