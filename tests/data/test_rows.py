"""Rows of every shape, good and bad."""

import bz2
import csv
import datetime
import decimal
import gzip
import io
import json
import lzma
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from mathrl.core.control import Control
from mathrl.core.errors import UserError
from mathrl.core.types import Problem
from mathrl.data.answers import after_hashes, answer_tag, last_boxed
from mathrl.data.row_files import list_files, read_rows
from mathrl.data.row_formats import BadRow, RowShape, to_problem


def read(row: dict[str, Any], **shape: Any) -> Problem:
    return to_problem(row, RowShape(**shape), name="f:1", source="s", split="rl", seed=0)


@pytest.mark.parametrize(
    ("rule", "text", "expected"),
    [
        (after_hashes, "a <<1+1=2>>2\n#### 1,024", "1024"),
        (after_hashes, "#### -3\n", "-3"),
        (after_hashes, "#### 1\nthen #### 2", "2"),
        (after_hashes, "1,2 #### (1,2)", "(1,2)"),
        (after_hashes, "no marks", None),
        (after_hashes, "####   ", None),
        (last_boxed, r"\boxed{1} then \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (last_boxed, r"\boxed{\text{a } b}", r"\text{a } b"),
        (last_boxed, r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (last_boxed, r"\boxed{never closed", None),
        (last_boxed, r"first \boxed{7}, then \boxed{8", "7"),
        (last_boxed, r"\boxed 5$", "5"),
        (last_boxed, r"\fbox{9}", "9"),
        (last_boxed, r"\boxed{}", None),
        (answer_tag, "<answer> 3 </answer>", "3"),
        (answer_tag, "<answer>1</answer><answer>2</answer>", "2"),
        (answer_tag, "<answer>1", None),
    ],
)
def test_the_answer_of_a_solution(rule: Any, text: str, expected: str | None) -> None:
    assert rule(text) == expected


def test_named_fields_and_what_is_left_over() -> None:
    problem = read(
        {"q": "1+1?", "a": 2.0, "w": "1+1=2", "n": "x7", "lvl": "Level 3", "type": "Algebra", "lang": "en", "z": None},
        prompt_key="q",
        answer_key="a",
        solution_key="w",
        id_key="n",
        level_key="lvl",
        subject_key="type",
    )
    assert problem == Problem(
        "x7", "1+1?", ("2",), "s", "rl", solution="1+1=2", level=3, subject="Algebra", extra={"lang": "en"}
    )


def test_openais_gsm8k_rows() -> None:
    row = {"question": "Q?", "answer": "48/2 = <<48/2=24>>24\n#### 72"}
    problem = read(row, answer_key="answer", solution_key="answer", answer_rule="hash")
    assert problem.answers == ("72",) and problem.solution == row["answer"] and problem.id == "s/f:1"


def test_joined_and_nested_fields() -> None:
    svamp = {"Body": "There are 3 apples", "Question": "How many?", "Answer": 3.0}
    assert read(svamp, prompt_key="Body+Question", answer_key="Answer").question == "There are 3 apples. How many?"
    zero = {"0": {"from": "human", "value": "Q"}, "1": {"ground_truth": {"value": "7"}}}
    problem = read(zero, prompt_key="0.value", answer_key="1.ground_truth.value")
    assert (problem.question, problem.answers) == ("Q", ("7",))


@pytest.mark.parametrize("empty", ["", " \n", "\u200b", None, float("nan")])
def test_joined_fields_leave_out_what_is_empty_in_a_row(empty: Any) -> None:
    def question(**row: Any) -> str:
        return read({**row, "output": "7"}, prompt_key="instruction+input", answer_key="output").question

    assert question(instruction="Add:", input="3, 4") == "Add: 3, 4"
    assert question(instruction="What is 3+4?", input=empty) == "What is 3+4?"
    assert question(instruction=empty, input="3+4?") == "3+4?"
    with pytest.raises(BadRow, match="field 'instruction': expected text"):
        question(instruction=empty, input=empty)
    with pytest.raises(BadRow, match="field 'input': expected text, found no such field"):
        question(instruction="What is 3+4?", inptu="")


@pytest.mark.parametrize("blank", [" \n\u200b", "\u2060", "\ufeff \t", "\u3164\u2800"])
def test_a_question_or_answer_that_shows_nothing_is_refused(blank: str) -> None:
    with pytest.raises(BadRow, match="field 'question': expected text"):
        read({"question": blank, "answer": "1"})
    with pytest.raises(BadRow, match="field 'question': its user turn is empty"):
        read({"question": [{"role": "user", "content": blank}], "answer": "1"})
    with pytest.raises(BadRow, match="field 'answer': no answer"):
        read({"question": "How many?", "answer": blank})
    assert read({"question": "How\u200b many?", "answer": "1"}).question == "How\u200b many?"


def test_an_object_without_its_answer_is_told_from_one_of_unknown_keys() -> None:
    with pytest.raises(BadRow, match=r"field 'answer': no answer \('value' is null\)"):
        read({"question": "How many?", "answer": {"value": None, "type": "number"}})
    with pytest.raises(BadRow, match="an object with 'x', 'type'; name one after a dot"):
        read({"question": "How many?", "answer": {"x": 1, "type": "number"}})


def test_rlinf_rows() -> None:
    row = {
        "prompt": "<｜User｜>Find x.<｜Assistant｜><think>\n",
        "task": "math",
        "query_id": "q1",
        "solutions": ["1/2", "0.5"],
    }
    problem = read(row, format="rlinf")
    assert (problem.id, problem.answers) == ("q1", ("1/2", "0.5"))
    assert problem.extra == {} and problem.control == Control(templated=True, task="math")
    assert not read({**row, "prompt": "Find x."}, format="rlinf").control.templated


def test_verl_rows_with_text_and_with_a_chat_list() -> None:
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "Q?"}]
    row: dict[str, Any] = {
        "data_source": "openai/gsm8k",
        "prompt": messages,
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "72"},
        "extra_info": {"split": "train", "index": 3},
    }
    problem = read(row, format="verl")
    assert (problem.question, problem.answers, problem.subject) == ("Q?", ("72",), "math")
    assert problem.id == "openai/gsm8k/train/3"
    assert problem.control == Control(tuple(row["prompt"]), data_source="openai/gsm8k")
    plain = read({**row, "prompt": "Q?"}, format="verl")
    assert plain.question == "Q?" and not plain.control.messages


