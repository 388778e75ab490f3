"""The pages loop on a small invented corpus: promotion raises recall, exact counts, bytes, errors, leaks."""

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mathrl.core.errors import UserError
from mathrl.core.files import write_jsonl
from mathrl.corpus import account as pages_report
from mathrl.corpus import rounds
from mathrl.corpus.corpus import Corpus
from mathrl.corpus.page_files import Page, features, host_and_path, page_files, read_evaluation, read_seeds
from mathrl.corpus.rounds import CollectedPages, clean, domains, measure, promote, top_count
from mathrl.params.pages import Pages, PagesClean, Seeds

# Two dialects of mathematics on one host: the seeds speak the first. Pages of the second have a word of
# prose, so the first round ranks them below the twenty pages on engines, of which neither seeds nor
# negatives know.
FIRST = ("sum", "add", "plus", "equals", "number", "count")
SECOND = ("sheaf", "functor", "kernel", "module", "exact", "lattice")
PROSE = ("garden", "river", "tea", "letter", "winter", "harbour")
ENGINES = ("engine", "wheel", "brake", "piston", "road", "fuel")


def text(words: tuple[str, ...], number: int) -> str:
    """Twelve of the words in an order that the number gives, and the number."""
    return " ".join(words[(number * 7 + k * k) % len(words)] for k in range(12)) + f" {number}"


def page(words: tuple[str, ...], number: int, host: str, label: bool | None) -> Page:
    said = text(words, number) + (" river" if words is SECOND else "")
    return Page(f"p.jsonl, line {number}", {"n": number}, said, host, "/x", label)


def corpus() -> list[Page]:
    """400 pages: 40 of either dialect on one host, and on each of four hosts 75 of prose, 5 on engines."""
    pages = [page(FIRST, i, "algebra.example", True) for i in range(40)]
    pages += [page(SECOND, 40 + i, "algebra.example", True) for i in range(40)]
    for i in range(320):
        pages.append(page(PROSE if i % 16 else ENGINES, 80 + i, f"prose{i // 16 % 4}.example", False))
    return pages


HOW = Pages(top_share=0.2, held_out_share=0.3, rounds=3, files=("p.jsonl",))
POSITIVES = [text(FIRST, 1000 + i) for i in range(10)]
NEGATIVES = [text(PROSE, 2000 + i) for i in range(10)]


def write_pages(file: Path, pages: list[Page]) -> None:
    rows = ({"text": p.text, "url": f"https://{p.host}{p.path}", "math": p.label, "n": p.row["n"]} for p in pages)
    write_jsonl(file, rows)


def stored(folder: Path, pages: list[Page], how: Pages) -> Corpus:
    write_pages(folder / "p.jsonl", pages)
    return Corpus([folder / "p.jsonl"], how.model_copy(update={"label_key": "math"}), folder / "state")


def collect(pages: list[Page], positives: list[str], negatives: list[str], how: Pages, seed: int) -> CollectedPages:
    with tempfile.TemporaryDirectory() as folder:
        return rounds.collect(stored(Path(folder), pages, how), positives, negatives, how, seed)


@pytest.fixture(scope="module")
def outcome() -> CollectedPages:
    return collect(corpus(), POSITIVES, NEGATIVES, HOW, seed=0)


def test_recall_rises_because_the_domain_is_promoted(outcome: CollectedPages) -> None:
    first, second, *_ = outcome.rounds
    assert first.recall is not None and second.recall is not None
    assert first.recall < 0.9 and second.recall == 1.0
    assert list(first.promoted) == ["algebra.example"]
    without = collect(corpus(), POSITIVES, NEGATIVES, HOW.model_copy(update={"domain_share": 0.9, "rounds": 2}), seed=0)
    assert not any(r.promoted for r in without.rounds)
    assert all(r.recall is not None and r.recall < 0.9 for r in without.rounds)


def test_exactly_the_top_share_is_collected_best_first(outcome: CollectedPages) -> None:
    assert [len(r.collected) for r in outcome.rounds] == [80] * len(outcome.rounds)
    last = outcome.rounds[-1]
    scores = [outcome.scores[i] for i in last.collected]
    assert scores == sorted(scores, reverse=True)
    assert min(scores) >= max(outcome.scores[i] for i in set(range(400)) - set(last.collected))
    assert top_count(100, 0.29) == 29  # 0.29 * 100 is 28.999999999999996 in floating point
    with pytest.raises(UserError, match=r"top_share 0.01 of 50 pages is none"):
        top_count(50, 0.01)


@pytest.mark.parametrize(
    ("pages", "collected", "promoted"),
    [(10, 1, False), (9, 1, True), (30, 3, False), (29, 3, True), (20, 2, False), (20, 3, True)],
)
def test_more_than_ten_per_cent_promotes_and_ten_per_cent_does_not(pages: int, collected: int, promoted: bool) -> None:
    hosts = np.repeat([0, 1], [pages, 100])
    assert promote(hosts, np.arange(collected), 0.1) == ([0] if promoted else [])


