"""Sections of the recipes' own stages: sample, dpo, reward_model."""

from typing import Literal

from pydantic import Field

from mathrl.params.lora import Lora
from mathrl.params.section import Section
from mathrl.params.train import LEARNING_RATE, Optimizer


class Sample(Section):
    """Graded samples of a model, and what is made of them."""

    samples: int = Field(8, ge=1, description="Responses a problem.")
    temperature: float = Field(1.0, gt=0, description="Of the samples and of continuations.")
    max_tokens: int = Field(64, ge=1, description="Longest response.")
    max_problems: int | None = Field(None, ge=1, description="A seeded choice of so many problems.")
    per_problem: int = Field(4, ge=1, description="Correct responses kept for imitation a problem, at most.")
    pairs_per_problem: int = Field(2, ge=1, description="Preference pairs a problem, at most.")
    max_length: int | None = Field(None, ge=1, description="Longer responses are not imitated, in tokens.")
    language: Literal["en", "zh"] | None = Field(None, description="Reasoning in this language only.")
    max_repetition: float | None = Field(
        0.2, ge=0, le=1, description="Largest share of repeated n-grams in a response to be imitated."
    )
    continuations: int = Field(
        0, ge=0, description="From the end of each step, to label it (Monte-Carlo); 0: no step labels."
    )
    labelled_per_problem: int = Field(2, ge=1, description="Responses a problem whose steps are labelled.")


class Dpo(Section):
    """Direct preference optimisation (arXiv:2305.18290)."""

    steps: int = Field(60, ge=1, description="Optimizer steps.")
    pairs_per_step: int = Field(64, ge=1, description="Pairs of a global batch.")
    beta: float = Field(0.1, gt=0, description="How closely the policy is held to its start.")
    label_smoothing: float = Field(
        0.0, ge=0, lt=0.5, description="Chance that a pair is the wrong way round (conservative DPO)."
    )
    length_normalised: bool = Field(False, description="Log-ratios a token instead of a response.")
    lr: float = Field(2e-4, ge=0, le=1, description=LEARNING_RATE)
    optimizer: Optimizer = Optimizer(type="adamw")
    lora: Lora | None = Field(None, description="Train low-rank adapters; empty: all weights.")
    dev_share: float = Field(0.1, ge=0, lt=1, description="Share of the problems held out for dev/judged_right.")
    tokens_per_microbatch: int = Field(8192, ge=16, description="Memory budget of a forward pass, in tokens.")
    eval_every: int = Field(20, ge=0, description="Dev figures every n steps; 0: at the end.")
    checkpoint_every: int = Field(20, ge=1, description="Steps between resume points.")


class RewardModel(Section):
    """A reward model of responses (Bradley-Terry, on pairs) or of steps (on Monte-Carlo labels)."""

    steps: int = Field(100, ge=1, description="Optimizer steps.")
    batch: int = Field(64, ge=1, description="Pairs, or responses with labelled steps, of a global batch.")
    lr: float = Field(1e-3, ge=0, le=1, description=LEARNING_RATE)
    optimizer: Optimizer = Optimizer(type="adamw")
    lora: Lora | None = Field(None, description="Train low-rank adapters and the head; empty: all weights.")
    labels: Literal["soft", "hard"] = Field(
        "soft", description="Of a step: the share of correct continuations, or whether any was correct."
    )
    replay: float = Field(0.1, ge=0, le=1, description="Share of the earlier data that is repeated (replay).")
    dev_share: float = Field(0.1, ge=0, lt=1, description="Share of the problems held out for dev/judged_right.")
    tokens_per_microbatch: int = Field(8192, ge=16, description="Memory budget of a forward pass, in tokens.")
    eval_every: int = Field(20, ge=0, description="Dev figures every n steps; 0: at the end.")
    checkpoint_every: int = Field(20, ge=1, description="Steps between resume points.")
