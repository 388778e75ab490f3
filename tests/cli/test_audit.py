"""`mathrl runs audit`: asked in the terminal, resumed, labels from the page, cases, and the registry's gate."""

import json
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from mathrl.cli.main import app
from mathrl.core.errors import UserError
from mathrl.core.files import read_json, read_jsonl, write_jsonl
from mathrl.core.hashing import digest_path
from mathrl.core.results import Interval
from mathrl.registry.promote import Evidence, audited_rate, judge

EVALUATION = Path("reports/evaluate/responses.jsonl")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """200 responses to questions with the answer 4; one in twenty verdicts is wrong."""
    monkeypatch.chdir(tmp_path)
    for module in ("mathrl.cli.runs", "mathrl.registry.promote"):
        monkeypatch.setattr(f"{module}.main_checkout", lambda: tmp_path)
    rng, rows = random.Random(0), []
    for number in range(200):
        right = number % 2 == 0
        text = f"<b>{number}</b> \\\\boxed{{{4 if right else 5}}}"
        rows.append(
            {"model": "rl", "benchmark": "test", "question": "2+2=", "answers": ["4"], "response": text,
             "extracted": str(4 if right else 5), "rule": "boxed; number", "correct": right != (rng.random() < 0.05)}
        )  # fmt: skip
    write_jsonl(EVALUATION, rows)
    return tmp_path


def audit(*words: str, keys: str = "") -> Any:
    done = CliRunner().invoke(app, ["runs", "audit", "evaluate", "--size", "40", *words], input=keys)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def answers(folder: Path, count: int | None = None) -> str:
    """What a person types who judges by the box, after one key that means nothing."""
    labelled = {row["key"] for row in read_jsonl(folder / "labels.jsonl")} if (folder / "labels.jsonl").exists() else ()
    items = [item for item in read_json(folder / "sample.json")["sample"] if item["key"] not in labelled]
    return "x\n" + "".join("y\n" if "{4}" in item["row"]["response"] else "n\n" for item in items[:count])


def test_an_audit_in_the_terminal_resumes_and_its_wrong_verdicts_become_cases(checkout: Path) -> None:
    first = audit()
    assert "unknown" in first.stdout and "0 of 0 labelled" in first.stdout
    (folder,) = Path("reports/audits").iterdir()
    page = (folder / "audit.html").read_text()
    assert "&lt;b&gt;" in page and "<b>" not in page.partition("<article")[2], "a response is text, not markup"
    assert "refused" not in page.partition("<article")[2], "the verdict does not sway the label"

    some = audit(keys=answers(folder, 15) + "q\n")
    assert "y: the final answer is right" in some.stdout and "1 of 40" in some.stdout
    assert "of 15 labelled" in some.stdout
    done = audit("--cases", "cases.jsonl", keys=answers(folder))
    assert "16 of 40" in done.stdout and "of 40 labelled" in done.stdout
    wrong = [item for item in read_json(folder / "sample.json")["sample"]
             if ("{4}" in item["row"]["response"]) != item["row"]["correct"]]  # fmt: skip
    cases = list(read_jsonl(Path("cases.jsonl")))
    assert 0 < len(wrong) == len(cases) == read_json(folder / "audit.json")["wrong"]
    assert all(case["right"] == ("{4}" in case["response"]) and case["ground_truth"] == ["4"] for case in cases)
    assert "0 new cases" in audit("--cases", "cases.jsonl").stdout

    # The gate: an audit of the version's evaluation, its bound, and one of another evaluation.
    step = SimpleNamespace(stage="evaluate", outputs={"reports/evaluate": digest_path(EVALUATION.parent)})
    rate = audited_rate(SimpleNamespace(steps=[step]))  # type: ignore[arg-type]
    assert rate is not None and 0 < rate.high < 0.5
    assert audited_rate(SimpleNamespace(steps=[SimpleNamespace(stage="evaluate", outputs={"x": "0"})])) is None  # type: ignore[arg-type]


def test_labels_from_the_page(checkout: Path) -> None:
    audit()
    (folder,) = Path("reports/audits").iterdir()
    keys = [item["key"] for item in read_json(folder / "sample.json")["sample"]]
    write_jsonl(Path("saved.jsonl"), [{"key": key, "label": "unsure"} for key in keys])
    assert "40 labels read" in audit("--labels", "saved.jsonl").stdout
    assert read_json(folder / "audit.json")["unsure"] == 40
    for bad in ({"key": "0", "label": "y"}, {"key": keys[0], "label": "yes"}):
        write_jsonl(Path("bad.jsonl"), [bad])
        with pytest.raises(UserError, match=r"bad\.jsonl, line 1: no label of this audit"):
            audit("--labels", "bad.jsonl")


def test_what_is_no_evaluation_is_named(checkout: Path) -> None:
    for words, message in ((["nothing"], "no graded responses there"), (["evaluate", "--model", "dpo"], "model 'dpo'")):
        done = CliRunner().invoke(app, ["runs", "audit", *words])
        assert message in str(done.exception)
    write_jsonl(Path("kept/samples.jsonl"), [{"problem_id": "p", "response": "", "correct": False, "rule": "none"}])
    assert "not in data/curated" in str(CliRunner().invoke(app, ["runs", "audit", "kept"]).exception)
    Path("data/curated").mkdir(parents=True)
    problem = {"id": "p", "question": "2+2=", "answers": ["4"], "source": "chain", "split": "rl"}
    Path("data/curated/rl.jsonl").write_text(json.dumps(problem) + "\n")
    assert "accepted: 4" in CliRunner().invoke(app, ["runs", "audit", "kept"]).stdout


def test_the_gate_asks_for_a_bound() -> None:
    fine = Evidence(None, 0, 1.0, "green")
    assert not any("false-positive" in line or "audit" in line for side in judge(fine) for line in side)
    asked = replace(fine, most_false_positives=0.01)
    assert "no finished audit" in judge(asked)[0][0]
    good, bad = Interval(0.002, 0.0, 0.009), Interval(0.002, 0.0, 0.011)
    against, in_favour = judge(replace(asked, audit=good))
    assert against == [] and "0.002 [0.000, 0.009]" in in_favour[-1]
    (reason,) = judge(replace(asked, audit=bad))[0]
    assert "by audit is 0.002 [0.000, 0.011], its bound 0.01" in reason