def test_pages_of_promoted_domains_become_positives_unless_held_out_or_like_the_negatives() -> None:
    pages = corpus() + [page(PROSE, 400 + i, "algebra.example", False) for i in range(40)]
    out = collect(pages, POSITIVES, NEGATIVES, HOW.model_copy(update={"rounds": 2}), seed=0)
    first, second = out.rounds
    mathematics = sum(bool(p.label) and i not in out.held_out for i, p in enumerate(pages))
    assert first.promoted == {"algebra.example": mathematics}  # and none of the 40 pages of prose
    assert second.positives == len(POSITIVES) + mathematics
    assert 0.2 < len(out.held_out) / len(pages) < 0.4


def test_the_defaults_suit_a_corpus_with_little_mathematics() -> None:
    pages = corpus()[:16] + corpus()[80:]  # 16 of 336; a fixed share of 10 % is at most half right
    positives, negatives = ([text(words, 3000 + i) for i in range(60)] for words in (FIRST, PROSE))
    out = collect(pages, positives, negatives, Pages(files=("p.jsonl",)), seed=0)
    kept = [pages[i].label for i in out.kept]
    assert sum(map(bool, kept)) >= 0.95 * 16 and sum(map(bool, kept)) >= 0.95 * len(kept)
    assert out.worse() is None


def test_a_round_that_poisons_itself_is_reported_and_not_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(rounds, "LIKE_NEGATIVES", 0.0)  # every page of a promoted domain becomes a positive
    how = HOW.model_copy(update={"top_share": 0.5, "page_negatives": 0, "rounds": 4})
    pages = stored(tmp_path, corpus(), how)
    out = rounds.collect(pages, POSITIVES, NEGATIVES, how, seed=0)
    first, second = out.rounds
    assert len(first.promoted) == 5 and second.f1 < first.f1 and out.kept == list(first.collected)
    worse = out.worse()
    assert worse and worse.startswith("round 2 was worse than round 1 (F1 ") and out.stopped == worse
    pages_report.write_report(tmp_path, out, pages, how)
    assert f"**Warning:** {worse}." in (tmp_path / "report.md").read_text()


def test_an_estimate_that_cannot_be_trusted_is_reported_with_what_to_add(tmp_path: Path) -> None:
    pages = [page(words, i, "mixed.example", None) for i, words in enumerate((FIRST, PROSE, PROSE, PROSE) * 60)]
    positives, negatives = ([text(words, 3000 + i) for i in range(40)] for words in (FIRST, PROSE))
    how = Pages(files=("p.jsonl",), rounds=1)
    assert collect(pages, positives, negatives, how, seed=0).doubts() == []

    alone = how.model_copy(update={"random_negatives": 80})
    on_disk = stored(tmp_path, pages, alone)
    out = rounds.collect(on_disk, positives, [], alone, seed=0)
    first = out.doubts()[0]
    assert first.startswith("80 random pages are the only negatives") and "of 240 pages collected" in first
    assert "name at least 100 texts that are not mathematics in negatives.files" in first
    pages_report.write_report(tmp_path, out, on_disk, alone)
    told = (tmp_path / "report.md").read_text()
    assert f"**Warning:** the held-out estimate (F1 {out.rounds[0].f1:.3f}) cannot be trusted: {first}." in told
    assert pages_report.account(out, on_disk, alone, 0)["doubts"] == out.doubts()
    labelled = [dataclasses.replace(p, label=i % 4 == 0) for i, p in enumerate(pages)]
    much = alone.model_copy(update={"held_out_share": 0.5})
    assert not any("only negatives" in doubt for doubt in collect(labelled, positives, [], much, seed=0).doubts())

    assert ["7 positives" in doubt for doubt in collect(pages, positives[:7], negatives, how, seed=0).doubts()] == [
        True
    ]
    same = [text(PROSE, 4000 + i) for i in range(40)]  # both classes look alike
    assert any("not told apart" in doubt for doubt in collect(pages, same, negatives, how, seed=0).doubts())


def test_too_few_seeds_are_an_error() -> None:
    with pytest.raises(UserError, match=r"positives: 4 different texts; write at least 5"):
        collect(corpus(), [*POSITIVES[:4], *POSITIVES[:4]], NEGATIVES, HOW, seed=0)


def test_only_pages_under_the_prefixes_become_positives() -> None:
    pages = corpus()
    pages = [Page(p.where, p.row, p.text, p.host, f"/{'maths' if p.label else 'all'}/", p.label) for p in pages]
    none = HOW.model_copy(update={"path_prefixes": {"algebra.example": ("/all",)}, "rounds": 1})
    assert collect(pages, POSITIVES, NEGATIVES, none, 0).rounds[0].promoted["algebra.example"] == 0
    some = HOW.model_copy(update={"path_prefixes": {"algebra.example": ("/none", "/maths")}, "rounds": 1})
    assert collect(pages, POSITIVES, NEGATIVES, some, 0).rounds[0].promoted["algebra.example"] > 0


def test_the_rounds_stop_when_little_is_new() -> None:
    out = collect(corpus(), POSITIVES, NEGATIVES, HOW.model_copy(update={"rounds": 9}), seed=0)
    assert out.rounds[0].new_share == 1.0 and out.rounds[-1].new_share < 0.02
    assert len(out.rounds) < 9 and "had been collected before" in out.stopped
    before: set[int] = set()
    for each in out.rounds:
        assert each.new_share == pytest.approx(len(set(each.collected) - before) / 80)
        before |= set(each.collected)


