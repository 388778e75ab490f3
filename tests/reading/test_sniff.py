"""Which fields hold what, guessed for the shapes in which sets are published and for nobody's names."""

import json
from typing import Any

import pytest

from mathrl.core.errors import UserError
from mathrl.reading.row_formats import RowShape, to_problem
from mathrl.reading.row_values import BadRow
from mathrl.reading.sniff import sniff

SUMS = [(a, b) for a in range(3, 9) for b in range(2, 9)]
ASKED = [(f"Tom has {a} apples and buys {b}. How many apples has he?", a + b) for a, b in SUMS]
LONG = "We count the apples one by one, then add them up. "
CHAT_ROLES = ("role", "content", "user", "assistant")
SHARE_GPT = ("from", "value", "human", "gpt")


def turns(question: str, reply: str, names: tuple[str, str, str, str] = CHAT_ROLES) -> list[dict[str, str]]:
    role, content, user, assistant = names
    return [{role: user, content: question}, {role: assistant, content: reply}]


def german(question: str) -> str:
    return question.replace("How many", "Wie viele")


SHAPES: dict[str, Any] = {
    "gsm8k": lambda q, a, i: {"question": q, "answer": f"{LONG}<<1+1=2>>\n#### {a}"},
    "math": lambda q, a, i: {"problem": q, "solution": f"{LONG}\\boxed{{{a}}}", "level": f"Level {i % 5}", "type": "A"},
    "numina": lambda q, a, i: {"problem": q, "solution": f"{LONG}\\boxed{{{a}}}", "messages": turns(q, LONG)},
    "dapo processed": lambda q, a, i: {"prompt": q, "solution": str(a), "data_source": "dapo"},
    "big math": lambda q, a, i: {"problem": q, "answer": str(a), "llama8b_solve_rate": i / 42 if i % 5 else None},
    "open math": lambda q, a, i: {"problem": q, "expected_answer": str(a), "pass_rate_tir": "n/a" if i % 2 else "0.5"},
    "deep math": lambda q, a, i: {"question": q, "final_answer": str(a), "difficulty": 5.5, "r1_solution_1": 2 * LONG},
    "polaris": lambda q, a, i: {"problem": q, "answer": str(a), "difficulty": f"{i % 9}/8"},
    "svamp": lambda q, a, i: {"Body": q.split(". ")[0], "Question": q.split(". ")[1], "Answer": 1.0 * a, "ID": f"c{i}"},
    "orz": lambda q, a, i: {"0": {"from": "human", "value": q}, "1": {"ground_truth": {"value": str(a)}}},
    "verl": lambda q, a, i: {"prompt": turns(q, "")[:1], "reward_model": {"ground_truth": json.dumps([str(a)])}},
    "messages": lambda q, a, i: {"messages": turns(q, f"{LONG}\\boxed{{{a}}}")},
    "share gpt": lambda q, a, i: {"conversations": turns(q, f"{LONG}#### {a}", SHARE_GPT)},
    "alpaca": lambda q, a, i: {"instruction": q, "input": "", "output": f"{LONG}\\boxed{{{a}}}"},
    "alpaca, a sentence": lambda q, a, i: {"instruction": q, "input": "", "output": f"{LONG}The answer is {a}."},
    "meta math": lambda q, a, i: {"query": q, "response": f"{LONG}\nThe answer is: {a}", "type": "GSM_Rephrased"},
    "nobody's": lambda q, a, i: {"Aufgabe": german(q), "Lsg": a, "nr": i, "weg": f"Es sind {a}."},
    "within a text": lambda q, a, i: {"body": q, "meta": json.dumps({"gold": a, "level": i % 4})},
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_gives_its_questions_and_answers(name: str) -> None:
    rows = [SHAPES[name](question, answer, number) for number, (question, answer) in enumerate(ASKED)]
    shape = sniff(rows).shape
    for row, (question, answer) in zip(rows, ASKED, strict=True):
        problem = to_problem(row, shape, name="f:1", source="s", split="rl", seed=0)
        assert problem.answers == (str(answer),)
        assert problem.question.replace("Wie viele", "How many") == question
        assert problem.solution is None or str(answer) in problem.solution or "one by one" in problem.solution


def test_an_instruction_is_joined_with_its_input_and_steps_before_a_mark_are_the_solution() -> None:
    rows = [
        {"instruction": q, "input": "", "output": f"{a - 2}+2={a}\n#### {a}"} if i % 3 else
        {"instruction": "Solve the following problem.", "input": q, "output": f"{a - 2}+2={a}\n#### {a}"}
        for i, (q, a) in enumerate(ASKED)
    ]  # fmt: skip
    shape = sniff(rows).shape
    assert (shape.prompt_key, shape.solution_key) == ("instruction+input", "output")
    problems = [to_problem(row, shape, name="f:1", source="s", split="rl", seed=0) for row in rows]
    assert [problem.question.removeprefix("Solve the following problem. ") for problem in problems] == [
        q for q, _ in ASKED
    ]
    assert all(p.answers == (str(a),) and p.solution for p, (_, a) in zip(problems, ASKED, strict=True))
    # Without an output, an input belongs to the question where it tells equal instructions apart.
    other = [{"instruction": row["instruction"], "input": row["input"], "answer": "1"} for row in rows]
    assert sniff(other).shape.prompt_key == "instruction+input"
    assert sniff([{**row, "input": "none"} for row in other[1::3]]).shape.prompt_key == "instruction"
    assert sniff([{**row, "output": f"#### {i}"} for i, row in enumerate(rows)]).shape.solution_key is None


@pytest.mark.parametrize("rare", [1, 4])
def test_of_two_row_shapes_the_frequent_one_is_taken_and_the_other_is_named(rare: int) -> None:
    rows: list[dict[str, Any]] = [{"prompt": q, "solutions": [str(a)], "query_id": q, "task": "m"} for q, a in ASKED]
    rows[2 : 2 + rare] = [{"prompt": turns(q, "")[:1], "label": str(a)} for q, a in ASKED[:rare]]
    sniffed = sniff(rows)
    assert sniffed.shape.format == "rlinf"
    assert f"{rare} of {len(rows)} rows have another shape: no solutions, but label" in " ".join(sniffed.doubts)
    fields = [{"prompt": row["prompt"], "final": row.get("solutions", [None])[0], "label": row.get("label")}
              for row in rows]  # fmt: skip
    assert sniff(fields).shape.answer_key == "final"


def keys(name: str) -> dict[str, Any]:
    rows = [SHAPES[name](question, answer, number) for number, (question, answer) in enumerate(ASKED)]
    return vars(sniff(rows).shape)


@pytest.mark.parametrize(
    ("field", "key"), [("instruction", "prompt_key"), ("input", "prompt_key"), ("subject", "subject_key")]
)
def test_a_field_of_texts_may_have_a_chat_list_in_some_rows(field: str, key: str) -> None:
    rows: list[dict[str, Any]] = [
        {"instruction": f"Do {n % 2}", "input": f"x{n}", "response": "5", "subject": "algebra"} for n in range(30)
    ]
    rows[7][field] = [{"role": "user", "content": "Do it"}]
    assert field in getattr(sniff(rows).shape, key)


def test_levels_pass_rates_ids_and_subjects_are_told_apart() -> None:
    assert keys("math") | {"level_key": "level", "subject_key": "type", "id_key": None} == keys("math")
    assert keys("polaris")["pass_rate_key"] == "difficulty" and keys("polaris")["level_key"] is None
    assert keys("deep math")["level_key"] == "difficulty" and keys("deep math")["solution_key"] == "r1_solution_1"
    assert keys("big math")["pass_rate_key"] == "llama8b_solve_rate"
    assert keys("open math")["pass_rate_key"] == "pass_rate_tir"
    assert keys("svamp")["id_key"] == "ID" and keys("within a text")["level_key"] == "meta.level"
    assert keys("nobody's")["solution_key"] == "weg"


def test_a_named_field_is_taken_and_what_has_no_question_or_answer_is_refused() -> None:
    rows = [{"question": q, "answer": str(a), "other": str(a + 1)} for q, a in ASKED]
    assert sniff(rows, {"answer_key": "other"}).shape.answer_key == "other"
    with pytest.raises(UserError, match=r"no field looks like an answer .*question, link.*--field answer_key=NAME"):
        sniff([{"question": q, "link": f"https://example.org/{'x' * 80}/{i}"} for i, (q, _) in enumerate(ASKED)])
    with pytest.raises(UserError, match=r"no field looks like a question \(fields: x, y\)"):
        sniff([{"x": 1, "y": 2}] * 5)


def test_rows_that_mathrl_curated_itself_have_their_answers_and_their_solution() -> None:
    solved = [
        {"id": str(n), "question": q, "answers": [str(a)], "solution": f"{LONG}{a}"} for n, (q, a) in enumerate(ASKED)
    ]
    shape = sniff(solved).shape
    assert (shape.answer_key, shape.solution_key, shape.id_key) == ("answers", "solution", "id")
    shape = sniff([{name: row[name] for name in ("question", "answers")} for row in solved]).shape
    assert (shape.answer_key, shape.solution_key) == ("answers", None)


@pytest.mark.parametrize(
    ("choices", "answer"),
    [
        (["3", "9", "77"], 1),
        (["(A) 3", "(B) 9", "(C) 77"], [1]),
        (["3", "9", "77"], "B"),
        (["3", "9", "77"], "9"),
        ({"text": ["3", "9", "77"], "label": ["1", "2", "3"]}, "2"),
        ({"A": "3", "B": "9", "C": "77"}, "B"),
        ('["3", "9", "77"]', "B"),
    ],
)
def test_options_are_listed_in_order_and_the_right_one_is_its_letter_or_its_text(choices: Any, answer: Any) -> None:
    asked = [f"{question} ({number})" for number, (question, _) in enumerate(ASKED)]
    rows = [{"question": question, "options": choices, "answer": answer} for question in asked]
    shape = sniff(rows).shape
    assert shape.choices_key == "options" and shape.answer_key == "answer"
    problem = to_problem(rows[0], shape, name="f:1", source="s", split="test", seed=0)
    assert problem.question == f"{ASKED[0][0]} (0)\n\n(A) 3\n(B) 9\n(C) 77"
    assert problem.answers == ("B", "9") and problem.control.task == "multiple_choice"


@pytest.mark.parametrize(
    ("choices", "answer", "answers"),
    [(["B", "C"], 1, ("B",)), (["A and B", "no"], 0, ("A",)), (["x", "x", "y"], 1, ("B",))],
)
def test_an_options_text_is_no_answer_where_it_reads_as_a_letter(choices: Any, answer: Any, answers: Any) -> None:
    shape = RowShape(choices_key="choices")
    row = {"question": "Q?", "choices": choices, "answer": answer}
    assert to_problem(row, shape, name="f:1", source="s", split="test", seed=0).answers == answers


@pytest.mark.parametrize(
    ("choices", "answer"),
    [
        (["1", "2"], "E"),
        (["1", "2"], 2),
        (["1"], 0),
        ("no list", "A"),
        ({"A": "1", "B": "2", "C": None}, "C"),
        ({"text": ["1", "2"], "label": ["A", "B", "C"]}, "C"),
        ({"text": ["1", "2"], "label": None}, "C"),
    ],
)
def test_an_answer_that_is_none_of_the_options_is_a_bad_row(choices: Any, answer: Any) -> None:
    row = {"question": "Q?", "choices": choices, "answer": answer}
    with pytest.raises(BadRow, match="options"):
        to_problem(row, RowShape(choices_key="choices"), name="f:1", source="s", split="test", seed=0)
