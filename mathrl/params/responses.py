"""What becomes of a step's graded responses: replaced groups (rl.dynamic_sampling), rl.filters, and kept rollouts."""

from typing import Annotated, Literal

from pydantic import Field

from mathrl.params.section import FreeOptions, OwnPath, Section


class DynamicSampling(Section):
    """Sampling goes on until every group of a step has correct and incorrect responses (DAPO, arXiv:2503.14476)."""

    rounds: int = Field(10, ge=1, le=64, description="Maximum sampling rounds per step.")
    prompts_per_round: int | None = Field(
        None, ge=1, description="Prompts per round (DAPO: three times prompts_per_step); null: prompts_per_step."
    )

    def spare(self, prompts_per_step: int) -> int:
        """How many uniform groups an asynchronous run replaces between two updates, at most.

        >>> DynamicSampling().spare(128), DynamicSampling(rounds=2, prompts_per_round=384).spare(128)
        (128, 128)
        """
        return min(self.prompts_per_round or prompts_per_step, (self.rounds - 1) * prompts_per_step)


class _Filter(Section):
    """What all filters share: a response that is caught has no loss; its reward stays in the group's mean."""

    type: str
    enforce: bool = Field(True, description="Leave caught responses out of the loss; false: count them alone.")


class Gibberish(_Filter):
    """A rare token that was sampled at high entropy (arXiv:2510.02387, section 5.2)."""

    type: Literal["gibberish"] = "gibberish"
    token_above: int = Field(100_000, ge=0, description="Ids above this are rare tokens (prime-rl: 100,000).")
    offset: float = Field(
        2.0, description="Its log-prob must be below that of a uniform choice from the vocabulary, less this, in nats."
    )


class SureRun(_Filter):
    """Many sure tokens in a row, the sign of a loop (MiniMax-M1, arXiv:2506.13585, section 3.2)."""

    type: Literal["sure_run"] = "sure_run"
    window: int = Field(3000, ge=1, description="Number of tokens in a row.")
    probability: float = Field(0.99, gt=0, lt=1, description="Each has more than this probability.")


class Repetition(_Filter):
    """Tokens that repeat themselves: the share of n-grams of 16 tokens that occurred before in the response."""

    type: Literal["repetition"] = "repetition"
    share: float = Field(0.5, ge=0, lt=1, description="The repeated share is above this.")


class FunctionFilter(_Filter):
    """A function of your own: of a response, with tokens, log-probs, reward and verdict; true catches it."""

    type: Literal["function"] = "function"
    path: OwnPath
    options: FreeOptions = Field(FreeOptions(), description="Keyword arguments of the function.")


ResponseFilter = Annotated[Gibberish | SureRun | Repetition | FunctionFilter, Field(discriminator="type")]


# What a response and a token of it take, compressed: log-prob and ratio are four bytes each.
BYTES_PER_RESPONSE, BYTES_PER_TOKEN = 60, 14


class KeepRollouts(Section):
    """Rollouts kept as reports/rl/rollouts.parquet: text, verdict, reward, and per token log-prob, advantage, ratio."""

    which: Literal["none", "all", "share", "odd"] = Field(
        "none",
        description="none: no rollouts; all: every response; share: the responses to a share of the problems; odd: "
        "responses that were truncated, repeat themselves, have no answer, are alone right or wrong in their group, "
        "whose reward contradicts the verdict, or on which the second grader disagrees.",
    )
    share: float = Field(
        0.1, gt=0, le=1, description="With which: share: share of the problems; the same problems at every step."
    )

    def size(self, responses: int, tokens: int) -> str:
        """How much the kept file takes at most, of so many responses of up to `tokens` tokens each.

        >>> KeepRollouts(which="share", share=0.5).size(100_000, 64)
        'keeps 50,000 of 100,000 rollouts: at most about 48 MB'
        """
        kept = round(responses * self.share) if self.which == "share" else responses
        megabytes = max(1, round(kept * (BYTES_PER_RESPONSE + BYTES_PER_TOKEN * tokens) / 1e6))
        number = f"the odd ones of {responses:,}" if self.which == "odd" else f"{kept:,} of {responses:,}"
        return f"keeps {number} rollouts: at most about {megabytes:,} MB"