def test_multiple_choice_is_shuffled_by_the_seed_and_the_letter_follows() -> None:
    row = {"Question": "Which?", "Correct Answer": "yes", **{f"Incorrect Answer {i}": f"no{i}" for i in (1, 2, 3)}}
    letters = set()
    for seed in range(30):
        problem = to_problem(row, RowShape("multiple_choice"), name="f:1", source="s", split="test", seed=seed)
        assert f"({problem.answers[0]}) yes" in problem.question
        letters.add(problem.answers[0])
    assert letters == set("ABCD")
    assert read(row, format="multiple_choice") == read(row, format="multiple_choice")


def test_countdown_rows_are_solved() -> None:
    problem = read({"nums": [3, 7, 2], "target": 20}, format="countdown")
    assert problem.answers == ('{"numbers": [3, 7, 2], "target": 20}',)
    with pytest.raises(BadRow, match="no way to make 99"):
        read({"nums": [1, 1], "target": 99}, format="countdown")


@pytest.mark.parametrize(
    ("row", "shape", "said"),
    [
        ({"question": "Q"}, {}, "field 'answer': no answer .found no such field among question"),
        ({"question": "Q", "answer": ""}, {}, "field 'answer': no answer"),
        ({"question": "Q", "answer": None}, {}, "field 'answer': no answer"),
        ({"question": "Q", "answer": float("nan")}, {}, "field 'answer': no answer"),
        ({"question": "Q", "answer": float("inf")}, {}, "field 'answer': no answer"),
        (
            {"question": "Q", "answer": {"unit": "kg"}},
            {},
            "field 'answer': an object with 'unit'; name one after a dot",
        ),
        ({"question": "Q", "answer": "1", "l": 0.35}, {"level_key": "l"}, "0.35 is a share; .* pass_rate_key"),
        ({"question": "Q", "answer": "1", "l": "3/8"}, {"level_key": "l"}, "'3/8' is a share"),
        ({"question": "Q", "answer": "1", "r": 35}, {"pass_rate_key": "r"}, "35 is not from 0 to 1"),
        ({"m": [{"role": "user", "content": "A"}] * 2}, {"prompt_key": "m"}, "with 2 user turns"),
        ({"m": [{"role": "assistant", "content": "A"}]}, {"prompt_key": "m"}, "with 0 user turns"),
        ({"answer": "1"}, {}, "field 'question': expected text, found no such field"),
        ({"question": 5, "answer": "1"}, {}, "field 'question': expected text, found 5"),
        ({"question": " ", "answer": "1"}, {}, "field 'question': expected text"),
        ({"question": "Q", "answer": "none"}, {"answer_rule": "hash"}, "no text after ####"),
        ({"question": "Q", "answer": r"\boxed{"}, {"answer_rule": "boxed"}, "balanced braces"),
        ({"prompt": "Q", "solutions": []}, {"format": "rlinf"}, "field 'solutions': no answer"),
        ({"prompt": [{"role": "user"}]}, {"format": "verl"}, "role and content"),
        ({"prompt": "Q", "reward_model": {}}, {"format": "verl"}, "reward_model.ground_truth"),
        ({"Question": "Q", "Correct Answer": "a"}, {"format": "multiple_choice"}, "Incorrect Answer 1"),
    ],
)
def test_a_bad_row_names_its_field(row: dict[str, Any], shape: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRow, match=said):
        read(row, **shape)


