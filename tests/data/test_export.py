import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mathrl.cli.main import app
from mathrl.core.errors import UserError
from mathrl.core.types import Control, Problem
from mathrl.curation.decontaminate_files import Keys, decontaminate_files
from mathrl.data.export import Format, export
from mathrl.params.data import Decontaminate
from mathrl.reading.row_files import read_rows
from mathrl.reading.row_formats import RowShape, to_problem

PROBLEMS = [
    Problem("g/0", "How many?", ("72",), "gsm8k", "rl", subject="Algebra"),
    Problem("g/1", "还剩多少？", ("1/2", "0.5"), "cmath", "rl", control=Control(task="math")),
]


@pytest.mark.parametrize(("format", "name"), [("verl", "a.parquet"), ("verl", "a.jsonl"), ("rlinf", "a.jsonl.gz")])
def test_what_is_exported_reads_back(tmp_path: Path, format: Format, name: str) -> None:
    assert export(PROBLEMS, format, tmp_path / name) == 2
    back = [
        to_problem(row.values, RowShape(format), name=row.name, source="x", split="rl", seed=0)
        for row in read_rows(tmp_path / name)
    ]
    assert [p.question for p in back] == [p.question for p in PROBLEMS]
    assert [(p.id, p.answers) for p in back] == [(p.id, p.answers) for p in PROBLEMS]


def test_verl_rows_have_verls_fields(tmp_path: Path) -> None:
    export(PROBLEMS, "verl", tmp_path / "a.parquet")
    row = next(iter(read_rows(tmp_path / "a.parquet"))).values
    assert set(row) == {"data_source", "prompt", "ability", "reward_model", "extra_info"}
    assert row["prompt"] == [{"role": "user", "content": "How many?"}]
    assert row["reward_model"] == {"style": "rule", "ground_truth": "72"}


def test_rlinf_has_no_parquet(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="RLinf reads jsonl"):
        export(PROBLEMS, "rlinf", tmp_path / "a.parquet")


TEN = "one two three four five six seven eight nine ten"


def write(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_a_file_is_cleaned_against_others_and_every_hit_reported(tmp_path: Path) -> None:
    rows = [
        {"problem": f"{TEN} more", "kept": 1},
        {"id": "b", "problem": "fine", "solution": f"so {TEN}"},
        {"id": "c", "prompt": [{"role": "user", "content": "harmless"}]},
    ]
    train = write(tmp_path / "train.jsonl", rows)
    one = write(tmp_path / "one.jsonl", [{"id": "e", "question": TEN, "answer": "1"}])
    two = write(tmp_path / "two.jsonl", [{"question": "unrelated words here"}])
    found = decontaminate_files(
        train, [one, two], rule=Decontaminate(), output=tmp_path / "clean.jsonl", report=tmp_path / "hits.jsonl"
    )
    assert (found["rows"], found["kept"], found["dropped"]) == (3, 1, 2)
    assert found["hits_by_file"] == {"one.jsonl": 2}
    assert [json.loads(line) for line in (tmp_path / "clean.jsonl").read_text().splitlines()] == [rows[2]]
    hits = [json.loads(line) for line in (tmp_path / "hits.jsonl").read_text().splitlines()]
    assert {h["train_id"] for h in hits} == {"train:1", "b"} and {h["eval_id"] for h in hits} == {"e"}
    assert all(h["ngram"] == TEN and h["share"] == 1.0 for h in hits)


def test_the_command_takes_several_files_after_against(tmp_path: Path) -> None:
    """As issue 4 writes it; both evaluation files have an id "1"."""
    eleven = TEN.replace("one", "eleven")
    train = write(
        tmp_path / "A.jsonl",
        [{"id": "a", "question": f"{TEN}!"}, {"id": "b", "question": eleven}, {"id": "c", "question": "fine"}],
    )
    files = [
        write(tmp_path / name, [{"id": "1", "question": text}])
        for name, text in (("B.jsonl", TEN), ("C.jsonl", eleven))
    ]
    clean, report = tmp_path / "clean.jsonl", tmp_path / "hits.jsonl"
    words = ["--train", train, "--against", *files, "--ngram", 10, "--min-share", 0.5,
             "--output", clean, "--report", report]  # fmt: skip
    done = CliRunner().invoke(app, ["data", "decontaminate", *map(str, words)])
    assert done.exit_code == 0, done.output
    assert done.output.splitlines() == ["3 rows, 1 kept, 2 dropped", "  B.jsonl: 1", "  C.jsonl: 1"]
    hits = [json.loads(line) for line in report.read_text().splitlines()]
    assert {hit["eval_id"] for hit in hits} == {"1", "C.jsonl/1"}
    assert [json.loads(line)["id"] for line in clean.read_text().splitlines()] == ["c"]


def test_hits_of_a_small_share_are_reported_and_their_rows_stay(tmp_path: Path) -> None:
    def long(word: str) -> str:
        return f"{TEN} {' '.join(f'{word}{chr(97 + i)}' for i in range(20))}"

    train = write(tmp_path / "a.jsonl", [{"id": "low", "question": long("x")}, {"id": "high", "question": long("y")}])
    against = write(tmp_path / "b.jsonl", [{"id": "e", "question": long("y")}])
    found = decontaminate_files(
        train, [against], rule=Decontaminate(), output=tmp_path / "clean.jsonl", report=tmp_path / "hits.jsonl"
    )
    assert (found["kept"], found["dropped"], found["hits"]) == (1, 1, 2)
    assert found["hits_by_file"] == {"b.jsonl": 1}
    hits = [json.loads(line) for line in (tmp_path / "hits.jsonl").read_text().splitlines()]
    assert [(hit["train_id"], hit["dropped"], hit["share"]) for hit in hits] == [
        ("high", True, 1.0),
        ("low", False, round(10 / 30, 4)),
    ]
    assert json.loads((tmp_path / "clean.jsonl").read_text())["id"] == "low"


def test_several_processes_find_what_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"id": str(n), "question": f"{TEN} {n}" if n % 7 == 0 else f"fine {n}"} for n in range(60)]
    train = write(tmp_path / "train.jsonl", rows)
    against = write(tmp_path / "e.jsonl", [{"id": "e", "question": TEN}])
    written = []
    for per_task in (4096, 7):  # one process, and as many as there are cores, for nine tasks
        monkeypatch.setattr("mathrl.curation.decontaminate_files.PER_TASK", per_task)
        clean, report = tmp_path / f"{per_task}.jsonl", tmp_path / f"hits-{per_task}.jsonl"
        found = decontaminate_files(train, [against], rule=Decontaminate(), output=clean, report=report)
        written.append((found, clean.read_bytes(), report.read_bytes()))
    assert written[0] == written[1] and written[0][0]["dropped"] == 9


