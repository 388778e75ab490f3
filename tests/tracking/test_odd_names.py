"""Any text is a name that MLflow takes; what it refuses costs nothing else: a real store, filled by the mirror."""

import json
import math
import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from mathrl.cli.main import app
from mathrl.core.files import write_jsonl
from mathrl.core.records import RunRecord
from mathrl.tracking import mirror as module
from mathrl.tracking.batches import LONGEST, escape, unescape
from mathrl.tracking.client import connect, experiments
from mathrl.tracking.lineage import _step
from mathrl.tracking.mirror import sync

ODD = ("reward/len<100", "dev/AIME (2024)/accuracy", "reward/gsm8k+math", "a//b", "odd@name", "x" * 300, "\ud83d", "")
INPUTS = {"data/gsm8k+math (1).jsonl": "aa", "data/curated/rl.jsonl": "bb"}


@pytest.fixture
def record(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> RunRecord:
    """A finished run with three steps of metrics, half of them of names that MLflow refuses."""
    monkeypatch.setenv("MATHRL_HOME", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(module, "_system_monitor", lambda run_id: None)
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    record = RunRecord(tmp_path / "records" / "rl-k-1")
    record.artifacts.mkdir(parents=True)
    record.update(
        stage="rl", key="k", status="finished", started=1.0, ended=2.0, pid=os.getpid(), host=socket.gethostname(),
        pipeline="p", params={"rl": {"lr": 0.1, "weights": {"len<100": 2.0}}}, inputs=INPUTS,
        outputs={"models/rl": "71", "reports/a+b": "1"},
        summary={"dev/accuracy": 0.5, "dev/len<100": 0.25, "bad": None},
        error="\ud83d", prefect_flow_run="", datasets={"AIME \ud83d": {"path": "x", "digest": "cc"}},
    )  # fmt: skip
    return record


def rows(**more: Any) -> list[dict[str, Any]]:
    odd = {name: float(place) for place, name in enumerate(ODD)}
    return [{"step": step, "at": float(step), "loss": 1 / step, **odd, **more} for step in (1, 2, 3)]


def only_run() -> Any:
    (run,) = connect().search_runs(experiments(connect()), "tags.`mathrl.record` = 'rl-k-1'")
    return run


def test_all_metrics_arrive_and_odd_names_arrive_escaped_with_the_name_as_written(
    record: RunRecord, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = rows(grad_norm=math.nan, ratio=math.inf)
    record.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert sync() == 1
    run = only_run()
    assert run.info.status == "FINISHED" and run.data.metrics["loss"] == pytest.approx(1 / 3)
    for place, name in enumerate(ODD):
        history = connect().get_metric_history(run.info.run_id, escape(name))
        assert [(point.step, point.value) for point in history] == [(1, place), (2, place), (3, place)], name
        assert run.data.tags[f"name.{escape(name)}"] == name.encode("utf-8", "backslashreplace").decode(), name
    assert len({escape(name) for name in ODD}) == len(ODD)
    assert run.data.metrics["final/dev/len:3c:100"] == 0.25 and run.data.metrics["final/dev/accuracy"] == 0.5
    assert run.data.params == {"rl.lr": "0.1", "rl.weights.len:3c:100": "2.0"}
    assert "name.loss" not in run.data.tags
    metrics = run.data.metrics
    assert math.isnan(metrics["grad_norm"]) and metrics["ratio"] > 1e300, "values that are not finite"
    step = _step(run)  # lineage knows files by their names as written
    assert step.inputs == INPUTS and step.outputs == {"models/rl": "71", "reports/a+b": "1"}
    assert step.section("rl") == {"lr": 0.1, "weights": {"len<100": 2.0}}
    errors = capfd.readouterr().err
    assert errors.count("tracking:") == 1 and "MLflow refuses 'final/bad', all else is sent" in errors, errors
    done = CliRunner().invoke(app, ["sync"], catch_exceptions=False)
    assert done.exit_code == 0, "and there is nothing left to send"


def test_a_value_that_is_not_a_number_loses_neither_its_name_nor_the_others(
    record: RunRecord, capfd: pytest.CaptureFixture[str]
) -> None:
    record.update(summary={})
    lines, wrong = rows(**{f"m{n}": float(n) for n in range(300)}), [None, "text", [1.0], 10**400]  # several batches
    for number, value in enumerate(wrong):
        lines[1][f"m{number}"] = value
    write_jsonl(record.metrics_file, lines)
    assert sync() == 1
    run, said = only_run(), capfd.readouterr().err
    assert {f"m{n}": float(n) for n in range(300)}.items() <= run.data.metrics.items()
    for number in range(len(wrong)):
        history = connect().get_metric_history(run.info.run_id, f"m{number}")
        assert sorted(point.step for point in history) == [1, 3]
        assert said.count(f"MLflow refuses 'm{number}'") == 1


TRICKY = st.lists(st.sampled_from([*"/.: _-a2b\n%'`\x00é請", "..", "//", ":2b:", "::", "\ud83d"]), max_size=12)
NAMES = st.text(st.characters(), max_size=40) | TRICKY.map("".join)


def mlflow_takes(name: str) -> bool:
    from mlflow.exceptions import MlflowException
    from mlflow.utils.validation import _validate_metric, _validate_tag

    try:
        _validate_metric(name, 0.5, 1, 1)
        _validate_tag(f"name.{name}", "")
    except MlflowException:
        return False
    return True


@settings(max_examples=200)
@given(NAMES)
@example("")
@example("../x")
@example("...")
@example("/")
@example("a/")
@example("a/./b")
@example("gsm8k+math")
def test_mlflow_takes_every_name_and_the_name_as_written_comes_back(name: str) -> None:
    assert mlflow_takes(escape(name)), escape(name)
    if len(escape(name)) <= 200:
        assert unescape(escape(name)) == name


@settings(max_examples=200)
@given(st.sets(NAMES | st.text(min_size=LONGEST, max_size=2 * LONGEST), max_size=6))
@example({"a+b", "a:2b:b", "a::b", "a:3a:2b:3a:b"})
def test_different_names_stay_different(names: set[str]) -> None:
    assert len({escape(name) for name in names}) == len(names)


def test_names_that_mlflow_takes_stay_and_long_ones_that_begin_alike_stay_different() -> None:
    for name in ("rl/dev/accuracy", "by source.x-1/größe 2", "時間/loss"):
        assert mlflow_takes(name) and escape(name) == name
    names = ["x" * 300 + end for end in ("1", "2")] + ["<" * 120]
    assert len({escape(name) for name in names}) == 3 and all(mlflow_takes(escape(name)) for name in names)
    assert not any(mlflow_takes(name) for name in names)
