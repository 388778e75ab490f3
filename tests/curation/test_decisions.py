"""A person's decisions on doubtful hits: asked once, obeyed by later runs, and for these two texts alone."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from mathrl.cli.main import app
from mathrl.core.errors import UserError
from mathrl.core.files import read_jsonl, write_jsonl
from mathrl.curation import curation
from mathrl.curation.decisions import doubtful, read_decisions, text_key
from mathrl.curation.decontaminate import EvaluationIndex
from mathrl.params.data import Curate

TEN = "one two three four five six seven eight nine ten"
HALF = f"{TEN} a b c d e f g h i j"  # half of it is the evaluation text below
EVALUATION = f"{TEN} k l m n o p q r s t"


def invoke(*words: str, keys: str = "") -> str:
    done = CliRunner().invoke(app, list(words), input=keys)
    if done.exception:
        raise done.exception
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "train.jsonl", [{"id": "t", "question": HALF}, {"id": "u", "question": HALF + " y z"}])
    write_jsonl(tmp_path / "test.jsonl", [{"id": "e", "question": EVALUATION, "answer": "1"}])
    return tmp_path


def cleaned(*words: str) -> list[str]:
    files = ["--train", "train.jsonl", "--against", "test.jsonl", "--output", "clean.jsonl", "--report", "hits.jsonl"]
    invoke("data", "decontaminate", *files, *words)
    return [row["id"] for row in read_jsonl(Path("clean.jsonl"))]


def test_decisions_are_asked_once_and_obeyed_later(folder: Path) -> None:
    assert cleaned("--min-share", "0.4") == []
    shown = invoke("data", "decide", "hits.jsonl", keys="x\nk\nq\n")
    assert "2 undecided hits" in shown and HALF in shown and EVALUATION in shown and "k: keep the training row" in shown
    assert cleaned("--min-share", "0.4", "--decisions", "decisions.jsonl") == ["t"]  # share 1/2, the middle, is first
    assert [row["decision"] for row in read_jsonl(folder / "hits.jsonl")] == ["keep", None]
    invoke("data", "decide", "hits.jsonl", keys="d\n")
    assert "0 undecided hits" in invoke("data", "decide", "hits.jsonl")
    # A threshold that keeps both does not overrule the decisions, nor do other ids.
    write_jsonl(folder / "train.jsonl", [{"id": "7", "question": HALF.upper()}, {"id": "8", "question": HALF + " y z"}])
    assert cleaned("--min-share", "0.9", "--decisions", "decisions.jsonl") == ["7"]
    assert cleaned("--min-share", "0.9") == ["7", "8"]


def test_a_kept_pair_does_not_hide_another_hit() -> None:
    pair = (text_key(HALF), text_key(EVALUATION))
    index = EvaluationIndex(10, decisions={pair: "keep"})
    index.add("e", "question", EVALUATION)
    (kept,) = index.hits([("t", HALF, frozenset())])
    assert kept is not None and kept.decision == "keep" and not kept.is_dropped(0)
    index.add("other", "question", TEN + " v w x y z " + EVALUATION[::-1] * 3)  # a smaller share, but undecided
    (hit,) = index.hits([("t", HALF, frozenset())])
    assert hit is not None and (hit.eval_id, hit.decision) == ("other", None) and hit.is_dropped(0.4)


def test_a_later_row_replaces_an_earlier_one_and_bad_rows_are_named(tmp_path: Path) -> None:
    file = tmp_path / "decisions.jsonl"
    pair = {"train_key": "a", "eval_key": "b"}
    write_jsonl(file, [pair | {"decision": "keep"}, pair | {"decision": "drop", "note": "same problem"}])
    assert read_decisions(file) == {("a", "b"): "drop"}
    write_jsonl(file, [pair | {"decision": "yes"}])
    with pytest.raises(UserError, match=r"decisions.jsonl, line 1: decision is 'yes'; write keep or drop"):
        read_decisions(file)
    write_jsonl(file, [{"decision": "keep"}])
    with pytest.raises(UserError, match=r"line 1: no train_key; write the decisions with `mathrl data decide`"):
        read_decisions(file)
    with pytest.raises(UserError, match=r"gone.jsonl: no such file"):
        read_decisions(tmp_path / "gone.jsonl")
    with pytest.raises(UserError, match=r"decisions.jsonl, line 1: not a hit"):
        doubtful(file, {}, 0, 1)


def test_curation_obeys_and_accounts_for_decisions(folder: Path) -> None:
    other = {"id": "other", "question": "How far is it?", "answer": "3"}
    write_jsonl(folder / "train.jsonl", [{"id": "t", "question": HALF, "answer": "2"}, other])
    write_jsonl(
        folder / "d.jsonl", [{"train_key": text_key(HALF), "eval_key": text_key(EVALUATION), "decision": "keep"}]
    )
    sources = [
        {"type": "file", "name": name, "path": str(folder / f"{name}.jsonl"), "split": split, "id_key": "id"}
        for name, split in (("train", "rl"), ("test", "test"))
    ]

    def kept(**rule: str) -> list[str]:
        params = Curate.model_validate({"sources": sources, "decontaminate": rule})
        return [problem.id for problem in curation.run(params, seed=0).splits["rl"]]

    assert kept() == ["other"] and kept(decisions=str(folder / "d.jsonl")) == ["t", "other"]
