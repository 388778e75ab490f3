"""Section rl.asynchronous: sampling that goes on while the trainer updates, with weights that are a little older."""

from typing import Literal

from pydantic import Field, model_validator

from mathrl.params.section import Section

MOST_STALENESS = 8
SEGMENTS, SHORTEST_SEGMENT = 4, 16  # of a response of full length; tokens


class Asynchronous(Section):
    """Sampler and trainer at the same time: groups go to the trainer as they end (docs/asynchronous.md)."""

    staleness: int = Field(
        1,
        ge=0,
        le=MOST_STALENESS,
        description="Maximum number of weight versions (one per step) that a trained token is behind; older groups are "
        "dropped and sampled again. 0: sampler and trainer take turns, with the bits of a run without this section.",
    )
    pace: Literal["free", "fixed"] = Field(
        "free",
        description="free: the sampler goes on at its own speed, and responses go on over weight updates; fixed: one "
        "round of whole responses per step, staleness steps ahead, so that two runs are equal to the bit.",
    )
    segment_tokens: int | None = Field(
        None,
        ge=1,
        description="With pace free: tokens by which responses grow before the sampler takes new weights; null: a "
        "quarter of max_tokens, at least 16.",
    )
    replay: str | None = Field(
        None,
        min_length=1,
        description="Log of events (events.jsonl) of an earlier run to repeat to the bit; DVC does not watch it.",
    )

    @model_validator(mode="after")
    def _fit(self) -> "Asynchronous":
        if self.pace == "fixed" and self.replay is not None:
            raise ValueError("replay repeats what happened at pace free: leave it out, pace fixed repeats itself")
        if self.segment_tokens is not None and (self.pace == "fixed" or not self.staleness):
            raise ValueError("segment_tokens needs pace free and staleness of at least 1: else responses are whole")
        return self

    def segment(self, max_tokens: int) -> int:
        """Tokens by which responses of up to `max_tokens` grow between two looks for new weights.

        >>> Asynchronous().segment(1024), Asynchronous().segment(40), Asynchronous(pace="fixed").segment(1024)
        (256, 16, 1024)
        """
        if self.pace == "fixed" or not self.staleness:
            return max_tokens
        return min(max_tokens, self.segment_tokens or max(SHORTEST_SEGMENT, -(-max_tokens // SEGMENTS)))
