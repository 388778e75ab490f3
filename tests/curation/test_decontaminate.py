import random
from typing import Any

import pytest

from mathrl.core.types import Problem
from mathrl.curation import token_windows
from mathrl.curation.decontaminate import EvaluationIndex, find_hits
from mathrl.curation.question_digests import question_tokens
from mathrl.curation.token_windows import TokenHashes, hash_tokens
from mathrl.data.grams import exact_key, grams, numbers


def row(id: str, question: str, split: str = "rl", solution: str | None = None, answer: str = "1") -> Problem:
    return Problem(id, question, (answer,), "made", split, solution=solution)


def index(*problems: Problem, ngram: int = 10) -> EvaluationIndex:
    made = EvaluationIndex(ngram)
    for problem in problems:
        made.add_problem(problem)
    return made


def hits(train: Problem, against: EvaluationIndex, min_share: float = 0.0) -> list[str]:
    return [hit.eval_id for _, hit in find_hits([train], against) if hit and hit.share >= min_share]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Janet’s ducks, lay 16 EGGS!", ["janets", "ducks", "lay", "16", "eggs"]),
        ("don't dont", ["dont", "dont"]),
        (r"$\frac{1}{2}$ of \Delta x", [r"\frac", "1", "2", "of", r"\delta", "x"]),
        ("小明有1,250个苹果", ["小", "明", "有", "1250", "个", "苹", "果"]),
        ("ＡＢ １２ ½", ["ab", "12", "1", "2"]),
        ("3.50 and 1,2,3", ["3.50", "and", "1", "2", "3"]),
        ("x_1^2", ["x", "1", "2"]),
        ("?!", []),
    ],
)
def test_grams_are_words_han_characters_numbers_and_commands(text: str, expected: list[str]) -> None:
    assert grams(text) == expected


def test_the_exact_key_keeps_signs_and_forgets_spaces_and_case() -> None:
    assert exact_key("7 + 5 =") == exact_key("7+5=") != exact_key("7-5=")
    assert exact_key("Find X") == exact_key("find  x")
    assert numbers(grams("9 and 3, 12")) == ("12", "3", "9")


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("Whаt is thе sum?", "What is the sum?"),  # а and е of Cyrillic
        ("ΝΑΤURΕ of а POINT", "nature of a point"),  # Greek and Cyrillic capitals
        ("Ｆｉｎｄ the whαt", "find the what"),
        ("Fi\u200bnd it\ufeff", "find it"),
    ],
)
def test_letters_that_look_alike_are_one_where_texts_are_compared(text: str, same: str) -> None:
    assert exact_key(text) == exact_key(same)
    assert grams(text) == grams(same) and question_tokens(text) == question_tokens(same)


@pytest.mark.parametrize(("one", "other"), [("α+a", "a+a"), ("sinαcosβ", "sinacosβ"), ("ρ=3", "p=3"), ("ω", "w"),
                                            ("\\alpha", "a"), ("кг", "kr")])  # fmt: skip
def test_greek_letters_stay_variables_of_their_own(one: str, other: str) -> None:
    assert exact_key(one) != exact_key(other) and grams(one) != grams(other)


DRAWING = "[asy] size(5cm); defaultpen(fontsize(9)); pair o = (0, 0); pair q = (0, 12); draw(o--q); label({}); [/asy]"


@pytest.mark.parametrize(
    "shared",
    [
        "$1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12$",
        "Enter the letters odd or even or neither, as the one word that says what it is.",
        "Express your answer as a common fraction in lowest terms without any spaces or units at all.",
        "The answer is in the form \\frac{m}{n}, where gcd(m, n) = 1. Please provide the value of m + n.",
        "What is the number of square units in the area of it?",
    ],
)
def test_what_many_problems_share_is_no_hit(shared: str) -> None:
    against = index(row("e", f"A frog jumps over a pond that has lilies. {shared}"))
    assert hits(row("t", f"Some boys eat a cake, and girls drink. {shared}"), against) == []
    assert hits(row("t", f"A frog jumps over a pond that has lilies. {shared}"), against, 1.0) == ["e"]


def test_a_drawing_is_one_gram_and_other_drawings_are_others() -> None:
    against = index(row("e", "Find the area of the shape. " + DRAWING.format(1)))
    assert hits(row("t", "How long is the segment in it? " + DRAWING.format(2)), against) == []
    assert hits(row("t", "Find the area of the shape. " + DRAWING.format(2)), against) == []
    assert hits(row("t", "Find the area of the shape. " + DRAWING.format(1).replace(" ", "\n")), against) == ["e"]


TEN = "one two three four five six seven eight nine ten"


def test_a_solution_counts_as_an_evaluation_text_and_a_trained_one_only_in_sft() -> None:
    against = index(row("e", "short question here now", solution=TEN))
    assert hits(row("t", TEN), against) == ["e"]
    assert hits(row("t", "other", solution=TEN), against) == []
    assert hits(row("t", "other", split="sft", solution=TEN), against) == ["e"]


def test_short_evaluation_texts_are_matched_whole() -> None:
    against = index(row("e", "compute seven plus five"), row("two", "compute this"))
    assert hits(row("t", "please compute seven plus five now"), against) == ["e"]
    assert hits(row("t", "compute this"), against) == []
    assert against.too_short == ["two (question)"]


