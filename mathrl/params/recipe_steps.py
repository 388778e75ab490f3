"""The file of a recipe: its steps, each with the models and data that it starts from."""

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from mathrl.params.evaluate import Word
from mathrl.params.section import Section

SPLITS = ("sft", "rl")  # dev and test are never trained on
POLICIES = ("base", "sft", "rl", "dpo")
Names = tuple[str, ...]
START = "Step whose model this step starts from, or base."
DEFAULT = "default"  # the recipe of the pipeline
PIPELINE_MODELS = ("models/base", "models/sft", "models/rl")
# What the pipeline makes and steps of a recipe may take up, by its path: models, data, pass rates, the evaluation.
PIPELINE_OUTPUTS = (*PIPELINE_MODELS, "data/curated", "data/difficulty", "data/mixture", "reports/evaluate")


class _Step(Section):
    set: Names = Field(
        (),
        description="Dotted overrides of params/ for this step; they win over the recipe's. "
        "rl.optimizer.lr={times: 0.5} is half of what params/, the preset and the overrides before it say.",
    )
    set_fresh: Names = Field(
        (), description="Further overrides for a model of random weights alone (model.base.type fresh)."
    )


class OnProblems(_Step):
    curated: str | None = Field(
        None, description="Curate step whose splits this step reads; null: the recipe's, else data/curated."
    )


class BaseStep(OnProblems):
    """The base model of params/model.yaml; a recipe has a step of this name if another starts from it.

    It reads the sft split for a BPE tokenizer alone.
    """

    stage: Literal["base"] = "base"


class CurateStep(_Step):
    """Splits of this recipe alone; computed once, not once per seed."""

    stage: Literal["curate"]


class SftStep(OnProblems):
    """Supervised fine-tuning on splits and on the responses that sample steps kept."""

    stage: Literal["sft"]
    start: str = Field("base", description=START)
    data: Names = Field(("sft",), min_length=1, description="Data to train on: splits or sample steps.")


class DifficultyStep(OnProblems):
    """Pass rates of a model on a split."""

    stage: Literal["difficulty"]
    start: str = Field(description=START)
    data: str = Field("rl", description="Split whose problems are measured.")


class MixStep(OnProblems):
    """A training set that stage mix composes by pass rates."""

    stage: Literal["mix"]
    difficulty: str = Field(description="Difficulty step with the pass rates.")
    data: str = Field("rl", description="Split to choose problems from.")


class RlStep(OnProblems):
    """Reinforcement learning on splits or mixtures."""

    stage: Literal["rl"]
    start: str = Field(description=START)
    data: Names = Field(("rl",), min_length=1, description="Problems to train on: splits or mix steps.")
    difficulty: str | None = Field(None, description="Difficulty step whose pass@8 must reach rl.min_pass_at_8.")
    reward_model: str | None = Field(None, description="Reward model step whose scores replace the rule-based rewards.")
    process_reward_model: str | None = Field(
        None, description="Process reward model step that scores every reasoning step."
    )
    critic: str | None = Field(None, description="Step whose model initialises the critic (rl.advantage.critic.path).")
    reference: str | None = Field(None, description="Step whose model is the KL's reference; null: the start.")
    teacher: str | None = Field(None, description="Step whose model is the teacher of on-policy distillation.")

    @field_validator("teacher")
    @classmethod
    def _is_a_folder(cls, teacher: str | None) -> str | None:
        if teacher is not None and "://" in teacher:
            raise ValueError(
                f"{teacher} is an endpoint, and a teacher of on-policy distillation is a step or a model folder, whose "
                "probabilities of many tokens mathrl reads itself: learn from an endpoint's samples by sample.teacher"
            )
        return teacher


class SampleStep(OnProblems):
    """Graded samples of a model: responses to imitate, preference pairs, labels of reasoning steps."""

    stage: Literal["sample"]
    start: str = Field(description=START)
    data: Names = Field(("rl",), min_length=1, description="Problems to sample: splits or mix steps.")