ROWS = [{"question": "1+1?", "answer": "2"}, {"question": '他, "x"?', "answer": "3"}]


def json_text(name: str) -> str:
    columns = {key: [row[key] for row in ROWS] for key in ROWS[0]}
    shapes: dict[str, Any] = {
        "object": {"data": ROWS, "version": 2},
        "columns": columns,
        "pandas": {key: {str(i): value for i, value in enumerate(values)} for key, values in columns.items()},
        "keyed": {f"p{i}": row for i, row in enumerate(ROWS)},
    }
    return json.dumps(shapes.get(name.split(".")[0], ROWS))


def table_text(delimiter: str) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, ["question", "answer"], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(ROWS)
    return "\ufeff" + stream.getvalue()


def write(folder: Path, name: str) -> Path:
    file = folder / name
    table = pyarrow.Table.from_pylist(ROWS)
    if name.endswith(".parquet"):
        pyarrow.parquet.write_table(table, file)
        return file
    if name.endswith((".feather", ".arrow")):
        opened = pyarrow.ipc.new_stream if name.startswith("stream") else pyarrow.ipc.new_file
        with pyarrow.OSFile(str(file), "wb") as sink, opened(sink, table.schema) as writer:
            writer.write_table(table)
        return file
    if ".jsonl" in name or ".ndjson" in name or name == "lines.json":
        text = "\ufeff" + "\n".join(json.dumps(row) for row in ROWS) + "\n\n"
    elif ".json" in name:
        text = json_text(name)
    else:
        text = table_text("\t" if ".tsv" in name else ";" if "semicolons" in name else ",")
    packers = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstd}
    file.write_bytes(packers.get(file.suffix, bytes)(text.encode()))
    return file


def zstd(content: bytes) -> bytes:
    return bytes(pyarrow.compress(content, "zstd", asbytes=True))


