"""Laws that hold for any text: reflexive, symmetric for numbers, stable under spelling, never raising."""

import json
from collections.abc import Callable
from fractions import Fraction

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mathrl.grading import compare, extract, grade, grade_batch
from mathrl.grading.extract import ExtractionMode

QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

# Texts and their values.
numbers = st.one_of(
    st.integers(-(10**12), 10**12).map(lambda n: (str(n), Fraction(n))),
    st.fractions(max_denominator=10**6).map(lambda f: (f"\\frac{{{f.numerator}}}{{{f.denominator}}}", f)),
    st.fractions(max_denominator=10**6).map(lambda f: (f"{f.numerator}/{f.denominator}", f)),
    st.decimals(-(10**6), 10**6, places=3, allow_nan=False, allow_infinity=False).map(lambda d: (str(d), Fraction(d))),
)
letters = st.sampled_from(["x", "y", "a", "n", "\\theta"])
atoms = st.one_of(st.integers(0, 99).map(str), letters, st.just("\\pi"))
# What json.loads can give: lone surrogates and NULs too.
ODD = ["\ud83d", "\udc80", "\0", "\r", "\u2028", "\ufeff", "😀"]
any_text = st.lists(st.sampled_from(ODD) | st.text(), max_size=5).map(
    lambda parts: json.loads(json.dumps("".join(parts)))
)


def _combine(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.tuples(inner, inner)
    return st.one_of(
        pairs.map(lambda p: f"{p[0]}+{p[1]}"),
        pairs.map(lambda p: f"{p[0]}-({p[1]})"),
        pairs.map(lambda p: f"({p[0]})({p[1]})"),
        pairs.map(lambda p: f"\\frac{{{p[0]}}}{{{p[1]}}}"),
        inner.map(lambda e: f"\\sqrt{{{e}}}"),
        inner.map(lambda e: f"({e})^2"),
        inner.map(lambda e: f"\\sin({e})"),
    )


expressions = st.recursive(atoms, _combine, max_leaves=6)
structures = st.one_of(
    expressions,
    st.lists(expressions, min_size=2, max_size=4).map(", ".join),
    st.lists(expressions, min_size=2, max_size=4).map(lambda items: "(" + ", ".join(items) + ")"),
    st.lists(expressions, min_size=1, max_size=4).map(lambda items: "\\{" + ", ".join(items) + "\\}"),
)


@QUICK
@given(structures)
def test_reflexive(answer: str) -> None:
    assert grade(f"The answer is $\\boxed{{{answer}}}$.", answer).correct


@QUICK
@given(st.text(max_size=60))
def test_reflexive_on_whatever_it_extracts(response: str) -> None:
    found = extract(response).text
    if found is not None and compare(found, found).rule != "empty":
        assert grade(response, found).correct


@QUICK
@given(numbers, numbers)
def test_symmetric_for_numbers(first: tuple[str, Fraction], second: tuple[str, Fraction]) -> None:
    (a, left), (b, right) = first, second
    if left == right or "." not in a + b:
        assert compare(a, b).equal == compare(b, a).equal == (left == right)


@QUICK
@given(st.fractions(max_denominator=10**4), st.integers(1, 50))
def test_every_spelling_of_a_rational(value: Fraction, factor: int) -> None:
    above, below = value.numerator * factor, value.denominator * factor
    truth = f"\\frac{{{value.numerator}}}{{{value.denominator}}}"
    for spelling in (f"\\dfrac{{{above}}}{{{below}}}", f"{above}/{below}", f"\\frac{{{-above}}}{{{-below}}}"):
        assert compare(truth, spelling).equal, spelling
    for wrong in (f"\\frac{{{above + 1}}}{{{below}}}", f"{value.numerator + value.denominator}/{value.denominator}"):
        assert not compare(truth, wrong).equal, wrong


@QUICK
@given(structures, st.sampled_from(["{}", " {} ", "${}$", "\\left. {} \\right.", "{}.", "\\displaystyle {}", "**{}**"]))
def test_stable_under_wrapping(answer: str, wrapping: str) -> None:
    assert compare(answer, wrapping.format(answer)).equal


@QUICK
@given(expressions)
def test_stable_under_latex_spacing(answer: str) -> None:
    spaced = answer.replace("+", " \\, + \\; ").replace("(", "\\left( ").replace(")", " \\right)")
    assert compare(answer, spaced.replace("\\frac", "\\dfrac")).equal


@QUICK
@given(expressions)
def test_one_more_is_never_equal(answer: str) -> None:
    assert not compare(answer, f"{answer}+1").equal


PIECES = (
    r"\boxed{ } { ( ) [ ] \frac \sqrt ^ _ \text{ and , ; 1 2 3.5 x \pi \infty \pm = < \le \in \cup % $ ! | \{ \} - + "
    r"* / <think> </think> <answer> </answer> #### answer is \begin{pmatrix} \end{pmatrix} & \\ \sum \int "
    "10^{10^{10}} é 中 …"
)
pieces = st.sampled_from([*PIECES.split(), "�", "\x00", "\ud83d", "\udc80"])


@settings(max_examples=300, deadline=None)
@given(
    st.lists(pieces, max_size=25).map("".join) | any_text, structures | any_text, st.sampled_from(["strict", "lenient"])
)
def test_never_raises_and_ends_in_time(
    processor_seconds: Callable[[], float], response: str, truth: str, mode: ExtractionMode
) -> None:
    started = processor_seconds()
    assert isinstance(grade(response, truth, mode).correct, bool)
    assert processor_seconds() - started < 1.5


@settings(max_examples=3, deadline=None)
@given(st.lists(st.tuples(any_text, any_text | st.lists(any_text, min_size=1)), min_size=2, max_size=40))
def test_any_text_passes_through_a_child_process(pairs: list[tuple[str, str | list[str]]]) -> None:
    responses, truths = [response for response, _ in pairs], [truth for _, truth in pairs]
    here, children = (grade_batch(responses, truths, processes=processes) for processes in (1, 2))
    assert [(v.correct, v.extracted) for v in here] == [(v.correct, v.extracted) for v in children]


def test_lone_surrogates_in_response_and_truth() -> None:
    assert grade("\\boxed{7\ud83d}", "7\ud83d").correct
    assert grade("\ud83d so \\boxed{7}", "7").correct
    assert not grade("\\boxed{8\ud83d}", "7\ud83d").correct
    assert grade("x" * 1_000_000 + "\ud83d \\boxed{7}", "7").correct
