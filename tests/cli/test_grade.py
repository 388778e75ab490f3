"""`mathrl grade`: verdicts beside rows; a bad row is named and nothing is written."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from mathrl.cli.grade import grade as grade_file
from mathrl.cli.main import app
from mathrl.core.errors import UserError
from mathrl.core.files import read_jsonl, write_jsonl
from mathrl.grading import grade as verdict_on
from mathrl.reading.sniff import ANSWERS, SOLUTIONS

KNOWN_ANSWERS = [name for name in ANSWERS if name == "answer" or name not in (*SOLUTIONS, "solutions")]
ROWS = [
    {"id": 1, "text": "so \\boxed{0.5}", "gold": "\\frac{1}{2}"},
    {"id": 2, "text": "The answer is 7.", "gold": ["8", "9"]},
    {"id": 3, "text": "#### 12", "gold": 12},
]


def grade(tmp_path: Path, rows: list[dict[str, object]] | str, *more: str) -> tuple[Path, str]:
    file, output = tmp_path / "rows.jsonl", tmp_path / "graded.jsonl"
    file.write_text(rows if isinstance(rows, str) else "".join(json.dumps(row) + "\n" for row in rows))
    words = ["grade", str(file), "--response-key", "text", "--answer-key", "gold", "--output", str(output)]
    done = CliRunner().invoke(app, [*words, *more])
    if done.exception:
        raise done.exception
    return output, done.stdout


def test_rows_keep_their_fields_and_gain_verdicts(tmp_path: Path) -> None:
    output, said = grade(tmp_path, ROWS)
    graded = [json.loads(line) for line in output.read_text().splitlines()]
    assert [(row["id"], row["correct"], row["extracted"]) for row in graded] == [
        (1, True, "0.5"),
        (2, False, "7"),
        (3, True, "12"),
    ]
    assert all(row["rule"] and row["gold"] == each["gold"] for row, each in zip(graded, ROWS, strict=True))
    assert "2 of 3 correct (66.7%)" in said


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([*ROWS, {"id": 4, "gold": "1"}], "line 4: no field 'text'; its fields: id, gold; see --response-key"),
        ([{"text": "1"}], "line 1: no field 'gold'; its fields: text; see --answer-key"),
        ([{"text": 5, "gold": "5"}], "line 1, field text: expected text, found 5"),
        ([{"text": "5", "gold": None}], "line 1, field gold: expected an answer or a list of them, found None"),
        (
            [{"text": "5", "gold": ["5", None]}],
            "line 1, field gold: expected an answer or a list of them, found ['5', None]",
        ),
        (
            [{"text": "5", "gold": '{"instructions": [{"id": "keywords:existence"}]}'}],
            "line 1, field gold: keywords:existence: 'keywords' is None, expected a list of texts",
        ),
        ([{"text": "5", "gold": [{"value": 5}]}], "line 1, field gold: expected an answer or a list of them"),
        ('{"text": "1", "gold": "1"}\n{"text"\n', "line 2: not JSON"),
        ("", "it has no rows"),
    ],
)
def test_a_bad_row_is_named_and_no_output_is_written(
    tmp_path: Path, rows: list[dict[str, object]] | str, message: str
) -> None:
    with pytest.raises(UserError) as caught:
        grade(tmp_path, rows)
    assert message in str(caught.value) and "rows.jsonl" in str(caught.value)
    assert {file.name for file in tmp_path.iterdir()} == {"rows.jsonl"}


# What json.loads can give: lone surrogates and NULs too.
ODD = ["\ud83d", "\udc80", "\0", "\r", "\u2028", "\ufeff", "😀"]
any_text = st.lists(st.sampled_from(ODD) | st.text(), max_size=5).map(
    lambda parts: json.loads(json.dumps("".join(parts)))
)
any_truth = any_text.filter(bool) | st.lists(any_text, min_size=1) | st.integers() | st.floats()
any_rows = st.lists(
    st.fixed_dictionaries(
        {"text": any_text, "gold": any_truth}, optional={"more": st.dictionaries(any_text, any_text)}
    ),
    min_size=1,
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(any_rows)
def test_rows_of_any_text_are_graded_and_kept(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    output, _ = grade(tmp_path, rows)
    for row, graded in zip(rows, read_jsonl(output), strict=True):
        gold = [str(answer) for answer in row["gold"]] if isinstance(row["gold"], list) else str(row["gold"])
        verdict = verdict_on(row["text"], gold)
        verdicts = {"correct": verdict.correct, "extracted": verdict.extracted, "rule": verdict.rule}
        assert json.dumps(graded, sort_keys=True) == json.dumps(row | verdicts, sort_keys=True)


def test_a_row_with_a_lone_surrogate_costs_nobody_the_others(tmp_path: Path) -> None:
    emoji = {"id": 4, "text": "\ud83d \\boxed{7}", "gold": "7", "who": "\udc80"}
    output, printed = grade(tmp_path, [*ROWS, emoji, {"id": 5, "text": "\\boxed{" + "9" * 200_000 + "}", "gold": "9"}])
    graded = list(read_jsonl(output))
    assert [row["correct"] for row in graded] == [True, False, True, True, False]
    assert (graded[3]["text"], graded[3]["who"]) == (emoji["text"], emoji["who"])
    assert "3 of 5 correct" in printed


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_disagreements_with_a_lone_surrogate_are_printed(tmp_path: Path, options: list[str]) -> None:
    rows = [{"prompt": "\ud83d 3+4", "response": "\ud83d \\boxed{7}", "answer": "7", "reward": 0.0, "step": 1}] * 4
    write_jsonl(tmp_path / "rollouts.jsonl", rows)
    words = [sys.executable, "-c", "from mathrl.cli import main; main()", "grade", str(tmp_path), *options]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0 and "\\ud83d 3+4" in done.stdout, done.stderr


@pytest.mark.parametrize("response", ["response", "completion", "output", "Generation"])
@pytest.mark.parametrize("answer", [*KNOWN_ANSWERS, "Answer"])
def test_fields_are_found_by_the_names_that_inspect_knows(tmp_path: Path, response: str, answer: str) -> None:
    file, output = tmp_path / "answers.jsonl", tmp_path / "graded.jsonl"
    rows = [{"prompt": "What is 3 + 4?", response: "It is 7.", answer: truth} for truth in ("7", "3+4=7 #### 7", "8")]
    write_jsonl(file, rows)
    grade_file(file, output)
    assert [row["correct"] for row in read_jsonl(output)] == [True, True, False]


def test_a_file_without_an_answer_names_its_fields_and_the_option(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "rows.jsonl", [{"prompt": "1+1", "response": "2"}])
    with pytest.raises(UserError, match=r"no field with the true answer \(fields: prompt, response\).*--answer-key"):
        grade_file(tmp_path / "rows.jsonl", tmp_path / "graded.jsonl")


@pytest.mark.parametrize("line", ["[" * 100_000, '{"text": "1", "gold": ' + "1" * 5000 + "}"])
def test_what_json_refuses_is_named_with_its_line(tmp_path: Path, line: str) -> None:
    with pytest.raises(UserError, match=r"rows.jsonl, line 2: not JSON"):
        grade(tmp_path, '{"text": "1", "gold": "1"}\n' + line + "\n")
