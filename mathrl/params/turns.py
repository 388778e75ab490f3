"""Section rollout.turns: how responses call the tool of rollout.tool, and how often."""

from typing import Literal

from pydantic import Field

from mathrl.params.section import Section

CallFormat = Literal["python_block", "tool_call"]


class Turns(Section):
    """How responses call the tool; no effect without a tool."""

    format: CallFormat = Field(
        "python_block",
        description="What a call looks like. python_block: a ```python block, answered by an ```output block; "
        "tool_call: JSON in <tool_call> tags (Hermes, Qwen), answered in the chat template's tool role.",
    )
    max_calls: int = Field(
        4, ge=1, le=64, description="Maximum number of calls per response; a further one is refused."
    )
    output_tokens: int = Field(
        256, ge=8, description="Maximum tokens of a call's output; longer output is cut, which the model is told."
    )
    sessions: int = Field(
        512,
        ge=1,
        description="Sessions of the tool that are open at a time, one per response that called; where more responses "
        "are sampled at once, those that call go on in batches of this size.",
    )
    seconds: float = Field(
        60.0, gt=0, description="Seconds that all calls of a response may take; a call after that is refused."
    )