def test_a_row_without_a_question_leaves_no_output(tmp_path: Path) -> None:
    train = write(tmp_path / "train.jsonl", [{"text": "x"}])
    against = write(tmp_path / "e.jsonl", [{"question": TEN}])
    with pytest.raises(UserError, match=r"train\.jsonl, line 1: no question \(.*found text"):
        decontaminate_files(train, [against], rule=Decontaminate(), output=tmp_path / "o.jsonl", report=tmp_path / "r")
    assert not (tmp_path / "o.jsonl").exists() and not (tmp_path / "r").exists()


def test_columns_are_named_and_parquet_stays_parquet_with_its_types(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet as parquet

    days = [datetime.datetime(2026, 1, day) for day in (1, 2)]
    columns = {"text": [f"{TEN} more", "fine"], "meta": [{"n": "a"}, {"n": "b"}], "day": days, "raw": [b"\xff", b"x"]}
    train, clean, report = (tmp_path / name for name in ("train.parquet", "clean.parquet", "hits.jsonl"))
    parquet.write_table(pyarrow.table(columns), train)
    against = write(tmp_path / "e.jsonl", [{"question": TEN}])
    words = ["--train", train, "--against", against, "--output", clean, "--report", report]
    named = [*map(str, words), "--prompt-key", "text", "--id-key", "meta.n"]
    done = CliRunner().invoke(app, ["data", "decontaminate", *named])
    assert done.exit_code == 0, done.output
    table = parquet.read_table(clean)
    assert table.schema == parquet.read_table(train).schema and table.to_pylist()[0]["day"] == days[1]
    assert json.loads(report.read_text())["train_id"] == "a"

    rows = decontaminate_files(
        train, [against], rule=Decontaminate(), output=tmp_path / "c.jsonl", report=report, keys=Keys(prompt="text")
    )
    kept = json.loads((tmp_path / "c.jsonl").read_text())
    assert rows["kept"] == 1 and kept == {"text": "fine", "meta": {"n": "b"}, "day": "2026-01-02T00:00:00", "raw": "x"}

    for output, key, message in (("c.csv", "text", "written as .jsonl"), ("c.jsonl", "txt", "row 1: no field 'txt'")):
        with pytest.raises(UserError, match=message):
            decontaminate_files(
                train, [against], rule=Decontaminate(), output=tmp_path / output, report=report, keys=Keys(prompt=key)
            )


def test_json_lines_become_parquet_with_every_field_if_the_output_is_named_so(tmp_path: Path) -> None:
    rows = [{"question": TEN}, {"question": "good"}, {"question": "fine", "emoji": "\ud83d"}]
    train = write(tmp_path / "t.jsonl", rows)
    against = write(tmp_path / "e.jsonl", [{"question": TEN}])
    clean = tmp_path / "clean.parquet"
    decontaminate_files(train, [against], rule=Decontaminate(), output=clean, report=tmp_path / "r.jsonl")
    assert [row.values for row in read_rows(clean)] == [
        {"question": "good", "emoji": None},
        {"question": "fine", "emoji": "\\ud83d"},
    ]
