"""Rows of every shape, good and bad."""

import datetime
import decimal
import json
from typing import Any

import pytest

from mathrl.core.types import Control, Problem
from mathrl.grading import grade, reading
from mathrl.reading.row_formats import BadRow, RowShape, to_problem
from mathrl.reading.row_values import after_hashes, answer_tag, last_boxed


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


@pytest.mark.parametrize("key", ["numbers", "nums"])
def test_numbers_and_target_of_a_countdown_are_what_the_grader_checks_an_expression_against(key: str) -> None:
    (truth,) = read({"question": "Make 50.", "answer": {"target": 50, key: [98, 54, 6]}}).answers
    assert reading(truth) == "task"
    assert grade("<answer>(98-54)+6</answer>", truth).correct and not grade("<answer>98-48</answer>", truth).correct


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
    further = {"question": "as published", "answer": "one half"}
    assert read({**row, **further}, format="rlinf").extra == further


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


@pytest.mark.parametrize("options", [{"A": "one", "B": "two", "C": None}, ["one", "two", None, None]])
def test_options_that_a_row_does_not_have_are_none(options: Any) -> None:
    problem = read({"question": "1 + 1?", "answer": "B", "options": options}, choices_key="options")
    assert problem.question == "1 + 1?\n\n(A) one\n(B) two" and problem.answers[0] == "B"
    with pytest.raises(BadRow, match="2 to 26 options"):
        read({"question": "Q", "answer": "C", "options": {"A": "one", "B": None, "C": "two"}}, choices_key="options")


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
        ({"prompt": [{"role": "user", "content": None}]}, {"format": "verl"}, "a text in each turn"),
        ({"prompt": [{"role": "user", "content": [{"text": "Q"}]}]}, {"format": "verl"}, "a text in each turn"),
        ({"prompt": [{"role": "user", "content": " "}]}, {"format": "verl"}, "a question in its last user turn"),
        ({"nums": [3, None], "target": 4}, {"format": "countdown"}, "a list of integers"),
        ({"nums": ["three"], "target": 4}, {"format": "countdown"}, "a list of integers"),
        ({"question": "Q", "answer": 29, "c": [*map(str, range(30))]}, {"choices_key": "c"}, "2 to 26 options"),
        ({"prompt": "Q", "reward_model": {}}, {"format": "verl"}, "reward_model.ground_truth"),
        ({"Question": "Q", "Correct Answer": "a"}, {"format": "multiple_choice"}, "Incorrect Answer 1"),
    ],
)
def test_a_bad_row_names_its_field(row: dict[str, Any], shape: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRow, match=said):
        read(row, **shape)


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
        ({"question": "2+2?"}, {"answer_rule": "none"}, "2+2?", ()),
        ({"question": "2+2?", "answer": "5"}, {"answer_rule": "none"}, "2+2?", ()),
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
    ("value", "solution"),
    [
        (float("nan"), None),
        ([None], None),
        (["A", None, "B"], "A\n\nB"),
        (CHAT, "#### 4"),
        (json.dumps(CHAT), "#### 4"),
    ],
)
def test_a_solution_has_neither_a_system_prompt_nor_what_is_missing(value: Any, solution: str | None) -> None:
    assert read({"question": "Q", "answer": 1, "s": value}, solution_key="s").solution == solution


def test_an_id_or_a_subject_that_is_not_a_number_is_missing() -> None:
    problem = read({"question": "Q", "answer": 1, "i": float("nan"), "t": float("nan")}, id_key="i", subject_key="t")
    assert (problem.id, problem.subject, problem.extra) == ("s/f:1", None, {})


@pytest.mark.parametrize(
    ("value", "rate"),
    [
        (0.625, 0.625),
        ("0.625", 0.625),
        ("62.5%", 0.625),
        ("5/8", 0.625),
        (1, 1.0),
        ("n/a", None),
        (None, None),
        ("9" * 5000 + "/1", None),
    ],
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
        ("Problem 20231234567", None),
        ("Problem " + "9" * 5000, None),
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
