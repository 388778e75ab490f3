"""All sections. A section is one file, params/<section>.yaml; a stage's section has the stage's name."""

from collections.abc import Iterable
from typing import Any

from pydantic import Field

from mathrl.params.data import Curate, Difficulty, Mix
from mathrl.params.evaluate import Evaluate, Register
from mathrl.params.pages import Pages
from mathrl.params.rollout import Rollout
from mathrl.params.run import Model, Prompt, Reward, Run
from mathrl.params.section import Section
from mathrl.params.sweep import Sweep
from mathrl.params.train import Controls, Dpo, RewardModel, Rl, Sample, Sft
from mathrl.params.training import Health, Training, Verl

# Stages by name, with the sections that each reads: its parameter dependencies in dvc.yaml (a test compares them) and
# the form of its flow. First the pipeline, in the order in which its stages run.
PIPELINE: dict[str, tuple[str, ...]] = {
    "curate": ("run", "curate"),
    "sft": ("run", "model", "prompt", "training", "sft", "health"),
    "difficulty": ("run", "model", "prompt", "reward", "rollout", "difficulty"),
    "mix": ("run", "mix"),
    "rl": ("run", "model", "prompt", "reward", "rollout", "training", "rl", "health"),
    "evaluate": ("run", "model", "prompt", "rollout", "evaluate"),
    "register": ("register",),
}
# Stages that only recipes have.
RECIPE_STAGES: dict[str, tuple[str, ...]] = {
    "base": ("run", "model"),
    "sample": ("run", "model", "prompt", "reward", "rollout", "sample"),
    "dpo": ("run", "model", "prompt", "training", "dpo"),
    "reward_model": ("run", "model", "prompt", "training", "reward_model"),
    "process_reward_model": ("run", "model", "prompt", "reward", "training", "reward_model"),
    "summary": ("run", "evaluate"),
    "pages": ("run", "pages"),
}
STAGES = tuple(PIPELINE)
SAMPLING = ("difficulty", "rl", "sample", "evaluate")  # stages whose section has the maximum length of a response
READS = PIPELINE | RECIPE_STAGES
TARGETS = (*STAGES, "pipeline")  # what `mathrl run` brings up to date


class Params(Section):
    """Every parameter of a run."""

    run: Run = Field(default_factory=Run)
    model: Model = Field(default_factory=Model)
    prompt: Prompt = Field(default_factory=Prompt)
    reward: Reward = Field(default_factory=Reward)
    rollout: Rollout = Field(default_factory=Rollout)
    training: Training = Field(default_factory=Training)
    curate: Curate
    sft: Sft = Field(default_factory=Sft)
    difficulty: Difficulty = Field(default_factory=Difficulty)
    mix: Mix
    rl: Rl = Field(default_factory=Rl)
    health: Health = Field(default_factory=Health)
    sample: Sample = Field(default_factory=Sample)
    dpo: Dpo = Field(default_factory=Dpo)
    reward_model: RewardModel = Field(default_factory=RewardModel)
    evaluate: Evaluate = Field(default_factory=Evaluate)
    register_: Register = Field(default_factory=Register, alias="register")
    pages: Pages = Field(default_factory=Pages)
    controls: Controls = Field(default_factory=Controls)
    sweep: Sweep = Field(default_factory=Sweep)


SECTIONS: dict[str, Any] = {field.alias or name: field.annotation for name, field in Params.model_fields.items()}


def stages_until(target: str) -> tuple[str, ...]:
    """The stages that bring `target` up to date, in their order: all that come before it, and itself.

    >>> stages_until("difficulty")
    ('curate', 'sft', 'difficulty')
    """
    return STAGES if target == "pipeline" else STAGES[: STAGES.index(target) + 1]


def trains(stage: str, params: Params) -> bool:
    """Whether the stage has a learner; SFT of no steps hands the base model on."""
    return "training" in READS[stage] and not (stage == "sft" and params.sft.steps == 0)


def hands_over(stage: str, params: Params) -> bool:
    """Whether the stage trains in processes that it does not start as its ranks: verl has its own, on Ray."""
    return stage == "rl" and isinstance(params.rl.engine, Verl)


def sections_read(stages: Iterable[str]) -> list[str]:
    """The sections that the stages read, in the order of `Params`.

    >>> sections_read(["curate", "mix"])
    ['run', 'curate', 'mix']
    """
    read = {section for stage in stages for section in READS[stage]}
    return [name for name in SECTIONS if name in read]
