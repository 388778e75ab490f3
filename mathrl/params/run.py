"""Sections shared by several stages: run, model, prompt, reward."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from mathrl.params.reward_parts import AccuracyPart, RewardPart
from mathrl.params.section import Section, is_url, without_login


class Run(Section):
    """The seed and the machine."""

    seed: int = Field(0, ge=0, lt=2**31, description="Seed of data, weights, sampling and evaluation.")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Device; auto: a GPU if there is one.")
    processes: int = Field(
        1,
        ge=1,
        le=1024,
        description="Data-parallel ranks (processes) per stage: one per GPU, or one per CPU core with one thread each.",
    )


BYTES, OWN_TOKENS = 256, 3  # tokens of a BPE tokenizer before the first learned one: bytes; padding, end, unknown


class BpeTokenizer(Section):
    """A byte-level BPE tokenizer, trained on the sft split; a digit is a token of its own."""

    type: Literal["bpe"] = "bpe"
    vocabulary: int = Field(
        2048,
        ge=BYTES + OWN_TOKENS,
        le=1_000_000,
        description="Number of tokens: padding, end, unknown, 256 bytes, the marks, and the rest learned.",
    )


class FreshModel(Section):
    """A model with random weights and a tokenizer of characters or one trained here; it needs no download."""

    type: Literal["fresh"] = "fresh"
    architecture: Literal["qwen2", "llama"] = Field("qwen2", description="Hugging Face architecture of the model.")
    hidden_size: int = Field(128, ge=8, description="Width of the residual stream.")
    intermediate_size: int = Field(352, ge=8, description="Width of the MLP.")
    layers: int = Field(3, ge=1, description="Number of decoder layers.")
    heads: int = Field(4, ge=1, description="Attention heads.")
    kv_heads: int = Field(1, ge=1, description="Key/value heads (grouped-query attention).")
    max_positions: int = Field(2048, ge=16, description="Maximum length of prompt plus response, in tokens.")
    alphabet: Literal["ascii", "arithmetic"] = Field(
        "ascii", description="Characters of the tokenizer: printable ASCII, or digits and operators."
    )
    tokenizer: BpeTokenizer | None = Field(
        None, description="A tokenizer trained on the sft split; null: one token per character of the alphabet."
    )
    marks: tuple[str, ...] = Field(
        ("<think>", "</think>", "<answer>", "</answer>"), description="Strings that become one token each."
    )

    @model_validator(mode="after")
    def _heads_divide(self) -> "FreshModel":
        if self.hidden_size % self.heads or self.heads % self.kv_heads:
            raise ValueError("hidden_size must be a multiple of heads, and heads of kv_heads")
        return self

    @model_validator(mode="after")
    def _tokens_fit(self) -> "FreshModel":
        least = BYTES + OWN_TOKENS + len(self.marks)
        if self.tokenizer is not None and self.tokenizer.vocabulary < least:
            raise ValueError(
                f"tokenizer.vocabulary must be at least {least}: {BYTES} bytes, {OWN_TOKENS} tokens of padding, end "
                f"and unknown, and {len(self.marks)} marks"
            )
        return self


class PretrainedModel(Section):
    """Any Hugging Face causal LM: a local folder, or a hub id with its revision."""

    type: Literal["pretrained"] = "pretrained"
    path: str = Field(min_length=1, description="Local folder, or hub id such as Qwen/Qwen2.5-0.5B-Instruct.")
    revision: str = Field("main", description="Branch, tag or commit on the hub.")
    trust_remote_code: bool = Field(False, description="Run Python code that comes with the model.")
    released: str | None = Field(
        None,
        pattern=r"^\d{4}-\d{2}(-\d{2})?$",
        description="Date of the model, such as 2024-09: tables then say which benchmarks are newer than the model.",
    )


Base = Annotated[FreshModel | PretrainedModel, Field(discriminator="type")]


Precision = Literal["float32", "bfloat16", "float16"]


class Model(Section):
    """The base model and how it computes."""

    base: Base = Field(default_factory=FreshModel, description="Base model: fresh (random weights) or pretrained.")
    precision: Precision = Field(
        "bfloat16",
        description="Precision of matrix products; weights and optimizer states stay float32. float16 scales the loss, "
        "and needs training.backend torch.",
    )


Template = Literal["plain", "r1_zero", "boxed", "question_answer", "chat"]


class PromptRoute(Section):
    """Prompt settings of one task or source; null: as in prompt."""

    template: Template | None = Field(None, description="Template for these rows, as in prompt.template.")
    system: str | None = Field(None, description="System message for these rows, as in prompt.system.")
    instruction: str | None = Field(None, description="Instruction for these rows, as in prompt.instruction.")


class Prompt(Section):
    """How a problem becomes the model's input."""

    template: Template = Field(
        "plain",
        description="plain: the question; r1_zero and boxed: with instructions; question_answer: after Question: and "
        "before Answer:, as base models are asked; chat: the tokenizer's.",
    )
    system: str | None = Field(None, description="System message of the chat template.")
    instruction: str | None = Field(
        None, description="Text after the question, such as: Reason step by step, answer in \\boxed{}."
    )
    chat_template_kwargs: dict[str, bool | int | float | str] = Field(
        default_factory=dict,
        description="Variables for the chat template, such as {enable_thinking: false} (Qwen 3, SmolLM 3).",
    )
    tools: Literal["none", "python"] = Field(
        "none", description="Tools that the chat template is told of, for rollout.turns.format tool_call."
    )
    response_prefix: str = Field("", description="Text that every response is made to start with, such as <think>.")
    few_shot: int = Field(0, ge=0, le=64, description="Number of worked examples (sft split) before the question.")
    max_tokens: int = Field(
        512, ge=1, description="Maximum prompt length, in tokens; longer prompts are dropped and counted."
    )
    routes: dict[str, PromptRoute] = Field(
        default_factory=dict,
        description="Prompt settings per task, data_source or source of a row: {gsm8k: {template: boxed}}.",
    )