@pytest.mark.parametrize(
    "name",
    [
        "a.jsonl",
        "a.ndjson",
        "a.jsonl.gz",
        "a.jsonl.zst",
        "a.jsonl.bz2",
        "a.csv.xz",
        "a.json",
        "a.json.gz",
        "object.json",
        "columns.json",
        "pandas.json",
        "keyed.json",
        "lines.json",
        "a.csv",
        "semicolons.csv",
        "a.csv.gz",
        "a.tsv",
        "a.tsv.zst",
        "a.parquet",
        "a.feather",
        "stream.arrow",
    ],
)
def test_every_file_format_holds_the_same_rows(tmp_path: Path, name: str) -> None:
    file = write(tmp_path, name)
    assert list_files(tmp_path) == [file] == list_files(file)
    rows = list(read_rows(file))
    assert [row.values for row in rows] == ROWS and all(row.problem is None for row in rows)
    assert rows[0].where.startswith(str(file)) and len({row.where for row in rows}) == 2


def test_a_broken_line_is_a_row_with_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"question": "Q", "answer": "1"}\n{"question": \n3\n')
    rows = list(read_rows(file))
    assert [row.problem is None for row in rows] == [True, False, False]
    assert rows[1].where.endswith("a.jsonl, line 2") and "not JSON" in str(rows[1].problem)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl.gz", b"not gzip", "cannot be read as jsonl"),
        ("a.jsonl", b"\xff\xfe\x00", "cannot be read as jsonl"),
        ("a.json", b"{", "cannot be read as json"),
        ("a.json", b'{"a": 1}', "expected a list of rows"),
        ("a.json", b'[{"a": 1}, {"b"', "cannot be read as json"),
        ("a.jsonl.zst", b"not zstd", "cannot be read as jsonl"),
        ("a.arrow", b"ARROW1", "cannot be read as arrow"),
        ("a.parquet", b"PAR1", "cannot be read as parquet"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(UserError, match=said) as caught:
        list(read_rows(file))
    assert str(file) in str(caught.value)


def test_a_missing_or_unknown_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file or folder"):
        list_files(tmp_path / "none")
    (tmp_path / "a.xlsx").touch()
    with pytest.raises(UserError, match=r"unknown format; known: \.jsonl"):
        list_files(tmp_path / "a.xlsx")
    with pytest.raises(UserError, match="file in this folder"):
        list_files(tmp_path)


def test_a_pattern_and_a_folder_name_shards_and_leave_out_notes_about_them(tmp_path: Path) -> None:
    for name in ("s-2.jsonl", "s-1.jsonl", "other.csv", "dataset_info.json", "state.json", ".cache/x.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    assert [file.name for file in list_files(tmp_path / "s-*.jsonl")] == ["s-1.jsonl", "s-2.jsonl"]
    assert [file.name for file in list_files(tmp_path)] == ["other.csv", "s-1.jsonl", "s-2.jsonl"]
    with pytest.raises(UserError, match="file matches this pattern"):
        list_files(tmp_path / "t-*.jsonl")


def test_a_line_that_is_not_utf_8_is_a_bad_row_after_the_first_line(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"question": "Q", "answer": "1"}\n{"question": "\xe9"}\n')
    good, bad = read_rows(file)
    assert good.problem is None and bad.problem == "not UTF-8 (byte 0xe9 at position 15)"


def test_elements_of_a_json_list_are_read_across_the_ends_of_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"question": "x" * size, "answer": size} for size in (0, 1, 7, 30, 100)]
    file = tmp_path / "a.json"
    file.write_text(json.dumps(rows, indent=1))
    for size in (1, 2, 5, 64):
        monkeypatch.setattr("mathrl.data.file_formats.CHUNK", size)
        assert [row.values for row in read_rows(file)] == rows


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.parquet"])
def test_rows_that_nobody_wants_are_skipped_in_order(tmp_path: Path, name: str) -> None:
    asked = iter([False, True])
    (row,) = read_rows(write(tmp_path, name), wanted=lambda: next(asked))
    assert row.values == ROWS[1] and next(asked, "asked once per row") == "asked once per row"


CHAT = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "#### 4"},
]