def test_held_out_pages_are_neither_seeds_nor_random_negatives() -> None:
    pages = corpus()
    seeds = [p.text.upper() for p in pages[:40]]  # the same texts after normalisation
    how = HOW.model_copy(update={"random_negatives": 1000, "rounds": 1})
    out = collect(pages, seeds, [], how, seed=0)
    assert out.held_out and not out.held_out & set(range(40))
    assert out.rounds[0].negatives == 400 - len(out.held_out)
    with pytest.raises(UserError, match="random_negatives is 0"):
        collect(pages, seeds, [], HOW, seed=0)


def test_precision_and_recall_by_hand() -> None:
    labels = np.array([1, 1, 0, 1, 0, -1], dtype=np.int8)
    # Held out 0 to 4 of which 3 are mathematics; collected of them 0, 2, 3: two of three right, two of three.
    assert measure(labels, np.array([5, 0, 2, 3]), frozenset(range(5))) == (2 / 3, 2 / 3)
    assert measure(labels, np.array([0, 2]), frozenset(range(5))) == (1 / 2, 1 / 3)
    assert measure(labels, np.array([5]), frozenset()) == (None, None)


def test_grams_of_latex_and_chinese_are_features() -> None:
    assert features("\\frac 还剩", 2) == ["\\frac", "还", "剩", "\\frac 还", "还 剩"]


def test_a_kept_page_with_ten_grams_of_an_evaluation_text_goes(tmp_path: Path) -> None:
    question = "one two three four five six seven eight nine ten eleven twelve"
    file = tmp_path / "test.jsonl"
    write_jsonl(file, [{"id": "t1", "question": question, "answer": "1"}])
    index, rows = read_evaluation(PagesClean(benchmarks=(), files=(str(file),)), seed=0)
    assert len(rows) == 1
    words = question.split()
    texts = [f"before {' '.join(words[:9])} after", f"before {' '.join(words[1:11])} after", question]
    pages = [Page("", {"n": i}, t, "a", "/", None) for i, t in enumerate(texts)]
    out = CollectedPages([], np.zeros(3), frozenset(), "", kept=[2, 1, 0])
    clean(out, stored(tmp_path, pages, HOW), index, 0.0)
    assert out.kept == [0] and [hit.train_id for hit in out.hits] == ["p.jsonl, line 3", "p.jsonl, line 2"]


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(tmp_path: Path) -> None:
    how = HOW.model_copy(update={"random_negatives": 50, "rounds": 2})
    pages = stored(tmp_path, corpus(), how)

    def written(seed: int, name: str) -> list[bytes]:
        out = rounds.collect(pages, POSITIVES, NEGATIVES, how, seed)
        folder = tmp_path / name
        pages_report.write_report(folder, out, pages, how)
        write_jsonl(folder / "kept.jsonl", pages_report.kept_rows(out, pages))
        (folder / "all.json").write_text(json.dumps([pages_report.account(out, pages, how, seed), domains(out, pages)]))
        return [file.read_bytes() for file in sorted(folder.iterdir())]

    one = written(0, "one")
    assert len(one) == 3 and one == written(0, "again")
    assert one != written(1, "other")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"url": "http://a/b"}, r"line 2: no field text; it has url: set text_key"),
        ({"text": "  ", "url": "http://a/b"}, r"line 2, field text: expected text"),
        ({"text": "x"}, r"line 2: no field url; it has text: set url_key"),
        ({"text": "x", "url": "a/b"}, r"line 2, field url: 'a/b' has no host name"),
        ({"text": "x", "url": "http://[a/b"}, r"line 2, field url: .* has no host name"),
        ({"text": "x", "url": "http://a/b", "math": "yes"}, r"line 2, field math: 'yes' is not a label"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    file = tmp_path / "p.jsonl"
    write_jsonl(file, [{"text": "x", "url": "http://a/b"}, row])
    with pytest.raises(UserError, match=message):
        Corpus([file], Pages(files=(str(file),), label_key="math"), tmp_path / "state")


def test_files_and_seeds(tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    write_jsonl(file, [{"solution": f"s{i}"} for i in range(9)])
    seeds = Seeds(files=(str(file),), text_key="solution", limit=4)
    chosen = read_seeds(seeds, "positives", seed=0)
    assert chosen == sorted(chosen) and len(set(chosen)) == 4 and chosen != read_seeds(seeds, "positives", 1)
    with pytest.raises(UserError, match=r"positives.files names no file"):
        page_files((), "positives.files")
    with pytest.raises(UserError, match=r"files: .*gone.jsonl: no such file"):
        page_files((str(tmp_path / "gone.jsonl"),), "files")
    with pytest.raises(UserError, match=r"line 1: no field text; it has solution: set positives.text_key"):
        read_seeds(Seeds(files=(str(file),)), "positives", seed=0)
    assert host_and_path("HTTP://WWW.A.Example", "") == ("a.example", "/")
