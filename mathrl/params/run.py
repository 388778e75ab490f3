"""Sections shared by several stages: run, model, prompt, reward."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from mathrl.params.reward_parts import AccuracyPart, RewardPart
from mathrl.params.section import Section, without_login


class Run(Section):
    """The seed and the machine."""

    seed: int = Field(0, ge=0, lt=2**31, description="Seed of data, weights, sampling and evaluation.")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: a GPU if this machine has one.")
    processes: int = Field(
        2,
        ge=1,
        le=1024,
        description="Data-parallel ranks (processes) per stage: one per GPU, or one per CPU core with one thread each.",
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
    max_positions: int = Field(2048, ge=16, description="Maximum length of prompt plus response, in tokens.")
    alphabet: Literal["ascii", "arithmetic"] = Field(
        "ascii", description="Characters of the tokenizer: printable ASCII, or digits and operators."
    )
    marks: tuple[str, ...] = Field(
        ("<think>", "</think>", "<answer>", "</answer>"), description="Strings that become one token each."
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
        "bfloat16", description="Precision of matrix products; weights and optimizer states stay float32."
    )


Template = Literal["plain", "r1_zero", "boxed", "chat"]


class PromptRoute(Section):
    """Prompt settings of one task or source; null: as in prompt."""

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
    response_prefix: str = Field("", description="Text that every response starts with, such as <think>.")
    few_shot: int = Field(0, ge=0, le=64, description="Worked examples from the sft split before the question.")
    max_tokens: int = Field(
        64, ge=1, description="Maximum prompt length, in tokens; longer prompts are dropped and counted."
    )
    routes: dict[str, PromptRoute] = Field(
        default_factory=dict,
        description="Prompt settings per task, data_source or source of a row: {gsm8k: {template: boxed}}.",
    )


class SecondGrader(Section):
    """A second grader that checks the first on a sample of responses."""

    type: Literal["math_verify", "llm"] = Field(
        "math_verify", description="math_verify: Math-Verify; llm: a model behind the endpoint."
    )
    share: float = Field(0.01, ge=0, le=1, description="Share of responses that it grades too.")
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
    """How scores of a reward model, or of reasoning steps, replace the rule-based rewards."""

    scale: Literal["sigmoid", "standard", "raw"] = Field(
        "sigmoid",
        description="Scale of a score: standard: mean 0 and std 1 over its training pairs; sigmoid: the sigmoid of "
        "that, so"
        "that the 0 of a truncated response is the lowest; raw: unchanged.",
    )
    rule_weight: float = Field(0.0, ge=0, description="Weight of the rule-based reward that is added.")
    continuations: int = Field(
        0, ge=0, description="Monte-Carlo rewards of steps: continuations sampled from the end of each step; 0: off."
    )


class Reward(Section):
    """How a response is scored."""

    extraction: Literal["strict", "lenient"] = Field(
        "strict", description="strict: the answer must be marked; lenient: else the last number is taken."
    )
    correct: float = Field(1.0, description="Accuracy reward of a correct answer.")
    incorrect: float = Field(0.0, description="Accuracy reward of a wrong answer.")
    parts: tuple[RewardPart, ...] = Field(
        (AccuracyPart(),), min_length=1, description="Weighted summands of the reward."
    )
    routes: dict[str, tuple[RewardPart, ...]] = Field(
        default_factory=dict, description="Parts for rows of a task, data_source or source, instead of parts."
    )
    second_grader: SecondGrader | None = Field(
        None, description="A second grader on a sample of responses, for the disagreement rate; null: none."
    )
    steps: Literal["semicolon", "line", "sentence"] = Field(
        "semicolon",
        description="Separator of reasoning steps; the end of the reasoning and of the response end a step too.",
    )
    judge: Judge = Judge()
