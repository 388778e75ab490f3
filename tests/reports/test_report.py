"""`mathrl runs report` and `mathrl runs health` on files as the stages leave them, with hostile text in them."""

import base64
import json
import math
import shlex
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from mathrl.cli.runs import health, report
from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.core.files import write_json, write_jsonl
from mathrl.core.hashing import digest_path
from mathrl.core.types import EvalRow
from mathrl.evaluation.benchmark import EvaluatedModel
from mathrl.reports.html import Material, commands, page_of, pipeline_material
from mathrl.reports.html_figures import Chart, before_after, curves, length_and_accuracy
from mathrl.reports.pictures import render
from mathrl.stages.evaluate import summary_of

ROOT = Path(__file__).parents[2]
HOSTILE = "<script>alert('x')</script><img src=http://a.b/c.png onerror=x> \"quoted\" & {{ 7*7 }} </pre>"


def responses(model: str, right: int) -> list[dict[str, Any]]:
    """Ten problems, two responses each; the first `right` problems are solved."""
    return [
        {"problem_id": f"p{n}", "model": model, "benchmark": "test", "sample": sample, "correct": n < right,
         "question": f"{n}+{n}= {HOSTILE}", "answers": [str(2 * n)],
         "extracted": str(2 * n) if n < right else None, "rule": "tag",
         "response": f"{model} says {HOSTILE}", "length": 5 + n, "truncated": False}
        for n in range(10) for sample in range(2)
    ]  # fmt: skip


def rows_of(model: str, right: int) -> list[EvalRow]:
    return [
        EvalRow(
            problem_id=f"p{n}",
            model=model,
            benchmark="test",
            correct=(n < right,) * 2,
            lengths=(5 + n,) * 2,
            extracted=(str(n),) * 2,
            truncated=(False,) * 2,
            level=n % 2,
            subject=None,
        )
        for n in range(10)
    ]


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout's reports of sft, rl and evaluate, the records of what made them, its own home and store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MATHRL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr("mathrl.cli.runs.main_checkout", lambda: tmp_path)
    shutil.copytree(ROOT / "params", tmp_path / "params")
    steps = range(1, 51)
    write_jsonl(tmp_path / "reports/sft/metrics.jsonl", [{"step": n, "loss": 1 / n} for n in steps])
    curve = [
        {
            "step": n,
            "reward/accuracy": 0.3 + n / 100,
            "reward/overall": n / 100,
            "entropy": 1 / n,
            "rollout/truncated_share": 0.2 if n > 40 else 0.0,
            **({"dev/accuracy": 0.3 + n / 100} if n % 10 == 0 else {}),
        }
        for n in steps
    ]
    write_jsonl(tmp_path / "reports/rl/metrics.jsonl", curve)
    every = [*responses("base", 0), *responses("sft", 4), *responses("rl", 9)]
    write_jsonl(tmp_path / "reports/evaluate/responses.jsonl", every)
    right = {"base": 0, "sft": 4, "rl": 9}
    models = [EvaluatedModel(name, "test", rows_of(name, count), [], 0) for name, count in right.items()]
    summary_of({"test": models}, load_params(tmp_path / "params")).write(tmp_path / "reports/summary.json")
    (tmp_path / "models").mkdir()
    for name in ("sft", "rl"):
        (tmp_path / "models" / name).mkdir()
        (tmp_path / "models" / name / "weights").write_text(name)
    record("sft", {}, ["models/sft", "reports/sft"])
    record("rl", {"models/sft": digest_path(Path("models/sft"))}, ["models/rl", "reports/rl"])
    inputs = {path: digest_path(Path(path)) for path in ("models/sft", "models/rl")}
    record("evaluate", inputs, ["reports/evaluate", "reports/summary.json"])
    return tmp_path


def record(stage: str, inputs: dict[str, str], outputs: list[str]) -> None:
    folder = Path("home/records") / f"{stage}-1"
    (folder / "artifacts").mkdir(parents=True)
    params = load_params(Path("params")).model_dump(mode="json")
    facts = {
        "stage": stage,
        "name": stage,
        "key": f"{stage}0000",
        "status": "finished",
        "started": 1.0,
        "ended": 2.0,
        "params": {name: params[name] for name in ("run", "sft", "rl", "health")},
        "pipeline": "f00d",
        "pipeline_params": {},
        "git": {"commit": "c0ffee" * 6, "dirty": False},
        "code": {"mathrl": "0.3.0", "value": "2", "own": ""},
        "inputs": inputs,
        "outputs": {path: digest_path(Path(path)) for path in outputs},
        "workspace": str(Path.cwd()),
    }
    write_json(folder / "run.json", facts)
    if stage != "evaluate":
        shutil.copy(f"reports/{stage}/metrics.jsonl", folder / "metrics.jsonl")