@pytest.mark.parametrize(
    ("row", "shape", "question", "answers"),
    [
        ({"a": {"b": [{"q": "Q?"}]}, "answer": 1}, {"prompt_key": "a.b.0.q"}, "Q?", ("1",)),
        ({"a": '[{"q": "P?"}, {"q": "Q?"}]', "answer": 1}, {"prompt_key": "a.-1.q"}, "Q?", ("1",)),
        ({"q": "Q?", "m": '{"gold": "[1, 2]"}'}, {"prompt_key": "q", "answer_key": "m.gold"}, "Q?", ("[1, 2]",)),
        ({"question": "Q?", "answer": '["1/2", "0.5"]'}, {}, "Q?", ("1/2", "0.5")),
        ({"question": "Q?", "answer": [[1, 2], [2, 1]]}, {}, "Q?", ("(1, 2)", "(2, 1)")),
        ({"question": "Q?", "answer": True}, {}, "Q?", ("True",)),
        ({"question": "Q?", "answer": decimal.Decimal("3.50")}, {}, "Q?", ("3.50",)),
        ({"question": "Q?", "answer": datetime.date(2026, 2, 1)}, {}, "Q?", ("2026-02-01",)),
        ({"question": "Q?", "answer": b"7"}, {}, "Q?", ("7",)),
        ({"question": "Q?", "answer": {"number": "", "value": 7}}, {}, "Q?", ("7",)),
        ({"m": CHAT}, {"prompt_key": "m", "answer_key": None, "answer_rule": "hash"}, "2+2?", ("4",)),
        ({"m": json.dumps(CHAT), "answer": 4}, {"prompt_key": "m"}, "2+2?", ("4",)),
        ({"m": [{"from": "human", "value": "2+2?"}], "answer": 4}, {"prompt_key": "m"}, "2+2?", ("4",)),
    ],
)
def test_paths_texts_of_json_chat_lists_and_answers_of_any_type(
    row: dict[str, Any], shape: dict[str, Any], question: str, answers: tuple[str, ...]
) -> None:
    problem = read(row, **shape)
    assert (problem.question, problem.answers) == (question, answers)


def test_a_chat_lists_reply_is_the_solution_and_stands_nowhere_else() -> None:
    problem = read({"m": CHAT, "n": 1}, prompt_key="m", answer_key=None, answer_rule="hash")
    assert problem.solution == "#### 4" and problem.extra == {"n": 1}


@pytest.mark.parametrize(
    ("value", "rate"),
    [(0.625, 0.625), ("0.625", 0.625), ("62.5%", 0.625), ("5/8", 0.625), (1, 1.0), ("n/a", None), (None, None)],
)
def test_a_pass_rate_of_the_source(value: Any, rate: float | None) -> None:
    assert read({"question": "Q", "answer": 1, "r": value}, pass_rate_key="r").pass_rate == rate


@pytest.mark.parametrize(
    ("value", "level"),
    [
        (5.5, 5),
        ("5", 5),
        ("Level 3", 3),
        ("Level ?", None),
        (float("inf"), None),
        (float("nan"), None),
        (1e300, None),
        (0, 0),
    ],
)
def test_levels_of_any_type(value: Any, level: int | None) -> None:
    assert read({"question": "Q", "answer": 1, "l": value}, level_key="l").level == level


def test_what_json_does_not_hold_is_carried_as_text() -> None:
    row = {
        "question": "Q",
        "answer": 1,
        "when": datetime.datetime(2026, 1, 2, 3),
        "price": decimal.Decimal("1.10"),
        "rate": float("nan"),
        "image": b"\xff\xd8",
        "list": [float("inf"), {"of": datetime.date(2026, 1, 2)}],
    }
    extra = dict(read(row).extra)
    assert json.loads(json.dumps(extra, allow_nan=False)) == extra
    assert extra["when"] == "2026-01-02T03:00:00" and extra["price"] == "1.10" and "rate" not in extra
    assert extra["image"]["bytes"] == 2 and extra["list"] == [None, {"of": "2026-01-02"}]
    with pytest.raises(BadRow, match="field 'deep': nested deeper than 64 levels"):
        read({"question": "Q", "answer": 1, "deep": json.loads("[" * 200 + "1" + "]" * 200)})
