"""Sections shared by several stages: run, model, prompt, reward."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from mathrl.params.reward_parts import AccuracyPart, RewardPart
from mathrl.params.section import Section, without_login


class Run(Section):
    """The seed and the machine."""

    seed: int = Field(0, ge=0, lt=2**31, description="One seed for data, weights, sampling and evaluation.")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto takes a GPU where there is one.")
    processes: int = Field(
        2,
        ge=1,
        le=1024,
        description="Data-parallel processes of a stage: one a CPU core (one thread each) or one a GPU.",
    )


class FreshModel(Section):
    """A model of random weights with a character tokenizer: needs no download."""

    type: Literal["fresh"] = "fresh"
    architecture: Literal["qwen2", "llama"] = Field("qwen2", description="The Hugging Face architecture.")
    hidden_size: int = Field(128, ge=8, description="Width of the residual stream.")
    intermediate_size: int = Field(352, ge=8, description="Width of the MLP.")
    layers: int = Field(3, ge=1, description="Number of decoder layers.")
    heads: int = Field(4, ge=1, description="Attention heads.")
    kv_heads: int = Field(1, ge=1, description="Key/value heads (grouped-query attention).")
    max_positions: int = Field(2048, ge=16, description="Longest prompt plus response, in tokens.")
    alphabet: Literal["ascii", "arithmetic"] = Field(
        "ascii", description="Characters of the tokenizer: printable ASCII, or digits and operators."
    )
    marks: tuple[str, ...] = Field(
        ("<think>", "</think>", "<answer>", "</answer>"), description="Strings that are one token each."
    )

    @model_validator(mode="after")
    def _heads_divide(self) -> "FreshModel":
        if self.hidden_size % self.heads or self.heads % self.kv_heads:
            raise ValueError("hidden_size must be a multiple of heads, and heads of kv_heads")
        return self


class PretrainedModel(Section):
    """Any Hugging Face causal LM: a local folder, or a hub id with its revision."""

    type: Literal["pretrained"] = "pretrained"
    path: str = Field(min_length=1, description="Local folder, or hub id such as Qwen/Qwen2.5-0.5B-Instruct.")
    revision: str = Field("main", description="Branch, tag or commit on the hub.")
    trust_remote_code: bool = Field(False, description="Run Python code that comes with the model.")


Base = Annotated[FreshModel | PretrainedModel, Field(discriminator="type")]


class Model(Section):
    """The base model and how it computes."""

    base: Base = Field(default_factory=FreshModel, description="Where the weights come from.")
    precision: Literal["float32", "bfloat16"] = Field(
        "bfloat16", description="Of matrix products; weights and optimizer states stay float32."
    )


Template = Literal["plain", "r1_zero", "boxed", "chat"]


class PromptRoute(Section):
    """What the prompts of one task or source have instead; empty: as the others."""

    template: Template | None = Field(None, description="As prompt.template.")
    system: str | None = Field(None, description="As prompt.system.")
    instruction: str | None = Field(None, description="As prompt.instruction.")


class Prompt(Section):
    """How a problem becomes the model's input."""

    template: Template = Field(
        "plain", description="plain: the question; r1_zero and boxed: with instructions; chat: the tokenizer's."
    )
    system: str | None = Field(None, description="System message of the chat template.")
    instruction: str | None = Field(
        None, description="Text after the question, such as: Reason step by step, answer in \\boxed{}."
    )
    response_prefix: str = Field("", description="Text that every response begins with, such as <think>.")
    few_shot: int = Field(0, ge=0, le=64, description="Worked examples from the sft split before the question.")
    max_tokens: int = Field(64, ge=1, description="Longer prompts are dropped and counted.")
    routes: dict[str, PromptRoute] = Field(
        default_factory=dict,
        description="Other templates for a row's task, data_source or source: {gsm8k: {template: boxed}}.",
    )


class SecondGrader(Section):
    """Another grader that runs beside the first on a sample of responses."""

    type: Literal["math_verify", "llm"] = Field(
        "math_verify", description="math_verify: Math-Verify; llm: a model behind the endpoint."
    )
    share: float = Field(0.01, ge=0, le=1, description="Share of the responses that it judges too.")
    endpoint: Annotated[str, AfterValidator(without_login)] | None = Field(
        None, description="OpenAI-compatible URL, for the type llm."
    )
    model: str | None = Field(None, description="Model name at the endpoint.")

    @model_validator(mode="after")
    def _has_endpoint(self) -> "SecondGrader":
        if self.type == "llm" and not (self.endpoint or "").startswith(("http://", "https://")):
            raise ValueError(f"endpoint {self.endpoint!r} is no URL; write http://host:port/v1 for type llm")
        return self


class Judge(Section):
    """How the scores of a reward model, or of steps, are put in the place of the rule's rewards."""

    scale: Literal["sigmoid", "standard", "raw"] = Field(
        "sigmoid",
        description="Of a score: standard: to mean 0 and deviation 1 over the pairs it was trained on; "
        "sigmoid: that between 0 and 1, so that a truncated response's 0 is the least; raw: as it is.",
    )
    rule_weight: float = Field(0.0, ge=0, description="The rule's reward is added with this weight.")
    continuations: int = Field(
        0, ge=0, description="Rewards of steps by so many continuations from the end of each; 0: none."
    )


class Reward(Section):
    """How a response is turned into a number."""

    extraction: Literal["strict", "lenient"] = Field(
        "strict", description="strict: a marked answer is required; lenient: the last number will do."
    )
    correct: float = Field(1.0, description="Accuracy reward of a correct answer.")
    incorrect: float = Field(0.0, description="Accuracy reward of a wrong one.")
    parts: tuple[RewardPart, ...] = Field((AccuracyPart(),), min_length=1, description="Summed by weight.")
    routes: dict[str, tuple[RewardPart, ...]] = Field(
        default_factory=dict, description="Other parts for a row's task or data_source."
    )
    second_grader: SecondGrader | None = Field(None, description="For the disagreement rate.")
    steps: Literal["semicolon", "line", "sentence"] = Field(
        "semicolon", description="What ends a step of the reasoning; also at its end and at the response's."
    )
    judge: Judge = Judge()
