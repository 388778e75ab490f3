"""Runs are told apart by name, the parent has the figures of its stages, and `mathrl runs` lists what MLflow does."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mathrl.compose import load_params
from mathrl.compose.changes import changed_since_commit
from mathrl.core.metrics import JsonlSink
from mathrl.core.records import RunRecord, change_words, run_name
from mathrl.tracking.client import connect, experiment, keep_views, views
from mathrl.tracking.run_list import list_runs
from mathrl.tracking.upload import Upload

ROOT = Path(__file__).parents[2]
PASS = {"sft/pass_at_1": 0.4, "sft/pass_at_1_low": 0.3, "sft/pass_at_1_high": 0.5,
        "rl/pass_at_1": 0.9, "rl/pass_at_1_low": 0.85, "rl/pass_at_1_high": 0.95, "rl/pass_at_8": 1.0}  # fmt: skip


@pytest.fixture
def upload(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Upload a stage's record; returns its run's id."""
    monkeypatch.setenv("MATHRL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "home").mkdir()
    shutil.copy(empty_store, tmp_path / "home" / "mlflow.db")

    def send(stage: str, started: float, dev: tuple[float, ...] = (), health: str = "green", **facts: Any) -> str:
        folder = tmp_path / "records" / f"{stage}-{started}"
        for step, accuracy in enumerate(dev):
            JsonlSink(folder / "metrics.jsonl", resume_after=step).log(step + 1, {"dev/accuracy": accuracy})
        params = load_params(ROOT / "params").model_dump(mode="json", by_alias=True)
        facts |= {"stage": stage, "started": started, "ended": started + 30, "pipeline_params": params}
        record = RunRecord(folder, git={"commit": "c0ffee99"}, **facts)
        sender = Upload(connect())
        run, parent = sender.start(record)
        sender.health(run, {"colour": health, "findings": []})
        sender.finish(run, parent, record, "finished")
        return run

    return send


def test_a_parent_has_the_figures_of_its_stages_whether_made_now_or_found(upload: Callable[..., str]) -> None:
    upload("sft", 1.0, pipeline="p", outputs={"models/sft": "5f"})
    changed = {"rl.optimizer.lr": 0.002, "rl.steps": 8}
    trained = upload("rl", 50.0, (0.7, 0.8, 0.75), "yellow", pipeline="q", changed=changed, inputs={"models/sft": "5f"},
                     outputs={"models/rl": "71"}, summary={"sampled_tokens": 2e6})  # fmt: skip
    upload("evaluate", 90.0, pipeline="q", changed=changed, inputs={"models/rl": "71"}, summary=PASS)
    client = connect()
    assert client.get_run(trained).info.run_name == "rl lr=0.002 steps=8"
    note = client.get_run(trained).data.tags["mlflow.note.content"]
    assert note.startswith("rl: accuracy on dev problems 0.7 to 0.75\n\n[The whole run](#/experiments/")
    newest, oldest = list_runs(client)
    assert client.get_run(newest.run).data.tags["interval"] == "0.850 to 0.950", "for the columns of the view Results"
    assert (newest.name, oldest.name) == ("pipeline lr=0.002 steps=8", "pipeline c0ffee9")
    expected = {name: value for name, value in PASS.items() if "8" not in name}
    assert newest.figures == expected | {"dev/best": 0.8, "sampled_tokens": 2e6, "minutes": 1.5}
    assert newest.health == "yellow", "the worst of its stages'"
    cells = newest.cells()
    assert (cells["rl"], cells["sft"], cells["best dev"]) == ("0.900\n0.850 to 0.950", "0.400", "0.800")
    assert (cells["sampled"], cells["min"]) == ("2.00 M", "1.5") and oldest.cells()["rl"] == ""
    parent = client.get_run(newest.run)
    assert parent.data.params["changed"] == "lr=0.002, steps=8" and parent.data.params["rl.optimizer.lr"] == "0.002"
    assert parent.data.params["data"] == "chain" and len(parent.data.params) < 16, "defaults do not bury what changed"
    assert {file.path for file in client.list_artifacts(newest.run)} == {"params.yaml"}, "all are in a file"
    assert "- rl: pass@1 **0.900**, 0.850 to 0.950" in parent.data.tags["mlflow.note.content"]


def test_a_name_says_what_is_different() -> None:
    base = {"type": "pretrained", "path": "/models/Qwen2.5-0.5B"}
    changed = {"model.base": base, "rl.optimizer.lr": 1e-5, "sft.optimizer.lr": 2e-5, "rl.steps": 8, "run.seed": 3}
    assert run_name("rl", "gsm8k", changed) == "rl gsm8k model.base=Qwen2.5-0.5B lr=1e-05 steps=8 and 1 more seed 3"
    assert change_words({"curate.deduplicate": {"exact": True}}) == ['curate.deduplicate={"exact": true}']
    assert run_name("pipeline") == "pipeline"


def test_what_changed_is_told_from_the_commit_and_the_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.email=a@b.c", "-c", "user.name=a", *words], cwd=tmp_path, check=True)

    subprocess.run(["cp", "-r", str(ROOT / "params"), str(tmp_path)], check=True)
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "all")
    monkeypatch.chdir(tmp_path)

    def changed(*overrides: str, preset: str = "") -> dict[str, Any]:
        sections = load_params(preset=preset or None, overrides=overrides).model_dump(mode="json", by_alias=True)
        return changed_since_commit({name: sections[name] for name in ("rl", "run")}, preset)

    assert changed() == {}
    assert changed("rl.optimizer.lr=3e-4", preset="gsm8k") == {"rl.optimizer.lr": 3e-4}, (
        "what the preset says is in its name"
    )
    (tmp_path / "params" / "rl.yaml").write_text("optimizer: {lr: 0.02}\n")
    assert changed("run.seed=4") == {"run.seed": 4, "rl.optimizer.lr": 0.02}


def test_an_experiment_has_its_views_and_keeps_a_persons(upload: Callable[..., str]) -> None:
    client = connect()
    place = experiment(client)
    assert client.get_experiment(place).tags["mlflow.note.content"].startswith("Runs of the pipeline")
    client.set_experiment_tag(place, "mlflow.sharedViewState.mine", "mine")
    keep_views(client, client.get_experiment(place))
    tags = client.get_experiment(place).tags
    assert views("").items() <= tags.items() and tags["mlflow.sharedViewState.mine"] == "mine"
    assert all(len(text) < 5000 for text in views("").values()), "MLflow takes no longer ones"