class DpoStep(_Step):
    """Direct preference optimisation on the pairs of sample steps."""

    stage: Literal["dpo"]
    start: str = Field(description=START)
    data: Names = Field(min_length=1, description="Sample steps with the pairs.")


class RewardModelStep(_Step):
    """A reward model: of responses, trained on pairs, or of reasoning steps, trained on Monte-Carlo labels."""

    stage: Literal["reward_model", "process_reward_model"]
    start: str = Field(description="Step whose model this step starts from; a reward model is trained further.")
    data: Names = Field(min_length=1, description="Sample steps with the pairs, or with the labelled steps.")
    replay: Names = Field((), description="Earlier sample steps; the share reward_model.replay of their rows is added.")


class EvaluateStep(OnProblems):
    """Evaluation of models on held-out problems."""

    stage: Literal["evaluate"]
    models: Names = Field(
        min_length=1, description="Steps whose models are evaluated; base may be one of them, or a model's folder."
    )
    benchmarks: tuple[Word, ...] = Field(
        (),
        description="Benchmarks, as in evaluate.benchmarks; each model is evaluated on each in a step of its own, so "
        "that a further one reruns none. Empty: one step for all models, on evaluate.benchmarks.",
    )


class RegisterStep(_Step):
    """The model as a version in MLflow's registry; a step of the pipeline alone."""

    stage: Literal["register"]
    model: str = Field(description="Step whose model is registered.")
    evaluation: str = Field(description="Evaluate step that says how good it is.")


class PagesStep(_Step):
    """Mathematical pages out of the corpus of params/pages.yaml."""

    stage: Literal["pages"]


Step = Annotated[
    BaseStep
    | CurateStep
    | SftStep
    | DifficultyStep
    | MixStep
    | RlStep
    | SampleStep
    | DpoStep
    | RewardModelStep
    | EvaluateStep
    | RegisterStep
    | PagesStep,
    Field(discriminator="stage"),
]


class Claim(Section):
    """A claim that the recipe tests against controls: that training turned `start` into the better `model`.

    Every other model of the evaluations is a control, compared with both (mathrl/evaluation/claim.py).
    """

    start: str = Field(description="Step whose model the training began with.")
    model: str = Field(description="Step whose model is claimed to be better.")
    evaluations: Names = Field(
        min_length=1,
        description="Evaluate steps: the first has start, model and controls; a further one of a single model is a "
        "control by its step's name.",
    )
    apart: Names = Field((), description="Models of the evaluations that are no controls, such as the start's base.")


PRODUCES = {
    "a model": POLICIES,
    "a reward model": ("reward_model",),
    "a process reward model": ("process_reward_model",),
    "pass rates": ("difficulty",),
    "splits": ("curate",),
    "samples": ("sample",),
    "a mixture": ("mix",),
    "an evaluation": ("evaluate",),
}
STEP_STAGES = (*chain.from_iterable(PRODUCES.values()), "pages")  # that any recipe may have


class Recipe(Section):
    """Ordered steps; each names the models and data that it starts from.

    Example:
        Recipe(description="SFT, then RL", steps={"sft": SftStep(stage="sft"), "rl": RlStep(stage="rl",
               start="sft"), "test": EvaluateStep(stage="evaluate", models=("sft", "rl"))})
    """

    description: str = Field(min_length=1, description="One line for the list of recipes.")
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (), description="Seeds; every step runs once per seed. Empty: once, with run.seed of params/."
    )
    set: Names = Field((), description="Dotted overrides of params/ for every step.")
    set_fresh: Names = Field(
        (), description="Further overrides for a model of random weights alone (model.base.type fresh)."
    )
    overrides: Names = Field(
        (), description="Overrides of `mathrl recipe --set`; they win over those of the recipe and its steps."
    )
    curated: str | None = Field(None, description="Curate step whose splits the steps read; null: data/curated.")
    claim: Claim | None = Field(None, description="A claim to test against controls, over all seeds; null: none.")
    steps: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")], Step] = Field(
        min_length=1, description="Steps by name, each with its stage."
    )


