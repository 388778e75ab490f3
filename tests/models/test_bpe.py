"""The BPE tokenizer of a fresh model: every text comes back, digits stand alone, equal texts give equal bytes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mathrl.core.errors import UserError
from mathrl.core.hashing import digest_path
from mathrl.core.types import read_problems, write_problems
from mathrl.generators import generate
from mathrl.models.base import END, PAD, UNKNOWN, bpe_tokenizer, fresh_tokenizer, make_base, texts_of
from mathrl.models.load import load_model, load_tokenizer
from mathrl.models.model_shape import config_of
from mathrl.params.run import BpeTokenizer, FreshModel, Model

VOCABULARY = 600
BASE = FreshModel(
    hidden_size=32, intermediate_size=48, layers=1, heads=2, tokenizer=BpeTokenizer(vocabulary=VOCABULARY)
)
MODEL = Model(base=BASE, precision="float32")
PROBLEMS = list(generate("word_problem", {"sft": 300}, {}, seed=0))
TOKENIZER = bpe_tokenizer(VOCABULARY, (PAD, END, UNKNOWN), BASE.marks, texts_of(PROBLEMS))
HARD = (
    "<think>12 * 3 = 36\n36 + 7 = 43</think><answer>43</answer>",
    "  two  spaces,\ttabs\r\n\n\nlines ",
    "👩‍👩‍👧 🇩🇪 e\u0301 é 日本語 कि ½ ٣ \x00\x7f\ufeff",
    "\\frac{3}{4}\\left(x_{1}^{2}\\right) \\boxed{-1234.50}",
    "<pad",
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "sft.jsonl"
    write_problems(file, PROBLEMS)
    return file


@pytest.fixture(scope="module")
def folder(data: Path) -> Path:
    made = data.parent / "base"
    make_base(MODEL, made, 0, [data])
    return made


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_every_text_comes_back(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    assert all(token in range(VOCABULARY) for token in ids)
    # The spellings of special tokens, such as <pad>, are those tokens, here as in every tokenizer.
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text
    assert TOKENIZER.token_to_id(UNKNOWN) not in ids or UNKNOWN in text


@pytest.mark.parametrize("text", HARD)
def test_hard_texts_come_back_through_the_folder(text: str, folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text and tokenizer.unk_token_id not in ids
    assert ids == TOKENIZER.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("text", ["0123456789", "-17.5%", "x12y 3/4", "year 2026, 1,000,000", "7" * 40])
def test_each_digit_is_a_token(text: str) -> None:
    written = [TOKENIZER.decode([token]) for token in TOKENIZER.encode(text).ids]
    assert [piece for piece in written if any(c.isdigit() for c in piece)] == [c for c in text if c.isdigit()]


def test_no_token_of_the_vocabulary_joins_a_digit_to_anything() -> None:
    texts = ["17 17 17 17 of 17 apples 17", "a17 a17 a17 b17 =17 =17"] * 9
    small = bpe_tokenizer(266, (PAD,), (), texts)
    assert not [token for token in small.get_vocab() if len(token) > 1 and any(c in "0123456789" for c in token)]


def test_the_vocabulary_has_its_size_and_begins_with_the_models_own_tokens(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    assert len(tokenizer) == VOCABULARY == load_model(folder, MODEL, "cpu").get_input_embeddings().weight.shape[0]
    assert tokenizer.convert_ids_to_tokens([0, 1, 2]) == [PAD, END, UNKNOWN]
    assert (tokenizer.pad_token, tokenizer.eos_token) == (PAD, END)
    assert [len(tokenizer.encode(mark)) for mark in BASE.marks] == [1] * 4
    config = config_of(BASE)
    assert (config.vocab_size, config.eos_token_id, config.pad_token_id) == (VOCABULARY, 1, 0)
    question, characters = PROBLEMS[0].question, fresh_tokenizer(FreshModel(), ())[0]
    assert len(tokenizer.encode(question)) < 0.5 * len(characters.encode(question)), "it has learned words"
    assert "byte-level BPE tokenizer of 600 tokens, trained on 300 problems" in (folder / "README.md").read_text()


def test_what_other_programs_load_reads_a_text_alike(folder: Path) -> None:
    from transformers import AutoTokenizer

    auto, ours = AutoTokenizer.from_pretrained(folder), load_tokenizer(folder)
    assert len(auto) == VOCABULARY
    for text in [problem.question for problem in PROBLEMS[:20]] + [HARD[0], HARD[1], HARD[3]]:
        assert auto.encode(text) == ours.encode(text)


MAKE = """
import sys
from pathlib import Path
from mathrl.models.base import make_base
from mathrl.params.run import Model
make_base(Model.model_validate_json(sys.argv[3]), sys.argv[2], 0, [Path(sys.argv[1])])
"""


def test_equal_texts_give_equal_bytes_in_any_process(data: Path, folder: Path, tmp_path: Path) -> None:
    """With another seed of hashes and another number of threads."""
    made, threads = tmp_path / "base", "1" if len(os.sched_getaffinity(0)) > 1 else "2"
    environment = {**os.environ, "PYTHONHASHSEED": "1", "RAYON_NUM_THREADS": threads}
    words = [sys.executable, "-c", MAKE, str(data), str(made), MODEL.model_dump_json(by_alias=True)]
    subprocess.run(words, check=True, env=environment, cwd=Path(__file__).parents[2])
    assert digest_path(made) == digest_path(folder)


def test_other_texts_give_another_tokenizer(data: Path, folder: Path, tmp_path: Path) -> None:
    rows = read_problems(data)
    write_problems(tmp_path / "sft.jsonl", rows[:150])
    make_base(MODEL, tmp_path / "base", 0, [tmp_path / "sft.jsonl"])
    merges = [
        json.loads((place / "tokenizer.json").read_text())["model"]["merges"] for place in (folder, tmp_path / "base")
    ]
    assert merges[0] != merges[1]


def test_too_few_texts_for_the_vocabulary_and_none_at_all_are_refused(data: Path, tmp_path: Path) -> None:
    large = MODEL.model_copy(update={"base": BASE.model_copy(update={"tokenizer": BpeTokenizer(vocabulary=5000)})})
    with pytest.raises(
        UserError, match=r"vocabulary: the texts of the sft split give (\d+) tokens, not 5000; write \1"
    ):
        make_base(large, tmp_path / "base", 0, [data])
    with pytest.raises(UserError, match="trained on the sft split, and there is none here; set"):
        make_base(MODEL, tmp_path / "base", 0)
    assert not (tmp_path / "base").exists()


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"vocabulary": 258}, "greater than or equal to 259"),
        ({"vocabulary": 262}, "at least 263: 256 bytes, 3 tokens of padding, end and unknown, and 4 marks"),
        ({"size": 600}, "Extra inputs"),
        ({"type": "unigram"}, "'bpe'"),
    ],
)
def test_a_vocabulary_that_cannot_be_is_refused_when_the_parameters_are_read(values: object, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        FreshModel.model_validate({"tokenizer": values})
