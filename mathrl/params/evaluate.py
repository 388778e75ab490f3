"""Sections of the last stages, evaluate and register."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from mathrl.params.run import ModelVerifier, RemoteModel
from mathrl.params.section import Section

TEST = "test"  # the benchmark that is the curated test split
SFT = "sft"  # the curated split with worked examples


class Evaluate(Section):
    """Sampling and statistics of the held-out comparison."""

    benchmarks: tuple[str, ...] = Field(
        ("test",),
        min_length=1,
        description="test (the curated split), names such as gsm8k, files of problems, or hub sets as "
        "owner/name:config:split.",
    )
    fields: dict[str, dict[str, str]] = Field(
        default_factory=dict,
        description="Fields of a benchmark's rows in place of the guess: {data/exam.jsonl: {answer_key: gold}}.",
    )
    prompts: Literal["own", "published"] = Field(
        "own",
        description="own: section prompt; published: each named benchmark as it is usually asked, where `mathrl data "
        "sources` says how (8 worked examples for gsm8k, 4 for math).",
    )
    few_shot_from: str = Field(
        "sft",
        description="Where the worked examples of prompt.few_shot come from: sft (the curated split), the train split "
        "of a name such as gsm8k, or a file.",
    )
    endpoint: RemoteModel | None = Field(
        None, description="mathrl evaluate: the model at this endpoint in place of a folder (--endpoint); null: none."
    )
    data_folder: str | None = Field(
        None, description="Local folder with the benchmarks' files (or $MATHRL_DATA); the hub otherwise."
    )
    limit: int | None = Field(
        None, ge=1, description="Maximum number of problems per benchmark (seeded choice); null: all."
    )
    samples: int = Field(8, ge=1, description="Responses per problem.")
    ks: tuple[int, ...] = Field((1, 2, 4, 8), description="Values of k for pass@k and maj@k; at most samples.")
    temperature: float = Field(0.7, ge=0, description="Sampling temperature; 0: greedy.")
    top_p: float = Field(0.95, gt=0, le=1, description="Nucleus sampling (top-p); 0.95 is usual for chat models.")
    max_tokens: int = Field(1024, ge=1, description="Maximum response length, in tokens.")
    extraction: Literal["strict", "lenient"] = Field(
        "strict", description="How answers are read from responses, as in reward.extraction."
    )
    model_verifier: ModelVerifier | None = Field(
        None, description="A judge model beside the rules, as in reward.model_verifier; null: none."
    )
    confidence: float = Field(0.95, gt=0.5, lt=1, description="Confidence level of the intervals.")
    examples: int = Field(20, ge=0, description="Number of examples shown side by side in the report.")

    @field_validator("ks")
    @classmethod
    def _positive(cls, ks: tuple[int, ...]) -> tuple[int, ...]:
        if any(k < 1 for k in ks):
            raise ValueError("every k must be at least 1")
        return ks


class Register(Section):
    """The model's entry in the registry."""

    name: str = Field("mathrl", min_length=1, pattern=r"^[^/:@'\"]+$", description="Name of the registered model.")
    most_false_positives: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Largest false-positive rate of the grader: promotion needs an audit of the version's evaluation "
        "whose interval ends at most here; null: no audit.",
    )
    alias: str = Field("candidate", min_length=1, description="Alias that the new version gets in the registry.")

    @field_validator("alias")
    @classmethod
    def _not_past_the_gate(cls, alias: str) -> str:
        if alias == "champion":
            raise ValueError("champion goes through the gate: `mathrl models promote NAME`; write candidate here")
        return alias


def _one_word(name: str) -> str:
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ValueError(
            "it becomes part of a command and of a path: write letters, digits, '_', '.' and '-', such as rl"
        )
    return name


Word = Annotated[str, AfterValidator(_one_word)]
