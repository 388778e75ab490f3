"""The embedding pass of decontamination, on a tiny model in model2vec's format whose cosines are known."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model2vec import StaticModel
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from mathrl.core.errors import UserError
from mathrl.core.files import write_jsonl
from mathrl.curation import curation
from mathrl.curation.decisions import Hit, text_key
from mathrl.curation.decontaminate import EvaluationIndex, SimilarQuestions, evaluation_index, find_hits
from mathrl.params.data import Curate, Decontaminate, Embedding
from tests.curation.test_decisions import invoke

# Two words of each meaning; a text's embedding is the mean of its words', so its cosines follow by hand.
MEANINGS = [("car", "vehicle"), ("goes", "travels"), ("far", "distant"), ("tea", "infusion"), ("cup", "mug")]
QUESTION, SAME = "car goes far car goes", "vehicle travels distant vehicle travels"
HALF = "vehicle travels distant tea tea"  # (1, 1, 1, 2) and (2, 2, 1, 0): 5 / sqrt(7 * 9) = 0.63


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    words = ["[UNK]", *(word for pair in MEANINGS for word in pair)]
    vectors = np.zeros((len(words), len(MEANINGS)), dtype=np.float32)
    vectors[np.arange(1, len(words)), np.arange(len(words) - 1) // 2] = 1
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    folder = tmp_path_factory.mktemp("model")
    StaticModel(vectors, tokenizer).save_pretrained(folder)
    return str(folder)


def index(model: str, min_similarity: float = 0.9, **values: Any) -> EvaluationIndex:
    similar = SimilarQuestions(Embedding(model=model, min_similarity=min_similarity))
    made = EvaluationIndex(10, similar=similar, **values)
    made.add("e", "question", QUESTION)
    made.add("s", "solution", "infusion mug infusion mug")  # solutions are not compared
    return made


def look_up(made: EvaluationIndex, text: str, skip: frozenset[str] = frozenset()) -> Hit | None:
    return made.hits([("t", text, skip)])[0]


def test_cosines_are_those_computed_by_hand(model: str) -> None:
    similar = SimilarQuestions(Embedding(model=model))
    similar.add(7, QUESTION)
    cosines = similar.cosines([QUESTION, SAME, HALF, "tea cup", "unknown words"])[:, 0]
    assert cosines.tolist() == pytest.approx([1, 1, round(5 / 63**0.5, 4), 0, 0])


def test_a_question_in_other_words_is_a_hit_and_ngrams_come_first(model: str) -> None:
    hit = look_up(index(model), SAME)
    assert hit is not None and hit.semantic and hit.is_dropped(1.0)
    assert (hit.eval_id, hit.part, hit.share, hit.ngram, hit.ngrams_shared) == ("e", "question", 1.0, "", 0)
    assert hit.to_row()["semantic"] is True
    verbatim = look_up(index(model), QUESTION)
    assert verbatim is not None and not verbatim.semantic and verbatim.whole and "semantic" not in verbatim.to_row()
    assert look_up(index(model), HALF) is None and look_up(index(model), "tea cup") is None
    half = look_up(index(model, 0.62), HALF)
    assert half is not None and half.share == pytest.approx(0.63, abs=0.001)
    assert look_up(index(model), SAME, frozenset({"e"})) is None
    # A shared n-gram that min_share does not drop leaves the question to the embeddings.
    doubtful = EvaluationIndex(3, similar=SimilarQuestions(Embedding(model=model, min_similarity=0.6)), min_share=0.9)
    doubtful.add("e", "question", QUESTION)
    three = look_up(doubtful, "car goes far tea tea")  # 3 of 5 grams are shared
    assert three is not None and three.semantic and three.share == pytest.approx(0.63, abs=0.001)
    doubtful.min_share = 0.5
    three = look_up(doubtful, "car goes far tea tea")
    assert three is not None and not three.semantic and three.share == pytest.approx(0.6)


def test_other_numbers_make_another_problem_unless_a_parameter_says_otherwise(model: str) -> None:
    def hit(same_numbers: bool, question: str, **values: Any) -> bool:
        params = Embedding(model=model, min_similarity=0.9, same_numbers=same_numbers)
        made = EvaluationIndex(10, similar=SimilarQuestions(params), **values)
        made.add("e", "question", "car 12 goes far 3")
        return look_up(made, question) is not None

    other = "vehicle 13 travels distant 3"
    assert hit(True, "vehicle 3 travels distant 12") and not hit(True, other) and hit(False, other)
    judged = {(text_key(other), text_key("car 12 goes far 3")): "drop"}
    assert hit(True, other, decisions=judged)


def test_decisions_are_obeyed_and_hide_no_other_hit(model: str) -> None:
    keep = index(model, decisions={(text_key(SAME), text_key(QUESTION)): "keep"})
    hit = look_up(keep, SAME)
    assert hit is not None and hit.decision == "keep" and not hit.is_dropped(0.0)
    keep.add("other", "question", "vehicle goes far vehicle goes")
    hit = look_up(keep, SAME)
    assert hit is not None and (hit.eval_id, hit.decision) == ("other", None) and hit.is_dropped(0.0)
    drop = index(model, decisions={(text_key(HALF), text_key(QUESTION)): "drop"})
    hit = look_up(drop, HALF)  # less similar than the threshold
    assert hit is not None and hit.decision == "drop" and hit.is_dropped(1.0)


def test_curate_and_the_command_drop_similar_questions(model: str, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "test.jsonl", [{"id": "e", "question": QUESTION, "answer": "1"}])
    rows = [{"id": f"t{i}", "question": text, "answer": "1"} for i, text in enumerate([SAME, HALF, "tea cup tea"])]
    write_jsonl(tmp_path / "train.jsonl", rows)
    sources = [
        {"type": "file", "name": name, "path": str(tmp_path / f"{name}.jsonl"), "split": split, "id_key": "id"}
        for name, split in (("train", "rl"), ("test", "test"))
    ]

    def kept(**rule: Any) -> list[str]:
        curated = curation.run(Curate.model_validate({"sources": sources, "decontaminate": rule}), seed=0)
        assert all("embedding of its question, share 1.00: similar words" in row.detail for row in curated.dropped)
        return [problem.id for problem in curated.splits["rl"]]

    assert kept() == ["t0", "t1", "t2"] and kept(embedding={"model": model}) == ["t1", "t2"]
    files = [str(tmp_path / name) for name in ("train.jsonl", "test.jsonl", "out.jsonl", "hits.jsonl")]
    options = [
        word for pair in zip(("--train", "--against", "--output", "--report"), files, strict=True) for word in pair
    ]
    said = invoke("data", "decontaminate", *options, "--embedding", model, "--min-similarity", "0.6")
    assert "3 rows, 1 kept, 2 dropped" in said


def test_what_is_no_model_is_named(tmp_path: Path, model: str) -> None:
    def error(name: str) -> str:
        with pytest.raises(UserError) as raised:
            list(find_hits([], evaluation_index(Decontaminate(embedding=Embedding(model=name)))))
        return str(raised.value)

    assert "no model.safetensors and no tokenizer.json and no config.json; name a folder in model2vec" in error(
        str(tmp_path)
    )
    assert "is neither a folder nor a hub id" in error(str(tmp_path / "gone"))
    for part in ("model.safetensors", "tokenizer.json", "config.json"):
        (tmp_path / part).write_text("{}")
    broken = index(str(tmp_path))
    with pytest.raises(UserError, match="cannot be loaded as a model2vec model"):
        look_up(broken, SAME)
