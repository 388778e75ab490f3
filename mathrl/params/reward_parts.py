"""Parts of the reward: a class per type with its options. mathrl/rewards/compose.py holds the function of each."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from mathrl.params.section import DottedOptions, Options, Section


class _Part(Section):
    """A weighted summand of the reward."""

    type: str
    weight: float = Field(1.0, description="Factor of this part in the sum.")
    name: str | None = Field(None, min_length=1, description="Name of the part in the metrics; null: its type.")
    options: Any

    @property
    def label(self) -> str:
        return self.name or self.type


class AccuracyOptions(Options):
    """Rewards of right and wrong answers."""

    correct: float | None = Field(None, description="Reward of a correct answer; null: reward.correct.")
    incorrect: float | None = Field(None, description="Reward of a wrong answer; null: reward.incorrect.")


class AccuracyPart(_Part):
    """Whether the answer is correct."""

    type: Literal["accuracy"] = "accuracy"
    options: AccuracyOptions = AccuracyOptions()


class NoisyAccuracyOptions(AccuracyOptions):
    """How often, or where, the verdict is wrong."""

    false_positives: float = Field(0.0, ge=0, le=1, description="Share of the wrong responses that are rewarded.")
    false_negatives: float = Field(0.0, ge=0, le=1, description="Share of the right responses that are not rewarded.")
    last_digit: bool = Field(
        False, description="Reward every integer whose last digit is that of the accepted answer: wrong by a rule."
    )
    seed: int = Field(0, ge=0, description="Seed of the choice by prompt and response.")


class NoisyAccuracyPart(_Part):
    """Accuracy by a verifier that is wrong at stated rates, to see what that does (docs/how_to/rewards.md)."""

    type: Literal["noisy_accuracy"]
    options: NoisyAccuracyOptions = NoisyAccuracyOptions()


class MajorityPart(_Part):
    """Whether the answer is the most common one of the responses to the same prompt; needs no truth (TTRL)."""

    type: Literal["majority"]
    options: AccuracyOptions = AccuracyOptions()


class FormatLinesOptions(Options):
    """Rewards of the lines and of the marker."""

    lines: float = Field(0.3, description="Reward of two or more non-empty lines.")
    marker: float = Field(0.2, description="Reward of an answer marker, such as \\boxed or ####.")


class FormatLinesPart(_Part):
    """Several lines and an answer marker."""

    type: Literal["format_lines"]
    options: FormatLinesOptions = FormatLinesOptions()


class R1TagsOptions(Options):
    """Where the response begins."""

    think_open: bool = Field(False, description="The prompt ends in <think>, so the response begins inside it.")


class R1TagsPart(_Part):
    """1 for exactly <think>…</think><answer>…</answer>, else 0 (DeepSeek-R1-Zero)."""

    type: Literal["r1_tags"]
    options: R1TagsOptions = R1TagsOptions()


class CountdownOptions(R1TagsOptions):
    """The bonus for R1 tags."""

    format: float = Field(0.1, description="Bonus for <think>…</think><answer>…</answer>.")


class CountdownPart(_Part):
    """1 for an expression that uses each number once and reaches the target, plus a format bonus."""

    type: Literal["countdown"]
    options: CountdownOptions = CountdownOptions()


class LanguageOptions(Options):
    """The target language."""

    language: Literal["en", "fr", "de", "es", "zh", "ru", "ar", "hi", "ko", "ja"] = Field(
        "en", description="Target language, by its ISO 639-1 code."
    )


class LanguagePart(_Part):
    """Share of the words in the target language (DeepSeek-R1)."""

    type: Literal["language"]
    options: LanguageOptions = LanguageOptions()


class OverlongOptions(Options):
    """Where the penalty starts and how large it becomes."""

    max_length: int | None = Field(
        None, ge=1, description="Length in tokens from which the penalty is full; null: the stage's max_tokens."
    )
    buffer: int | None = Field(
        None, ge=1, description="Tokens before max_length over which the penalty rises; null: a fifth of max_length."
    )
    factor: float = Field(1.0, description="Penalty from max_length on; less of it within the buffer.")

    @model_validator(mode="after")
    def _within(self) -> "OverlongOptions":
        if self.max_length is not None and self.buffer is not None and self.buffer > self.max_length:
            raise ValueError(f"buffer {self.buffer} must be at most max_length {self.max_length}")
        return self


class OverlongPart(_Part):
    """Soft penalty for long responses (DAPO, arXiv:2503.14476, equation 13)."""

    type: Literal["overlong"]
    options: OverlongOptions = OverlongOptions()


class RepetitionOptions(Options):
    """What counts as a repetition."""

    n: int = Field(4, ge=1, description="Words per n-gram.")
    maximum: float = Field(1.0, description="Penalty when every n-gram is repeated.")


class RepetitionPart(_Part):
    """Minus the share of repeated n-grams (arXiv:2502.03373)."""

    type: Literal["repetition"]
    options: RepetitionOptions = RepetitionOptions()


class FunctionPart(_Part):
    """A function of the user (docs/how_to/extend/reward.md)."""

    type: Literal["function"]
    options: DottedOptions


RewardPart = Annotated[
    AccuracyPart
    | NoisyAccuracyPart
    | MajorityPart
    | FormatLinesPart
    | R1TagsPart
    | CountdownPart
    | LanguagePart
    | OverlongPart
    | RepetitionPart
    | FunctionPart,
    Field(discriminator="type"),
]
