"""`mathrl grade`: verdicts beside rows; a bad row is named and nothing is written."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mathrl.cli.main import app
from mathrl.core.errors import UserError

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
        ([*ROWS, {"id": 4, "gold": "1"}], "line 4: no field 'text'; fields there: id, gold; see --response-key"),
        ([{"text": "1"}], "line 1: no field 'gold'; fields there: text; see --answer-key"),
        ([{"text": 5, "gold": "5"}], "line 1, field text: text is wanted, found 5"),
        ([{"text": "5", "gold": None}], "line 1, field gold: an answer or a list of them is wanted, found None"),
        ('{"text": "1", "gold": "1"}\n{"text"\n', "line 2: not JSON"),
        ("", "no row in it"),
    ],
)
def test_a_bad_row_is_named_and_no_output_is_written(
    tmp_path: Path, rows: list[dict[str, object]] | str, message: str
) -> None:
    with pytest.raises(UserError) as caught:
        grade(tmp_path, rows)
    assert message in str(caught.value) and "rows.jsonl" in str(caught.value)
    assert {file.name for file in tmp_path.iterdir()} == {"rows.jsonl"}