class Reader(HTMLParser):
    """What a browser would see: tags with their attributes, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, text: str) -> None:
        self.text += text


def test_a_page_of_everything_that_runs_nothing_and_loads_nothing(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report("pipeline", None)
    address = (workspace / "reports/html/mathrl-pipeline.html").as_uri()
    assert capsys.readouterr().out == (
        f"reports/html/mathrl-pipeline.html  (health yellow); open it in a browser: {address}\n"
    )
    text = Path("reports/html/mathrl-pipeline.html").read_text(encoding="utf-8")
    page = Reader(text)
    assert {"script", "iframe", "link", "object"}.isdisjoint(tag for tag, _ in page.tags)
    for _, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/svg+xml;base64,"))
    assert "url(" not in text and "@import" not in text
    # Every question and response stands in it as text, unevaluated.
    assert page.text.count(f"sft says {HOSTILE}") == page.text.count(f"rl says {HOSTILE}") == 7
    for part in ("rl is better than sft: +0.500", "0.900", "pass@2", "By level",
                 "Training: sft",
                 "Training: rl", "Entropy", "truncated", "20.0% of the responses are cut off", "c0ffeec0ffee",
                 "Complete: 3 stages on this machine", "git checkout c0ffee", "mathrl run pipeline",
                 "pip install -c constraints.txt 'mathrl[platform]==0.3.0'",
                 "5 of 5 that became right, 0 of 0 that became wrong"):  # fmt: skip
        assert part in page.text, part
    assert sum(tag == "img" for tag, _ in page.tags) >= 7 and sum(tag == "svg" for tag, _ in page.tags) == 1
    report("rl", Path("again.html"))
    assert Path("again.html").read_text(encoding="utf-8") == text, "the same files, the same bytes"


def test_a_stage_of_no_steps_is_no_training_and_what_was_made_elsewhere_is_said(workspace: Path) -> None:
    Path("reports/sft/metrics.jsonl").write_text("")
    shutil.rmtree("home/records/sft-1")
    report("pipeline", Path("out.html"))
    text = Reader(Path("out.html").read_text(encoding="utf-8")).text
    assert "Training: rl" in text and "Training: sft" not in text and "steps of sft" not in text
    assert "not made here, or not by these records: models/sft (" in text


def test_a_recipes_step_compares_what_its_evaluation_did_not(workspace: Path) -> None:
    for name in ("rl", "sft"):
        shutil.copytree(f"reports/{name}", f"pipelines/recipes/demo/{name}-s0/report")
    step = Path("pipelines/recipes/demo/test-s0")
    shutil.copytree("reports/evaluate", step / "report")
    summary = json.loads(Path("reports/summary.json").read_text())
    wide = {f"{name}-s0": summary["models"][name] for name in ("sft", "rl")}
    write_json(step / "summary.json", summary | {"models": wide, "comparisons": {}})
    rows = [json.loads(line) for line in (step / "report/responses.jsonl").read_text().splitlines()]
    write_jsonl(step / "report/responses.jsonl", [row | {"model": f"{row['model']}-s0"} for row in rows])
    report("demo/test-s0", Path("step.html"))
    text = Reader(Path("step.html").read_text(encoding="utf-8")).text
    assert "rl-s0 is better than sft-s0: +0.500" in text
    assert "mathrl recipe demo" in text and "Training: pipelines/recipes/demo/rl-s0" in text


def test_health_of_a_run_afterwards_and_its_dev_curve_continued(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    health("rl")
    printed = capsys.readouterr().out
    assert (
        "forecast from the dev curve up to step 50: if the curve keeps its shape 0." in printed
        and "at step 75" in printed
    )
    page = page_of(pipeline_material(Path()), load_params())
    by_run = {name: text for name, _, text in page["curves"]}
    assert by_run["sft"] == "" and by_run["rl"].startswith(
        "From the dev curve up to step 50: if the curve keeps its shape 0."
    )
    assert by_run["rl"] in render("report.html", page=page)
    health("rl", as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert [each["rule"] for each in found["findings"]] == ["truncated"] and found["colour"] == "yellow"
    rows = [{"step": n, "reward/accuracy": 0.5, "actor_loss": 50.0} for n in range(1, 6)]
    write_jsonl(Path("elsewhere/metrics.jsonl"), rows)
    with pytest.raises(SystemExit):
        health("elsewhere")
    assert "actor_loss is 50" in capsys.readouterr().out


def test_a_record_of_an_older_version_opens(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of 9f9a318, which had `rl.optimizer.muon_lr` and `rl.rollout_ahead`: both are left out, with a notice."""
    old = json.loads(Path(__file__).with_name("record_of_9f9a318.json").read_text())
    file = Path("home/records/rl-1/run.json")
    here = {name: json.loads(file.read_text())[name] for name in ("inputs", "outputs", "workspace")}
    write_json(file, old | here | {"params": old["params"] | {"health": old["params"]["health"] | {"truncated": 0.5}}})
    health("home/records/rl-1", as_json=True)
    told = capsys.readouterr()
    assert json.loads(told.out)["colour"] == "green", "by the record's own thresholds"
    renamed, ignored = told.err.splitlines()
    assert renamed.startswith("parameters of version 0.1: rl.advantage is rl.advantage.type now, ")
    assert ignored == "rl-1: ignored, since they no longer exist: rl.optimizer.muon_lr, rl.rollout_ahead"
    report("rl", Path("out.html"))
    assert "muon_lr" in Path("out.html").read_text(encoding="utf-8"), "what the run had stays on its page"
    # A value that no longer fits is an error with its field.
    write_json(file, old | here | {"params": {"rl": {"advantage": "grpo_like", "rollout_ahead": 0}}})
    with pytest.raises(UserError, match=r"^rl-1: rl: advantage.type: no type 'grpo_like' \(did you mean grpo\?\)"):
        health("home/records/rl-1")


