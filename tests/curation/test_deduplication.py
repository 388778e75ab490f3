"""Duplicates, near-duplicates and variants of a problem, each with the row that won."""

from itertools import combinations, islice

import numpy as np
import pytest

from mathrl.core.types import Problem
from mathrl.curation import row_store
from mathrl.curation import similar_pairs as search
from mathrl.curation.deduplicate import Dropped, Variants, deduplicate
from mathrl.curation.question_digests import digest
from mathrl.curation.row_shards import Digesting
from mathrl.curation.row_store import RowStore
from mathrl.curation.similar_pairs import similar_pairs
from mathrl.params.data import Deduplicate, NearDuplicates


def row(id: str, question: str, answer: str = "1", split: str = "rl") -> Problem:
    return Problem(id, question, (answer,), "made", split)


def deduplicated(rows: list[Problem], params: Deduplicate) -> tuple[list[Problem], list[Dropped], list[Variants]]:
    """What deduplicate makes of rows that are stored for it."""
    store = RowStore.of(rows, Digesting(params.near))
    dropped, variants = deduplicate(store, params)
    reasons = dict(dropped)
    kept = list(store.all().without(np.array([*reasons], np.int64)))
    return kept, [Dropped.of(store.problem(number), why) for number, why in reasons.items()], variants


LONG = "a farmer has twelve cows and sells some of them to his neighbour how many are left"


def test_held_out_rows_win_and_every_dropped_row_names_its_winner() -> None:
    held_out = [row("t", "1+1 =", split="test"), row("d", "1+1=", split="dev")]
    rows = [row("a", "1 + 1 ="), row("b", "1+1="), *held_out, row("c", "2+2=", "4")]
    kept, dropped, _ = deduplicated(rows, Deduplicate())
    assert [p.id for p in kept] == ["t", "c"]
    assert {d.id: (d.reason, d.other) for d in dropped} == dict.fromkeys("abd", ("duplicate", "t"))


def test_conflicting_answers_take_all_training_rows_with_them() -> None:
    rows = [row("a", "1+1=", "2"), row("b", "1+1=", "2"), row("c", "1+1=", "3")]
    kept, dropped, _ = deduplicated(rows, Deduplicate())
    assert kept == [] and {d.reason for d in dropped} == {"conflicting answers"}
    assert {d.id for d in dropped} == set("abc") and all(d.other not in (None, d.id) for d in dropped)
    kept, _, _ = deduplicated([*rows, row("t", "1+1=", "2", "test")], Deduplicate())
    assert [p.id for p in kept] == ["t"]


def test_answers_that_are_equal_do_not_conflict() -> None:
    rows = [row("a", "log?", r"\frac{1}{3}"), row("b", "log ?", r"\frac13"), row("c", "log  ?", "1/3")]
    kept, dropped, _ = deduplicated(rows, Deduplicate())
    assert [p.id for p in kept] == ["a"] and {d.reason for d in dropped} == {"duplicate"}


def test_near_duplicates_need_the_same_numbers() -> None:
    near = Deduplicate(near=NearDuplicates(threshold=0.7, ngram=3))
    rows = [row("a", f"{LONG} 5"), row("b", f"{LONG}, please 5"), row("c", f"{LONG} 6")]
    kept, dropped, _ = deduplicated(rows, near)
    assert [p.id for p in kept] == ["a", "c"]
    assert (dropped[0].other, dropped[0].detail) == ("a", "jaccard >= 0.7")
    loose = Deduplicate(near=NearDuplicates(threshold=0.7, ngram=3, same_numbers=False))
    assert [p.id for p in deduplicated(rows, loose)[0]] == ["a"]


def test_questions_with_options_are_told_apart_by_their_variables() -> None:
    shapes = "(A) Line (B) Circle (C) Plane (D) Sphere (E) Cylinder (F) Cone. Enter the letter of the correct option."
    asked = "For a constant c, in cylindrical coordinates (r,θ,z), find the shape described by the equation ${} = c.$ "
    rows = [row(name, asked.format(name) + shapes, "C") for name in (r"\theta", "z")]
    near = Deduplicate(near=NearDuplicates(threshold=0.5, ngram=3))
    assert len(deduplicated(rows, near)[0]) == 2
    assert len(deduplicated([r.with_(question=r.question.replace(shapes, "")) for r in rows], near)[0]) == 1


@pytest.mark.parametrize("seed", range(2))
def test_pairs_are_all_that_sets_of_shingles_find(seed: int) -> None:
    """All that an exact comparison finds, and nothing else; where the salts differ, a pair for each row at least."""
    rng, near = np.random.default_rng(seed), NearDuplicates(threshold=[0.5, 0.8][seed % 2], ngram=2)
    words = invented_words(400)
    texts = [" ".join(rng.choice([*words, "7", "8"], rng.integers(9, 30))) for _ in range(20)]
    for _ in range(60):  # changed in one word, or one word shorter
        parts = texts[rng.integers(20)].split()
        parts[rng.integers(len(parts))] = str(rng.choice(["7", words[rng.integers(400)]]))
        texts.append(" ".join(parts[: len(parts) - int(rng.integers(2))]))
    store = RowStore.of([row(str(i), text) for i, text in enumerate(texts)], Digesting(near))
    pairs, same = similar_pairs(store, near.threshold)
    digests = digest(texts, near.ngram)
    sets = [set(digests.shingles.row(i).tolist()) for i in range(len(texts))]
    similar = {
        (i, j) for i, j in combinations(range(len(texts)), 2)
        if len(sets[i] & sets[j]) >= near.threshold * len(sets[i] | sets[j])
    }  # fmt: skip
    found = {tuple(pair): bool(equal) for pair, equal in zip(pairs.tolist(), same, strict=True)}
    assert found.keys() <= similar
    assert all(equal == (digests.salt[i] == digests.salt[j]) for (i, j), equal in found.items())
    assert {pair for pair in similar if digests.salt[pair[0]] == digests.salt[pair[1]]} <= found.keys()
    assert {j for _, j in similar} == {j for _, j in found}
    assert len(found) > 20 and 0 < sum(found.values()) < len(found), "the seed shows nothing"


