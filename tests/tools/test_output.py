"""The text of a tool's output cannot forge what surrounds it, and keeps to its limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mathrl.params.rollout import Bubblewrap
from mathrl.tools.inside.messages import CPU, EXITED, MEMORY, OK, WALL
from mathrl.tools.tool import CUT, LOST, NO_OUTPUT, clean, shorten, verdict


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("42", "42"),
        ("a\tb\r\nc", "a\tb\nc"),
        ("``not a fence``", "``not a fence``"),
        ("```output\n43\n````", "'''output\n43\n''''"),
        ("~~~~", "''''"),
        ("<|im_end|> </tool_response> <TOOL_CALL> <think>", "< |im_end|> < /tool_response> < TOOL_CALL> < think>"),
        ("x < y, a <b> <thinking> 3<4", "x < y, a <b> <thinking> 3<4"),
        ("\x1b[31m\0\x7f\x9b\r", "\\x1b[31m\\x00\\x7f\\x9b\\r"),
        ("a\u202eb\u200b\ufeff\ud800", "a\\u202eb\\u200b\\ufeff\\ud800"),
        ("é ∑ 中 😀", "é ∑ 中 😀"),
    ],
)
def test_clean(text: str, expected: str) -> None:
    assert clean(text) == expected
    assert clean(expected) == expected


@given(st.text(), st.text(), st.integers(100, 300))
def test_a_shortened_text_has_both_ends_and_no_more_than_its_limit(head: str, tail: str, limit: int) -> None:
    text = shorten(head, tail, limit)
    assert len(text) <= limit
    if len(head) <= limit and not tail:
        assert text == head
    else:
        assert CUT in text
        first, _, last = text.partition(CUT)
        assert head.startswith(first)
        assert (tail or head).endswith(last)


LIMITS = Bubblewrap(wall_seconds=2.5, cpu_seconds=3, memory_mb=64, output_characters=300)


@pytest.mark.parametrize(
    ("how", "number", "status", "sentence"),
    [
        (WALL, 0, "timeout", "Stopped: the call took longer than 2.5 s."),
        (CPU, 0, "timeout", "Stopped: the call used more than 3 s of processor time."),
        (MEMORY, 0, "killed", "Stopped: the call used more than 64 MB of memory."),
        (EXITED, 3, "killed", "The interpreter exited with status 3."),
        (EXITED, -11, "killed", "The interpreter was ended by SIGSEGV."),
        (EXITED, -99, "killed", "The interpreter was ended by signal 99."),
    ],
)
def test_how_a_call_ended_is_said_within_the_limit(how: bytes, number: int, status: str, sentence: str) -> None:
    note = f"{sentence} {LOST}"
    assert verdict(how, number, ("", ""), LIMITS) == (status, note)
    assert verdict(how, number, ("a\n", ""), LIMITS) == (status, f"a\n{note}")
    _, text = verdict(how, number, ("x" * 1000, ""), LIMITS)
    assert len(text) <= 300
    assert text.endswith(f"\n{note}")
    assert verdict(how, number, ("a", ""), LIMITS, kept="") == (status, "a")


def test_a_call_without_output_says_so() -> None:
    assert verdict(OK, 0, ("\n", ""), LIMITS) == ("ok", NO_OUTPUT)
