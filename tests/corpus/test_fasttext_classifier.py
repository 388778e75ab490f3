"""A trained fastText model as the classifier of pages, on a model whose probabilities follow by hand."""

import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mathrl.core.errors import UserError
from mathrl.core.files import write_jsonl
from mathrl.corpus import rounds
from mathrl.corpus.classifier import FastTextModel, check_model, lines
from mathrl.corpus.corpus import Corpus
from mathrl.corpus.rounds import CollectedPages
from mathrl.params.pages import FastTextClassifier, Pages

pytest.importorskip("fasttext", reason="fasttext-predict is not installed: pip install -e '.[fasttext]'")

MATHEMATICS = ["sum", "equals", "$x$"]
PROSE = ["river", "garden", "tea"]


def save_model(file: Path) -> Path:
    """fastText's format 12: a word of mathematics is (2, 0), one of prose (0, 2), the labels (1, -1) and (-1, 1).

    A text of which m words in n are mathematics has the log-odds 4 (2 m - n) / n.
    """
    words = [*MATHEMATICS, *PROSE]
    arguments = struct.pack("<12id", 2, 5, 1, 1, 0, 1, 3, 3, 0, 0, 0, 100, 0.0)
    counts = struct.pack("<3i2q", len(words) + 2, len(words), 2, 100, -1)
    entries = [(word, 0) for word in words] + [("__label__maths", 1), ("__label__rest", 1)]
    listed = b"".join(text.encode() + struct.pack("<bqb", 0, 9, kind) for text, kind in entries)
    vectors = [value for word in words for value in ((2.0, 0.0) if word in MATHEMATICS else (0.0, 2.0))]
    inputs = struct.pack(f"<?2q{len(vectors)}f", False, len(words), 2, *vectors)
    outputs = struct.pack("<?2q4f", False, 2, 2, 1.0, -1.0, -1.0, 1.0)
    file.write_bytes(struct.pack("<2i", 793712314, 12) + arguments + counts + listed + inputs + outputs)
    return file


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_model(tmp_path / "own.bin")


def classifier(file: Path, label: str = "maths") -> FastTextClassifier:
    return FastTextClassifier(type="fasttext", model=str(file), label=label)


def test_scores_are_the_log_odds_computed_by_hand(model: Path) -> None:
    texts = ["sum river", "sum\n sum  equals tea", "garden", "$x$ unknown", "Sum"]
    found = FastTextModel(check_model(classifier(model)), "maths").score(lines(texts))
    assert found[:4] == pytest.approx([0, 4 * (2 * 3 - 4) / 4, -4, 4], abs=1e-3)
    assert found[4] < -11  # no word that it knows: capitals are other words
    other = FastTextModel(model, "rest").score(lines(texts))
    assert other[:4] == pytest.approx(-found[:4], abs=1e-3) and other[4] == found[4]
    assert [*lines(["One\n Two \ud83d"])] == ["One Two \\ud83d"]


def collected(folder: Path, how: Pages) -> CollectedPages:
    """30 of 150 pages are mathematics, with a word of prose in them; page 3 has no word."""
    folder.mkdir()

    def text(words: list[str], number: int, count: int) -> str:
        return " ".join(random.Random(number).choices(words, k=count))

    for part in range(2):
        rows = (
            {"text": "!?" if n == 3 else f"{text(MATHEMATICS, n, 6)} tea" if n % 5 == 0 else text(PROSE, n, 7),
             "url": f"https://h{n % 5}.example/{n}"}
            for n in range(75 * part, 75 * part + 75)
        )  # fmt: skip
        write_jsonl(folder / f"{part}.jsonl", rows)
    corpus = Corpus(sorted(folder.glob("*.jsonl")), how, folder / "state")
    seeds = ([text(words, 1000 + n, 5 + n) for n in range(count)] for words, count in ((MATHEMATICS, 12), (PROSE, 40)))
    return rounds.collect(corpus, *seeds, how, seed=0)


def test_it_scores_the_pages_in_one_round_with_any_number_of_workers(model: Path, tmp_path: Path) -> None:
    def pages(workers: int) -> Pages:
        values: dict[str, Any] = {"files": ["p.jsonl"], "executor": {"type": "local", "workers": workers}}
        return Pages.model_validate(values | {"classifier": classifier(model).model_dump()})

    out = collected(tmp_path / "a", pages(1))
    assert sorted(out.kept) == [n for n in range(150) if n % 5 == 0]
    assert len(out.rounds) == 1 and out.stopped == "no round trains the fastText model"
    assert out.scores.argmin() == 3 and not np.isnan(out.scores).any()
    assert collected(tmp_path / "b", pages(2)).scores.tobytes() == out.scores.tobytes()


def test_what_is_no_model_or_no_label_is_refused_with_what_to_write(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"classifier.label: .*own.bin has no label 'math'; it has maths, rest$"):
        FastTextModel(model, "math").score(lines(["?", "sum"]))
    (tmp_path / "no.bin").write_bytes(b"no model")
    with pytest.raises(UserError, match=r"classifier.model: .*no.bin has wrong file format!; name a model that"):
        check_model(classifier(tmp_path / "no.bin"))
    with pytest.raises(UserError, match=r"^pages.classifier.model: \S*none.bin cannot be opened for loading!; name"):
        check_model(classifier(tmp_path / "none.bin"))
