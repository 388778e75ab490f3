"""Rows of every shape, good and bad."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

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


def test_rlinf_rows() -> None:
    row = {
        "prompt": "<｜User｜>Find x.<｜Assistant｜><think>\n",
        "task": "math",
        "query_id": "q1",
        "solutions": ["1/2", "0.5"],
    }
    problem = read(row, format="rlinf")
    assert (problem.id, problem.answers) == ("q1", ("1/2", "0.5"))
    assert problem.extra == {"task": "math", "templated": True}
    assert "templated" not in read({**row, "prompt": "Find x."}, format="rlinf").extra


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
    assert problem.extra["messages"] == row["prompt"] and problem.extra["data_source"] == "openai/gsm8k"
    plain = read({**row, "prompt": "Q?"}, format="verl")
    assert plain.question == "Q?" and "messages" not in plain.extra


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
        ({"question": "Q", "answer": {"unit": "kg"}}, {}, "field 'answer': an object with 'unit'; name one after a dot"),
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


def write(folder: Path, name: str) -> Path:
    file = folder / name
    plain = name.removesuffix(".gz")
    if plain.endswith(".jsonl"):
        text = "\n".join(json.dumps(row) for row in ROWS) + "\n\n"
    elif plain.endswith(".json"):
        text = json.dumps({"data": ROWS} if "object" in name else ROWS)
    elif plain.endswith(".csv"):
        import io

        stream = io.StringIO()
        writer = csv.DictWriter(stream, ["question", "answer"])
        writer.writeheader()
        writer.writerows(ROWS)
        text = "\ufeff" + stream.getvalue()
    else:
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), file)
        return file
    file.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return file


@pytest.mark.parametrize(
    "name", ["a.jsonl", "a.jsonl.gz", "a.json", "a.json.gz", "object.json", "a.csv", "a.csv.gz", "a.parquet"]
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
