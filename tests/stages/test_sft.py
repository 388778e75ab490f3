"""sft.steps 0 hands the base model on: no rank is started, no model is loaded, no optimizer is looked at."""

import json
from pathlib import Path

import pytest

from mathrl.compose import load_params
from mathrl.core.records import RunRecord
from mathrl.core.types import Problem, write_problems
from mathrl.generators import generate
from mathrl.models import load
from mathrl.stages import sft, stage_run
from mathrl.stages.stage_run import StageRun

PARAMS = Path(__file__).parents[2] / "params"


def hand_on(overrides: list[str], problems: list[Problem], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stage without steps, in the folder `tmp_path`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stage_run, "run_ranks", None)
    monkeypatch.setattr(load, "load_model", None)
    params = load_params(PARAMS, overrides=["sft.steps=0", "run.processes=8", *overrides])
    assert params.sft.optimizer.type == "muon", "which DeepSpeed has not"
    run = StageRun("sft", params, tmp_path / "state", RunRecord(tmp_path / "record"))
    run.artifacts.mkdir(parents=True)
    write_problems(sft.PROBLEMS, problems)
    run.state.mkdir()
    stage_run._work(stage_run._Stage("sft", sft.work, (), (), (), "", lambda params: None), run)


@pytest.mark.parametrize("overrides", [[], ["training.backend=deepspeed"]])
def test_without_steps_the_base_model_is_handed_on(
    overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hand_on(overrides, [], tmp_path, monkeypatch)
    assert capsys.readouterr().out.startswith("SFT is off (sft.steps=0): the base model is handed on\n")
    base, model = (
        {file.name: file.read_bytes() for file in folder.iterdir()}
        for folder in (tmp_path / sft.BASE, tmp_path / sft.MODEL)
    )
    assert model == base and "model.safetensors" in model
    assert {file.name for file in sft.REPORT.iterdir()} == {"metrics.jsonl", "health.json", "curve.png"}
    assert (sft.REPORT / "metrics.jsonl").read_text() == ""
    assert json.loads((sft.REPORT / "health.json").read_text())["colour"] == "green"


def test_the_base_model_has_a_tokenizer_trained_on_the_sft_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = list(generate("story", {"sft": 60}, {}, seed=0))
    hand_on(["model.base.tokenizer={type: bpe, vocabulary: 400}"], problems, tmp_path, monkeypatch)
    tokenizer = load.load_tokenizer(sft.MODEL)
    assert len(tokenizer) == 400 and len(tokenizer.encode(" How many")) == 2
    assert "400 tokens, trained on 60 problems" in (tmp_path / sft.BASE / "README.md").read_text()