def test_a_bare_formula_is_no_text_but_a_worded_answer_is() -> None:
    formula = index(row("e", TEN, answer=r"\frac{1}{2}"))
    assert hits(row("t", r"add \frac{1}{2} and 3"), formula) == []
    words = index(row("e", TEN, answer="the red bicycle shop"))
    assert hits(row("t", "who owns the red bicycle shop today"), words) == ["e"]


def test_the_share_by_words_is_of_the_smaller_texts_distinct_grams() -> None:
    against = EvaluationIndex(10, "words")
    against.add_problem(row("e", f"{TEN} a b c d e f g h i j"))  # 20 distinct
    train = row("t", f"{TEN} one two zero")  # 11 distinct, 10 of them shared
    ((_, hit),) = find_hits([train], against)
    assert hit is not None and hit.share == pytest.approx(10 / 11) and hit.ngrams_shared == 1
    assert hit.ngram == TEN and not hit.whole
    assert hits(train, against, min_share=0.91) == []
    assert hits(train, against, min_share=0.90) == ["e"]


def test_the_strongest_hit_is_reported_with_the_others() -> None:
    against = index(row("weak", f"{TEN} a b c d e f g h i j k l"), row("same", f"{TEN} p q r"))
    ((_, hit),) = find_hits([row("t", f"{TEN} p q r s t u v w x")], against)
    assert hit is not None and hit.eval_id == "same" and hit.others == ("weak",)
    assert hit.to_row()["others"] == ["weak"]


def by_hand(evaluation: list[list[str]], words: list[str], ngram: int, skip: set[int]) -> tuple[Any, ...] | None:
    """Evaluation text, share, first shared n-gram and number of different ones, from sets and loops."""
    found = []
    for number, text in enumerate(evaluation):
        size = min(ngram, len(text))
        runs = {tuple(text[i : i + size]) for i in range(len(text) - size + 1)}
        places = [i for i in range(len(words) - size + 1) if tuple(words[i : i + size]) in runs]
        if len(text) < 3 or number in skip or not places:
            continue
        mine = {tuple(words[i : i + size]) for i in places}
        covered = {i + k for i in places for k in range(size)}
        theirs = {i + k for i in range(len(text)) if tuple(text[i : i + size]) in mine for k in range(size)}
        share = max(len(covered) / len(words), len(theirs) / len(text))
        first = " ".join(words[places[0] : places[0] + size])
        found.append(((share, len(places), -number), number, first, len(mine)))
    if not found:
        return None
    (share, _, _), number, first, different = max(found)
    return str(number), share, first, different


@pytest.mark.parametrize(("ngram", "matches"), [(3, 1 << 20), (4, 5), (10, 1 << 20)])
def test_hits_are_those_of_sets_and_loops(monkeypatch: pytest.MonkeyPatch, ngram: int, matches: int) -> None:
    monkeypatch.setattr(token_windows, "MATCHES", matches)  # windows in memory: one row at a time, or all
    rng = random.Random(ngram)
    words = [rng.choices("abcdefgh", k=rng.randint(0, 14)) for _ in range(400)]
    words += [[*text[:9], "z", *text[3:]] for text in words[:40]]
    against = EvaluationIndex(ngram)
    for number, text in enumerate(words[:30]):
        against.add(str(number), "question", " ".join(text))
    skips = [{number} if number < 20 else set() for number in range(len(words))]
    asked = [(f"t{i}", " ".join(text), frozenset(map(str, skips[i]))) for i, text in enumerate(words)]
    hits = against.hits(asked)
    shown = [hit and (hit.eval_id, hit.share, hit.ngram, hit.ngrams_shared) for hit in hits]
    assert shown == [by_hand(words[:30], text, ngram, skips[i]) for i, text in enumerate(words)]
    assert 20 < sum(hit is not None for hit in hits) < 420
    may = against.may_hit(hash_tokens(words, TokenHashes())).tolist()
    assert all(possible or hit is None for possible, hit in zip(may, hits, strict=True)) and not all(may)
    against.add("late", "question", "x y z x y z x y z x y z")  # windows that are added later count as well
    assert against.hits([("t", "x y z x y z x y z x y z", frozenset())]) != [None]


def test_a_skip_holds_for_its_source_alone() -> None:
    against = index(row("e", f"{TEN} eleven"))
    two = [row("t", TEN), Problem("u", TEN, ("1",), "other", "rl")]
    assert [hit is None for _, hit in find_hits(two, against, skips={"made": frozenset({"e"})})] == [True, False]


def test_texts_of_one_word_are_compared_in_little_memory() -> None:
    """A pair of places each would be 640 million per training text."""
    words = " ".join(["seven"] * 4000)
    against = EvaluationIndex(10)
    for number in range(40):
        against.add(str(number), "question", words)
    hits = against.hits([("a", words, frozenset()), ("b", words, frozenset())])
    assert [hit and (hit.share, hit.ngrams_shared, len(hit.others)) for hit in hits] == [(1.0, 1, 20)] * 2
