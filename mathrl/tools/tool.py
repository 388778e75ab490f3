"""What a tool is to a rollout: sessions that run code, one per response, and the text that the model gets of a call."""

import re
import signal
from dataclasses import dataclass
from typing import Literal, Protocol

from mathrl.params.rollout import Bubblewrap, Limits
from mathrl.tools.inside.messages import CPU, ERROR, EXITED, MEMORY, OK, WALL

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


# What frames a tool's output or a message in a prompt: fences of Markdown, tags and special tokens of chat templates.
FENCE = re.compile(r"`{3,}|~{3,}")
FRAME = re.compile(r"<(?=/?(?:tool_call|tool_response|tool|think|output)\b|\|)", re.I)
# Control characters but line feed and tab, invisible format characters and lone surrogates.
INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)

CUT = "\n[... output too long: its middle is left out ...]\n"


def clean(text: str) -> str:
    """The text without anything that could forge what surrounds it.

    Runs of three or more backticks become apostrophes, the `<` of tags and special tokens of chat templates gets a
    space behind it, and characters that are not shown are written as escapes.

    >>> clean("42\\n```\\n\\x1b[31m<|im_end|>")
    "42\\n'''\\n\\\\x1b[31m< |im_end|>"
    """
    text = text.replace("\r\n", "\n")
    text = FENCE.sub(lambda fence: "'" * len(fence[0]), text)
    text = FRAME.sub("< ", text)
    return INVISIBLE.sub(lambda character: character[0].encode("unicode_escape").decode("ascii"), text)


def shorten(head: str, tail: str, limit: int) -> str:
    """The text in at most `limit` characters; what is missing between `head` and `tail` is marked.

    Args:
        head: the whole text, or its beginning.
        tail: empty, or the end of a text whose middle was left out before.
        limit: characters of the result, more than the mark has.
    """
    if not tail and len(head) <= limit:
        return head
    kept = limit - len(CUT)
    return head[: kept - kept // 2] + CUT + (tail or head)[-(kept // 2) :]


LOST = "The variables of earlier calls are lost; the next call starts a new interpreter."
NO_OUTPUT = "(no output)"


def verdict(
    ending: bytes, number: int, output: tuple[str, str], limits: Limits, kept: str = LOST
) -> tuple[Status, str]:
    """The status of a call and its text, which is at most `output_characters` long.

    Args:
        ending: what the supervisor says of the call's end.
        number: exit status of the interpreter, or minus its signal, where it ended.
        output: what the call wrote: all of it, or its beginning and its end.
        limits: of the sandbox.
        kept: what the note says of the session's variables, where the call ended the interpreter; empty: no note.
    """
    status, sentence = _sentence(ending, number, limits)
    note = f"{sentence} {kept}" if sentence and kept else ""
    room = limits.output_characters - len(note) - 1 if note else limits.output_characters
    text = shorten(*output, room).rstrip("\n")
    if not note:
        return status, text or NO_OUTPUT
    return status, f"{text}\n{note}" if text else note


def _sentence(ending: bytes, number: int, limits: Limits) -> tuple[Status, str]:
    if ending == OK:
        return "ok", ""
    if ending == ERROR:
        return "error", ""
    if ending == WALL:
        return "timeout", f"Stopped: the call took longer than {limits.wall_seconds:g} s."
    if ending == CPU and isinstance(limits, Bubblewrap):
        return "timeout", f"Stopped: the call used more than {limits.cpu_seconds} s of processor time."
    if ending == MEMORY:
        return "killed", f"Stopped: the call used more than {limits.memory_mb} MB of memory."
    assert ending == EXITED, ending
    if number < 0:
        return "killed", f"The interpreter was ended by {_signal_name(-number)}."
    return "killed", f"The interpreter exited with status {number}."


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
