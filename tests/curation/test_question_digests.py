"""Tokens of questions: the faster rule for ASCII finds what the general one finds; shingles in arrays are n-grams."""

import random
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mathrl.curation import question_digests
from mathrl.curation.question_digests import question_tokens, shingles
from mathrl.curation.token_windows import Rows
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
        patch.setattr(question_digests, "_ASCII_TOKEN", question_digests._ANY_TOKEN)
        patch.setattr(question_digests, "_PLAIN", re.compile("(?!)"))
        general = question_tokens(text)
    assert question_tokens(text) == general


def test_the_ascii_rule_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question_digests, "_ASCII_TOKEN", re.compile("x"))
    assert question_tokens("x and y") == ["x"] and question_tokens("x and ω") == ["x", "and", "ω"]


def by_hand(tokens: list[str], ngram: int) -> set[tuple[str, ...]]:
    size = min(ngram, len(tokens))
    return {tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)} if tokens else set()


def similarity(rows: Rows, first: int, second: int) -> float:
    one, other = set(rows.row(first).tolist()), set(rows.row(second).tolist())
    return len(one & other) / max(1, len(one | other))


@pytest.mark.parametrize("ngram", [1, 2, 5])
def test_shingles_are_the_distinct_n_grams_or_the_whole_text(ngram: int) -> None:
    rng = random.Random(ngram)
    texts = [rng.choices("abc", k=rng.randint(0, 9)) for _ in range(300)]
    rows = shingles(texts, ngram)
    assert len(rows) == 300
    for number in range(300):
        one, other = rng.randrange(300), number
        sets = by_hand(texts[one], ngram), by_hand(texts[other], ngram)
        expected = len(sets[0] & sets[1]) / len(sets[0] | sets[1]) if sets[0] | sets[1] else 0.0
        assert similarity(rows, one, other) == pytest.approx(expected)
        assert list(rows.row(other)) == sorted(set(rows.row(other).tolist()))


def test_rows_are_joined_and_empty_ones_have_no_shingle() -> None:
    joined = Rows.join([shingles([["a", "b"], []], 1), shingles([["b"]], 1)])
    assert [len(joined.row(i)) for i in range(3)] == [2, 0, 1] and joined.row(2)[0] in joined.row(0)
