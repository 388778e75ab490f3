"""Grams and tokens of ASCII text: the faster rule finds what the general one finds."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mathrl.curation import question_tokens as question_tokens_module
from mathrl.curation.question_tokens import question_tokens
from mathrl.data.grams import grams

PIECES = [
    "Janet's", "don't'", "1,250.50", "12,34", ".5", "3.", "\\frac{1}{2}", "\\$5", "$x-y$", "$ab cost$", "well-known",
    "\\left(", "\\text{ if }", "^{\\circ}", "x^\\circ", "{,}", "1{,}000", "~", "3!", "5:4", "<=", "!=", "...", "||",
    "PROOF", "\\%", "_{ }", " ", "\n", "\x1c", "\\dfrac12", "\\(ab\\)", "\\[k>0\\]", "k", "=", "-", "''", ",,",
]  # fmt: skip
TEXTS = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=12).map("".join), st.text(st.characters(max_codepoint=127), max_size=40)
)


@given(TEXTS)
@example("")
def test_the_rules_agree_on_ascii_text(text: str) -> None:
    assert [*grams(text), "ω"] == grams(f"{text} ω")  # a Greek letter calls for the general rule
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(question_tokens_module, "_ASCII_TOKEN", question_tokens_module._ANY_TOKEN)
        patch.setattr(question_tokens_module, "_PLAIN", re.compile("(?!)"))
        general = question_tokens(text)
    assert question_tokens(text) == general


def test_the_ascii_rule_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question_tokens_module, "_ASCII_TOKEN", re.compile("x"))
    assert question_tokens("x and y") == ["x"] and question_tokens("x and ω") == ["x", "and", "ω"]
