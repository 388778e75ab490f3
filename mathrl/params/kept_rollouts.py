"""Section rl.keep_rollouts: which rollouts of a run are kept for `mathrl rollouts`."""

from typing import Literal

from pydantic import Field

from mathrl.params.section import Section

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
