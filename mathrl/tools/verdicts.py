"""How a call ended, as a status and a text for the model."""

import signal

from mathrl.params.tools import Bubblewrap, Limits
from mathrl.tools.inside.messages import CPU, ERROR, EXITED, MEMORY, OK, WALL
from mathrl.tools.output import shorten
from mathrl.tools.tool import Status

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
