"""sft.steps 0 hands the base model on: no rank is started, no model is loaded, no optimizer is looked at."""

import json
from pathlib import Path

import pytest

from mathrl.core.files import write_jsonl
from mathrl.core.records import RunRecord
from mathrl.models import load
from mathrl.params import load_params
from mathrl.stages import sft, stage_run
from mathrl.stages.stage_run import StageRun

PARAMS = Path(__file__).parents[2] / "params"


@pytest.mark.parametrize("overrides", [[], ["training.backend=deepspeed"]])
def test_without_steps_the_base_model_is_handed_on(
    overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stage_run, "run_ranks", None)
    monkeypatch.setattr(load, "load_model", None)
    params = load_params(PARAMS, overrides=["sft.steps=0", "run.processes=8", *overrides])
    assert params.sft.optimizer.type == "muon", "which DeepSpeed has not"
    run = StageRun("sft", params, tmp_path / "state", RunRecord(tmp_path / "record"))
    run.artifacts.mkdir(parents=True)
    write_jsonl(sft.PROBLEMS, [])
    run.state.mkdir()
    stage_run._work(stage_run._Stage("sft", sft.work, (), (), (), "", lambda params: None), run)
    base, model = (
        {file.name: file.read_bytes() for file in folder.iterdir()}
        for folder in (tmp_path / sft.BASE, tmp_path / sft.MODEL)
    )
    assert model == base and "model.safetensors" in model
    assert {file.name for file in sft.REPORT.iterdir()} == {"metrics.jsonl", "health.json", "curve.png"}
    assert (sft.REPORT / "metrics.jsonl").read_text() == ""
    assert json.loads((sft.REPORT / "health.json").read_text())["colour"] == "green"