Endpoint = Annotated[str, AfterValidator(without_login), AfterValidator(is_url)]


class ModelVerifier(Section):
    """A model at an OpenAI-compatible endpoint that judges answers after the rules, or alone."""

    endpoint: Endpoint = Field(description="OpenAI-compatible URL, such as http://localhost:8000/v1.")
    model: str = Field(min_length=1, description="Name of the model at the endpoint.")
    asked: Literal["refused", "all"] = Field(
        "refused",
        description="refused: about answers that the rules refuse without showing that they differ; all: about every "
        "answer, so that the model alone verifies.",
    )
    on_failure: Literal["stop", "rule"] = Field(
        "stop", description="When the endpoint fails: stop the run, or let the rules' verdict stand and count it."
    )
    max_tokens: int = Field(8, ge=4, description="Maximum reply length, in tokens; a judge that thinks needs more.")
    timeout_seconds: float = Field(60.0, gt=0, description="Seconds that a request may take; it is sent three times.")
    at_a_time: int = Field(16, ge=1, description="Requests in flight.")


class RemoteModel(Section):
    """A model at an OpenAI-compatible endpoint (vLLM, SGLang, llama.cpp, a hosted API); key: MATHRL_ENDPOINT_KEY."""

    endpoint: Endpoint = Field(description="OpenAI-compatible URL, such as http://localhost:8000/v1.")
    model: str = Field(min_length=1, description="Name of the model at the endpoint.")
    api: Literal["chat", "completions"] = Field(
        "chat", description="chat: messages, by the endpoint's own template; completions: the text of section prompt."
    )
    at_a_time: int = Field(16, ge=1, le=1024, description="Requests in flight.")
    attempts: int = Field(6, ge=1, description="Attempts per request; waits double, and a rate limit holds back all.")
    timeout_seconds: float = Field(600.0, gt=0, description="Seconds that one attempt may take.")
    extra_body: dict[str, Any] = Field(
        default_factory=dict, description="Further fields of every request, such as {reasoning_effort: high}."
    )
    price_input: float | None = Field(
        None, ge=0, description="Price of a million prompt tokens; null: no cost is shown."
    )
    price_output: float | None = Field(None, ge=0, description="Price of a million tokens of answers.")
    licence: str | None = Field(None, description="What its terms allow, kept beside the data that it writes.")


class SecondGrader(Section):
    """A second grader that checks the first on a sample of responses."""

    type: Literal["math_verify", "llm"] = Field(
        "math_verify", description="math_verify: Math-Verify; llm: a model behind the endpoint."
    )
    share: float = Field(0.01, ge=0, le=1, description="Share of the responses that it grades as well.")
    endpoint: Endpoint | None = Field(None, description="OpenAI-compatible URL; needed by type llm.")
    model: str | None = Field(None, description="Name of the model at the endpoint.")

    @model_validator(mode="after")
    def _has_endpoint(self) -> "SecondGrader":
        if self.type == "llm" and not (self.endpoint and self.model):
            raise ValueError("type llm needs endpoint (http://host:port/v1) and model")
        return self


class Judge(Section):
    """How scores of a reward model, or of reasoning steps, replace the rule-based rewards."""

    scale: Literal["sigmoid", "standard", "raw"] = Field(
        "sigmoid",
        description="Scale of a score: standard: mean 0 and std 1 over its training pairs; sigmoid: the sigmoid of "
        "that, so that 0, the score of a truncated response, is the lowest; raw: unchanged.",
    )
    rule_weight: float = Field(0.0, ge=0, description="Weight of the rule-based reward, which is added; 0: left out.")
    continuations: int = Field(
        0, ge=0, description="Monte-Carlo rewards of steps: continuations sampled from the end of each step; 0: off."
    )


class Reward(Section):
    """How a response is scored."""

    extraction: Literal["strict", "lenient"] = Field(
        "strict", description="strict: only a marked answer counts; lenient: else the last number counts."
    )
    correct: float = Field(1.0, description="Accuracy reward of a correct answer.")
    incorrect: float = Field(0.0, description="Accuracy reward of a wrong answer.")
    parts: tuple[RewardPart, ...] = Field(
        (AccuracyPart(),), min_length=1, description="Weighted summands of the reward."
    )
    routes: dict[str, tuple[RewardPart, ...]] = Field(
        default_factory=dict, description="Parts for rows of a task, data_source or source, instead of parts."
    )
    model_verifier: ModelVerifier | None = Field(
        None, description="A judge model for answers that the rules refuse, or as the only verifier; null: none."
    )
    second_grader: SecondGrader | None = Field(
        None, description="A second grader on a sample of responses, for the disagreement rate; null: none."
    )
    exact_share: float = Field(
        0.25,
        ge=0,
        le=1,
        description="Share of the responses that an exact grader of numbers grades too, for the health rule "
        "reward_hacking; 0: none.",
    )
    steps: Literal["semicolon", "line", "sentence"] = Field(
        "semicolon",
        description="Separator of reasoning steps; the end of the reasoning and of the response end a step too.",
    )
    judge: Judge = Judge()
