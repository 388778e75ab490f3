"""Problems of any text that json.loads gives, lone surrogates and NULs too, from source to prompt and export."""

import datetime
import decimal
import json
import math
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mathrl.core.hashing import digest
from mathrl.core.types import Control, Problem, read_problems, write_problems
from mathrl.corpus.page_files import host_and_path
from mathrl.curation.curation import plan, run
from mathrl.curation.curation_account import write_report
from mathrl.curation.inspection import Prompting
from mathrl.data.difficulty import problem_key
from mathrl.data.export import export
from mathrl.data.rejection import Filters, preference_pairs, rejection_sample
from mathrl.data.templates import demonstration, render
from mathrl.models.base import character_tokenizer
from mathrl.params.data import Curate
from mathrl.params.run import FreshModel, Prompt
from mathrl.reading.row_files import read_rows
from mathrl.reading.row_values import is_blank

QUICK = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
ODD = ["\ud83d", "\udc80", "\0", "\r", "\u2028", "\ufeff", "😀"]
any_text = st.lists(st.sampled_from(ODD) | st.text(), max_size=5).map(
    lambda parts: json.loads(json.dumps("".join(parts)))
)
filled = any_text.filter(lambda text: not is_blank(text))
HALF = "\ud83d"
TOKENIZER = character_tokenizer(FreshModel(alphabet="arithmetic"))