def test_examples_are_chosen_by_what_became_of_them() -> None:
    rows = [*responses("a", 3), *responses("b", 8)]
    for row in rows:  # problem 0 is lost
        row["correct"] = row["correct"] and not (row["model"] == "b" and row["problem_id"] == "p0")
    shown, said = before_after(rows, "a", "b")
    assert said == (
        "5 of 5 that became right, 1 of 1 that became wrong, 2 of 2 that stayed wrong, 1 of 2 that stayed right"
    )
    assert [each["id"] for each in shown] == ["p3", "p4", "p5", "p6", "p7", "p0", "p8", "p9", "p1"]
    assert [side["model"] for side in shown[0]["sides"]] == ["a", "b"]


def svg_of(chart: Chart) -> str:
    assert chart.picture.startswith("data:image/svg+xml;base64,")
    return base64.b64decode(chart.picture.partition(",")[2]).decode()


def test_charts_are_svg_with_their_text_and_equal_for_equal_rows() -> None:
    rows = [
        {"step": n, "loss": math.nan if n == 3 else 1 / n, "reward/overall": 0.1, "reward/a<b": 1.0} for n in (1, 2, 3)
    ]
    charts = {chart.title: svg_of(chart) for chart in curves(rows)}
    assert list(charts) == ["Loss", "Reward"]
    assert ">overall<" in charts["Reward"] and ">a&lt;b<" in charts["Reward"] and "a<b" not in charts["Reward"]
    assert ">step<" in charts["Loss"] and "<script" not in charts["Loss"]
    assert [chart.picture for chart in curves(rows)] == [chart.picture for chart in curves(rows)]
    # A loss that is never finite still has its axes; of a finite one every point is marked.
    never = curves([{"step": 1, "loss": math.nan}])
    assert charts["Loss"].count("<use") - svg_of(never[0]).count("<use") >= 2


def test_dots_are_a_problem_each() -> None:
    (chart,) = length_and_accuracy([*responses("sft", 4), *responses("rl", 9)], ["sft", "rl"])
    assert svg_of(chart).count("<use") >= 20 and ">rl<" in svg_of(chart)
    assert length_and_accuracy([], ["sft"]) == []


def test_the_command_of_a_report_keeps_apostrophes_and_spaces() -> None:
    data, asked = "data=/my rows/train.jsonl", "prompt.system=It's 2"
    material = Material("t", Path(), [], None, None, [], "mathrl run pipeline", overrides=[data, asked])
    assert shlex.split(commands(material, []).splitlines()[-1])[-3:] == [data, "--set", asked]
