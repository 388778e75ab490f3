"""Models by reference: what stages made and measured, with figures bound to model and data."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from mathrl.core.files import write_text
from mathrl.core.hashing import digest_path
from mathrl.core.records import RunRecord
from mathrl.registry.versions import register_version
from mathrl.tracking.client import connect, experiment, experiments, logged_model
from mathrl.tracking.lineage import way_back, way_forward
from mathrl.tracking.upload import Upload, question

DEV = "data/curated/dev.jsonl"
TEST = {"test": {"path": "data/curated/test.jsonl", "digest": "7e57"}}


@pytest.fixture
def record(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Upload the record of a stage; returns its run's id."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MATHRL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "home").mkdir()
    shutil.copy(empty_store, tmp_path / "home" / "mlflow.db")
    counted = iter(range(100))

    def upload(stage: str, inputs: Any, outputs: Any, summary: Any, **more: Any) -> str:
        facts = RunRecord(
            tmp_path / "records" / f"{stage}-{next(counted)}",
            stage=stage,
            started=1.0,
            ended=2.0,
            params={stage: {"optimizer": {"lr": 0.1}}},
            key="k",
            pipeline="p",
            git={"commit": "c0ffee"},
            inputs=inputs,
            outputs=outputs,
            summary=summary,
            **{"status": "finished", **more},
        )
        each = Upload(connect())
        run, parent = each.start(facts)
        each.finish(run, parent, facts, facts.status)
        each.reopen(run)
        each.finish(run, parent, facts, facts.status)  # as a mirror that is killed after it sent all does it again
        return run

    return upload


def bound(client: Any, digest: str) -> dict[tuple[str, str | None, str | None], float]:
    """{(metric, dataset, its digest): value} of a logged model."""
    model = client.get_logged_model(logged_model(client, digest).model_id)
    return {(each.key, each.dataset_name, each.dataset_digest): each.value for each in model.metrics or []}


def test_figures_are_bound_to_the_model_and_the_data_that_they_are_of(record: Any) -> None:
    sft = record("sft", {DEV: "dd"}, {"models/base": "b0", "models/sft": "5f", "reports/sft": "1"}, {"dev/loss": 0.7})
    rl = record("rl", {DEV: "dd", "models/sft": "5f"}, {"models/rl": "71"}, {"dev/accuracy": 0.9})
    measured = {"models": {"sft": "models/sft", "rl": "models/rl"}, "dataset": "test"}
    figures = {"sft/pass_at_1": 0.4, "rl/pass_at_1": 0.8, "sft_to_rl/difference": 0.4}
    evaluate = record(
        "evaluate",
        {"models/sft": "5f", "models/rl": "71"},
        {"reports/summary.json": "2"},
        figures,
        measured=measured,
        datasets=TEST,
    )

    client = connect()
    assert bound(client, "b0") == {}
    assert bound(client, "5f") == {("final/dev/loss", DEV, "dd"): 0.7, ("pass_at_1", "test", "7e57"): 0.4}
    assert bound(client, "71") == {("final/dev/accuracy", DEV, "dd"): 0.9, ("pass_at_1", "test", "7e57"): 0.8}
    models = client.search_logged_models(experiments(client))
    assert {model.name: (model.source_run_id, model.tags["mathrl.path"]) for model in models} == {
        "base": (sft, "models/base"),
        "sft": (sft, "models/sft"),
        "rl": (rl, "models/rl"),
    }
    assert {str(model.status) for model in models} == {"READY"}
    assert logged_model(client, "71").params == {"rl.optimizer.lr": "0.1"}
    run = client.get_run(evaluate)
    assert len(run.inputs.model_inputs) == 2 and run.data.metrics["pass_at_1"] == 0.8
    assert [len(client.get_run(each).outputs.model_outputs) for each in (sft, rl)] == [2, 1]


def test_the_same_bytes_are_one_model_and_a_failed_stage_made_none(record: Any) -> None:
    record("rl", {}, {"models/rl": "71"}, {"dev/accuracy": 0.9})
    again = record("rl", {}, {"models/rl": "71"}, {"dev/accuracy": 0.9})
    failed = record("rl", {}, {}, {"dev/accuracy": 0.1}, status="failed")
    client = connect()
    assert len(client.search_logged_models(experiments(client))) == 1
    (made,) = client.get_run(again).outputs.model_outputs
    assert made.model_id == logged_model(client, "71").model_id
    assert client.get_run(failed).data.metrics["final/dev/accuracy"] == 0.1


def test_a_registered_version_is_its_logged_model_which_alone_holds_files(record: Any, tmp_path: Path) -> None:
    write_text(tmp_path / "models/rl/weights", "of rl\n")
    digest = digest_path(tmp_path / "models/rl")
    record("rl", {}, {"models/rl": digest}, {})
    run = record("register", {"models/rl": digest}, {}, {})
    client = connect()
    assert not list((tmp_path / "home" / "artifacts").rglob("weights"))
    register_version(client, "m", run, Path("models/rl"), {"mathrl.digest": digest})
    (version,) = client.search_model_versions("name = 'm'")
    assert version.source == f"models:/{logged_model(client, digest).model_id}" and version.run_id == run
    from mlflow.artifacts import download_artifacts

    back = Path(download_artifacts("models:/m/1", dst_path=str(tmp_path / "back")))
    assert digest_path(back) == digest


def test_a_question_has_an_experiment_of_its_own_and_lineage_does_not_end_there(
    record: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    curated = {"data/curated/rl.jsonl": "aa"}
    record("curate", {"gsm8k/train.jsonl": "5ec0"}, curated, {})
    rl = record("rl", curated, {"models/rl": "71"}, {}, recipe="study")
    run = record("register", {"models/rl": "71"}, {}, {}, preset="gsm8k")
    client = connect()
    names = {each.name: each.experiment_id for each in client.search_experiments()}
    assert {"mathrl", "mathrl/study", "mathrl/preset gsm8k"} <= set(names)
    assert client.get_run(rl).info.experiment_id == names["mathrl/study"] == experiment(client, "study")
    client.create_experiment("mathrlike")
    assert len(experiments(client)) == 3, "nobody else's"
    monkeypatch.setattr("mathrl.tracking.client.PAGE", 1)
    assert len(experiments(client)) == 3, "from several answers"
    register_version(client, "m", run, Path("none"), {"mathrl.digest": "71"})
    assert [step.stage for step in way_back(client, "m").steps] == ["register", "rl", "curate"]
    steps, models = way_forward(client, "5ec0")
    assert [step.stage for step in steps] == ["curate", "rl", "register"] and models[0].made
    note = client.get_run(client.get_run(run).data.tags["mlflow.parentRunId"]).data.tags["mlflow.note.content"]
    assert f"#/experiments/{names['mathrl/study']}/runs/{rl}" in note
    assert question(RunRecord(Path("none"), sweep="demo-a1b2c3")) == "sweep demo"


def test_a_note_links_as_many_stages_as_mlflow_keeps(record: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mathrl.tracking.run_list.LINKED", 2)
    for n in range(4):
        run = record("rl", {}, {f"models/{n}": f"7{n}"}, {}, recipe="study", name=f"study/lr-{n}")
    client = connect()
    parent = client.get_run(client.get_run(run).data.tags["mlflow.parentRunId"]).data.tags
    assert sum(name.startswith("stage.") for name in parent) == 4
    note = parent["mlflow.note.content"]
    assert note.count("#/experiments/") == 2 and "and 2 more, in this run's tags `stage.*`" in note
