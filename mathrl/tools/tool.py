"""What a tool is to a rollout: sessions that run code, one per response."""

from dataclasses import dataclass
from typing import Literal, Protocol

Status = Literal["ok", "error", "timeout", "killed", "unavailable"]


@dataclass(frozen=True)
class ToolOutput:
    """What one call gave: the text for the model, at most `output_characters` long.

    `error`: the code raised an exception, whose traceback is in the text. `timeout`: the call reached its limit of
    wall or processor time. `killed`: the interpreter ended (exit, memory, a crash). After both the session's variables
    are lost, which the text says, and the next call starts with a new interpreter. `unavailable`: the tool itself
    failed, whatever the code; the text says why.

    Example: ToolOutput(text="120", status="ok", seconds=0.0007) for the code `import math; math.factorial(5)`.
    """

    text: str
    status: Status
    seconds: float


class Session(Protocol):
    """One interpreter: its variables live from call to call and are never seen by another session."""

    def run(self, code: str) -> ToolOutput:
        """Run `code` as a notebook would: printed text, then the value of a last expression.

        Blocks, bounded by the limits of the parameters. Never raises for what the code did.
        """

    def close(self) -> None:
        """End the interpreter and remove everything it left. A second call has no effect."""


class Tool(Protocol):
    """Gives sessions. Several may run at once, from several threads."""

    def session(self) -> Session:
        """A new session with an interpreter of its own."""

    def close(self) -> None:
        """End all sessions and the tool itself. A second call has no effect."""