def single_evaluations(name: str, step: Any) -> Iterator[tuple[str, Any, Names]]:
    """The steps that a step stands for, each with its name and overrides: itself, or where an evaluation has benchmarks
    one for each of them and each model.

    >>> each = EvaluateStep(stage="evaluate", models=("models/Qwen2.5",), benchmarks=("test", "gsm8k"))
    >>> [(name, overrides) for name, _, overrides in single_evaluations("each", each)]
    [('each-test-Qwen2_5', ('evaluate.benchmarks=[test]',)), ('each-gsm8k-Qwen2_5', ('evaluate.benchmarks=[gsm8k]',))]
    """
    if not getattr(step, "benchmarks", ()):
        yield name, step, ()
        return
    for benchmark in step.benchmarks:
        for model in step.models:
            single = step.model_copy(update={"models": (model,), "benchmarks": ()})
            words = re.sub(r"[^\w-]+", "_", f"{name}-{benchmark}-{short(model)}")  # as DVC takes names of stages
            yield words, single, (f"evaluate.benchmarks=[{benchmark}]",)


def seed_label(step: str, seeds: Sequence[int], seed: int | None) -> str:
    """The name of a step for one seed: of several the name says which.

    >>> seed_label("rl", (0, 1), 1), seed_label("rl", (7,), 7)
    ('rl-s1', 'rl')
    """
    return step if seed is None or len(seeds) < 2 else f"{step}-s{seed}"


def is_path(name: str) -> bool:
    """Whether a reference names no step, but a file or folder that is taken as it is: models/sft."""
    return "/" in name


def short(name: str) -> str:
    """What a reference is called where no path may stand, such as the label of a model.

    >>> short("models/sft"), short("sft_2"), short("runs/lr=1e-5/")
    ('sft', 'sft_2', 'lr-1e-5')
    """
    return name.rstrip("/").rpartition("/")[2].replace("=", "-")  # an option has the label as LABEL=PATH


# The fields that name other steps, with the kinds of output allowed there; some stages allow others.
REFERENCES: dict[str, Names] = {
    **dict.fromkeys(("start", "teacher", "reference", "models", "model"), ("a model",)),
    "evaluation": ("an evaluation",),
    "reward_model": ("a reward model",),
    "process_reward_model": ("a process reward model",),
    "curated": ("splits",),
    "critic": ("a model", "a reward model"),
    "difficulty": ("pass rates",),
    **dict.fromkeys(("replay", "data"), ("samples",)),
}
OTHER_REFERENCES: dict[tuple[str, str], Names] = {
    ("process_reward_model", "start"): ("a model", "a process reward model"),
    ("reward_model", "start"): ("a model", "a reward model"),
    ("sft", "data"): ("a split", "samples"),
    **dict.fromkeys((("rl", "data"), ("sample", "data")), ("a split", "a mixture")),
    **dict.fromkeys((("difficulty", "data"), ("mix", "data")), ("a split",)),
}


def references(step: Any) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """A step's references to others: the field, the name, and the kinds of output allowed. Splits are left out.

    What is taken by its path, such as models/sft, is no step.
    """
    for field, usual in REFERENCES.items():
        kinds, value = OTHER_REFERENCES.get((step.stage, field), usual), getattr(step, field, None)
        for name in (value,) if isinstance(value, str) else value or ():
            if not is_path(name) and not (field == "data" and "a split" in kinds and name in SPLITS):
                yield field, name, kinds


def paths(step: Any) -> Iterator[str]:
    """What a step takes by its path: models/sft, data/mixture/train.jsonl."""
    for field in type(step).model_fields:
        value = getattr(step, field)
        if field not in ("set", "set_fresh"):
            yield from filter(is_path, (value,) if isinstance(value, str) else value or ())