def write(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@QUICK
@given(
    st.lists(
        st.fixed_dictionaries(
            {"question": filled, "answer": filled}, optional={"solution": any_text, "more": any_text}
        ),
        min_size=1,
    )
)
def test_curated_problems_read_back_as_they_were_read(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    train = write(tmp_path / "train.jsonl", rows)
    test = write(tmp_path / "test.jsonl", [{"question": f"held out {HALF}", "answer": HALF}])
    sources = [
        {"type": "file", "name": split, "path": str(file), "split": split, "solution_key": "solution"}
        for file, split in ((train, "sft"), (test, "test"))
    ]
    curate = Curate.model_validate({"sources": sources, "deduplicate": {"exact": True, "near": {}}})
    curated = run(curate, seed=0)
    problems = [problem for split in curated.splits.values() for problem in split]
    assert {problem.question for problem in problems} <= {row["question"].strip() for row in rows} | {
        f"held out {HALF}"
    }
    write_problems(tmp_path / "curated.jsonl", problems)
    assert read_problems(tmp_path / "curated.jsonl") == problems
    assert len({problem_key(problem) for problem in problems}) == len(problems)


@QUICK
@given(filled, any_text, any_text)
def test_any_prompt_and_demonstration_has_tokens(question: str, solution: str, instruction: str) -> None:
    problem = Problem("a", question, ("7",), "s", "sft", solution=solution or "none")
    for template in ("plain", "r1_zero", "boxed"):
        prompt = Prompt(template=template, instruction=instruction)  # type: ignore[arg-type]
        assert render(problem, prompt, TOKENIZER, few_shot=[problem])
        assert TOKENIZER.encode(demonstration(problem, prompt, terse=False))


def test_a_prompt_of_valid_text_is_unchanged_and_a_lone_surrogate_is_escaped() -> None:
    assert demonstration(Problem("a", "q", ("😀",), "s", "sft"), Prompt(), terse=True) == "<answer>😀</answer>"
    assert demonstration(Problem("a", "q", (HALF,), "s", "sft"), Prompt(), terse=True) == r"<answer>\ud83d</answer>"


def test_parquet_has_escapes_and_says_how_many_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problems = [
        Problem("a", f"1+1? {HALF}", ("2",), "s", "rl", control=Control(({"role": "user", "content": HALF},))),
        Problem("b", "2+2? 😀", ("4",), "s", "rl"),
        Problem("c", "3+3?", ("6", HALF), "s", "rl"),
    ]
    assert export(problems, "verl", tmp_path / "a.parquet") == 3
    assert "are escaped in 2 rows" in capsys.readouterr().err
    rows = [row.values for row in read_rows(tmp_path / "a.parquet")]
    assert [row["prompt"][0]["content"] for row in rows] == [r"\ud83d", "2+2? 😀", "3+3?"]
    assert rows[2]["extra_info"]["answers"] == ["6", r"\ud83d"]
    assert export(problems, "verl", tmp_path / "a.jsonl") == 3
    assert next(read_rows(tmp_path / "a.jsonl")).values["prompt"][0]["content"] == HALF
    assert export(problems[1:2], "verl", tmp_path / "b.parquet") == 1
    assert capsys.readouterr().err == ""


def test_a_solution_with_a_lone_surrogate_has_a_length_in_tokens() -> None:
    prompting = Prompting(lambda problem: problem.question, lambda text: len(TOKENIZER.encode(text)))
    assert prompting.length(HALF) == len(TOKENIZER.encode(r"\ud83d"))


def test_reports_rejected_rows_and_samples_with_lone_surrogates(tmp_path: Path) -> None:
    rows = [{"question": f"1+1 {HALF}", "answer": "2"}] * 2 + [{"question": HALF, "gold": HALF}]
    file = write(tmp_path / "odd.jsonl", [*rows, {"question": "3+3", "answer": "6"}])
    source = {"type": "file", "name": "odd", "path": str(file), "split": "rl"}
    curate = Curate.model_validate({"sources": [source], "decontaminate": None, "on_bad_row": "reject"})
    curated = run(curate, seed=0)
    assert (len(curated.splits["rl"]), len(curated.dropped), len(curated.rejected)) == (2, 1, 1)
    write_report(tmp_path / "report", curated, curate, 0)
    assert r"1+1 \ud83d" in (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    samples = [{"response": f"{HALF} {i}", "correct": i > 0, "length": 3} for i in range(3)]
    group = (curated.splits["rl"][0], samples)
    assert rejection_sample([group], Filters(language="en"), 0)[1]["kept"] == 2
    assert preference_pairs([group], 1, 0)[0]["rejected"] == f"{HALF} 0"


@pytest.mark.parametrize("line", ["[" * 100_000, '{"a": ' + "1" * 5000 + "}", '"a text"', "7"])
def test_a_line_that_is_no_row_is_a_bad_row_beside_the_others(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n' + line + '\n{"a": 2}\n')
    first, bad, last = read_rows(tmp_path / "a.jsonl")
    assert (first.values, last.values) == ({"a": 1}, {"a": 2})
    assert bad.problem is not None and bad.problem.startswith("not ")


def test_a_host_name_with_a_lone_surrogate_can_be_drawn() -> None:
    assert host_and_path("https://a\ud83d.example/b", "here") == (r"a\ud83d.example", "/b")


def test_digests_differ_where_texts_differ() -> None:
    assert len({digest(text) for text in ("a", "a\ud83d", "a\udc80")}) == 3


def test_rows_that_nobody_expects_end_in_a_split_or_in_the_rejected_rows(tmp_path: Path) -> None:
    """Dates, decimals, bytes, NaN, lone surrogates anywhere, huge integers, deep nesting: never a crash at the end."""
    deep = '{"question": "Deep?", "answer": 1, "note": ' + "[" * 400 + "]" * 400 + "}"
    deeper = '{"question": "Deeper?", "answer": 1, "note": ' + "[" * 100_000 + "]" * 100_000 + "}"
    huge = '{"question": "Huge?", "answer": ' + "9" * 5000 + "}"
    lone = r'{"question": "Lone \ud83d?", "answer": "\udc80 1", "id": "\ud83d", "t": "\udc80", "\ud83d": "\udc80"}'
    more = [
        '{"question": "Level?", "answer": 1e400, "l": 1}',
        '{"question": "L?", "answer": 2, "l": Infinity, "n": NaN}',
    ]
    big = (
        '{"question": "Big?", "answer": 123456789012345678901234567890, "id": 1e22, "l": 1e300, "n": [NaN, -Infinity]}'
    )
    (tmp_path / "a.jsonl").write_text("\n".join([lone, deep, deeper, huge, *more, big]))
    columns = {
        "question": ["When?", "Who?"],
        "answer": [decimal.Decimal("1.50"), decimal.Decimal(2)],
        "l": [1, None],
        "day": [datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), None],
        "raw": [b"\xff\x00", b"text"],
        "rate": [math.nan, math.inf],
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "b.parquet")
    source = {"type": "file", "name": "odd", "path": str(tmp_path / "*.*"), "split": "rl", "level_key": "l"}
    curate = Curate.model_validate({"sources": [{**source, "subject_key": "t"}], "on_bad_row": "reject"})
    curated = run(curate, 0, plan(curate))
    problems = curated.splits["rl"]
    assert {problem.question[:3] for problem in problems} == {"Lon", "L?", "Big", "Whe", "Who"}
    reasons = [rejected.reason for rejected in curated.rejected]
    assert [reason[:8] for reason in reasons] == ["field 'n", "not JSON", "not JSON", "field 'a"], reasons
    write_problems(tmp_path / "out" / "rl.jsonl", problems)
    write_report(tmp_path / "out" / "report", curated, curate, 0)
    assert read_problems(tmp_path / "out" / "rl.jsonl") == problems
    for line in (tmp_path / "out" / "rl.jsonl").read_text(errors="surrogatepass").splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