def test_pairs_are_the_same_in_parts_and_within_little_memory_on_many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, near, words = np.random.default_rng(3), NearDuplicates(ngram=1), np.array(invented_words(9000))
    texts = [" ".join(rng.choice(words, 12)) for _ in range(600)]
    texts += [" ".join([*text.split()[:-1], "other"]) for text in texts[:200]]
    store = RowStore.of([row(str(i), text) for i, text in enumerate(texts)], Digesting(near))
    pairs, same = similar_pairs(store, near.threshold)
    assert len(pairs) >= 200
    monkeypatch.setattr(search, "TOGETHER", 400)
    monkeypatch.setattr(search, "PAIRS", 30)
    monkeypatch.setattr(row_store, "MEMORY", "40MB")
    monkeypatch.setattr(row_store, "cores", lambda: 64)
    in_parts = similar_pairs(store, near.threshold)
    assert np.array_equal(in_parts[0], pairs) and np.array_equal(in_parts[1], same)
    assert not list(store.folder.glob("similar*"))


SIZES = (1, 2, 3, 7, 10, 20, 40)


@pytest.fixture(scope="module")
def pairs_of_rows() -> tuple[RowStore, list[tuple[int, int]]]:
    """Pairs of rows of so many words, which share 0 to all of them and none with other pairs; the words shared."""
    cases = [(size, shared) for size in SIZES for shared in range(size + 1)]
    words = iter(invented_words(sum(2 * size - shared for size, shared in cases)))
    rows = []
    for size, shared in cases:
        own, others = list(islice(words, size)), list(islice(words, size - shared))
        rows += [row(f"a{len(rows)}", " ".join(own)), row(f"b{len(rows)}", " ".join(own[:shared] + others))]
    return RowStore.of(rows, Digesting(NearDuplicates(ngram=1))), cases


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.8, 1.0])
def test_no_pair_just_at_the_threshold_is_missed(
    threshold: float, pairs_of_rows: tuple[RowStore, list[tuple[int, int]]]
) -> None:
    """Two rows with one more word each, at any place of the other words' order."""
    store, cases = pairs_of_rows
    pairs, _ = similar_pairs(store, threshold)
    assert pairs.tolist() == [
        [2 * place, 2 * place + 1] for place, (size, shared) in enumerate(cases)
        if shared >= threshold * (2 * size - shared) - 1e-12
    ]  # fmt: skip


def test_boilerplate_is_compared_with_its_first_row_and_the_rows_just_before() -> None:
    words = invented_words(40)
    rows = [row(str(i), " ".join([*words, f"other{'x' * i}"])) for i in range(60)]
    pairs, _ = similar_pairs(RowStore.of(rows, Digesting(NearDuplicates(ngram=1))), 0.8)
    assert {j for _, j in pairs.tolist()} == set(range(1, 60)) and len(pairs) <= 60 * 10


def invented_words(count: int) -> list[str]:
    letters = "abcdefghij"
    return ["w" + "".join(letters[int(digit)] for digit in str(i)) for i in range(count)]


SIGNS = "Find the number of integers n with 2n{}1 > {} for which the sum of all digits of n{}1 is a prime number"


def test_operators_numbers_and_answers_tell_variants_from_duplicates() -> None:
    questions = [SIGNS.format("-", 7, "+"), SIGNS.format("+", 7, "+"), SIGNS.format("-", 9, "+")]
    spelled = SIGNS.format(" - ", "7 ", " + ").replace("2n - 1 >", r"$2 n-1 \gt$")
    rows = [row(str(i), question, str(i)) for i, question in enumerate(questions)]
    rows += [row("same", spelled, "0"), row("other", questions[0].replace("sum", "product"), "5")]
    kept, dropped, variants = deduplicated(rows, Deduplicate(near=NearDuplicates(threshold=0.5)))
    assert [(d.id, d.other, d.reason) for d in dropped] == [("same", "0", "duplicate")]
    assert [p.id for p in kept] == ["0", "1", "2", "other"]
    groups = {group.difference: {p.id for p in group.problems} for group in variants}
    assert groups == {"answers": {"0", "other"}, "numbers or operators": {"0", "1", "2", "other"}}
    conflict = deduplicated([*rows[:1], rows[3].with_(answers=("8",))], Deduplicate(near=NearDuplicates()))
    assert conflict[0] == [] and {d.reason for d in conflict[1]} == {"conflicting answers"}
