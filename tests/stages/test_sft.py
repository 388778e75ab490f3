"""sft.steps 0 hands the base model on: no rank is started, no model is loaded, no optimizer is looked at.

Dev problems without a solution, a share of RL's rows, have no part in the loss on dev.
"""

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


@pytest.mark.parametrize("solved", [2, 0])
def test_dev_problems_without_a_solution_are_left_out_and_counted(
    solved: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    overrides = ["sft.steps=1", "sft.tokens_per_step=64", "sft.terse_share=0.5", "run.processes=1", "run.device=cpu"]
    run = StageRun("sft", load_params(PARAMS, overrides=overrides), tmp_path / "state", RunRecord(tmp_path / "record"))
    run.artifacts.mkdir(parents=True)
    problems = list(generate("chain", {"sft": 9, "dev": 4}, {}, seed=0))
    dev = [problem for problem in problems if problem.split == "dev"]
    write_problems(sft.PROBLEMS, [problem for problem in problems if problem.split == "sft"])
    write_problems(sft.DEV, [*dev[:solved], *(problem.with_(solution=None) for problem in dev[solved:])])
    sft.work(run)
    assert f"sft: {4 - solved} of 4 dev problems have no worked solution" in capsys.readouterr().err
    assert set(run.record.summary) == {"loss", "tokens", *(["dev/loss"] if solved else [])}
    card = (sft.MODEL / "README.md").read_text()
    assert ("loss on dev demonstrations" in card) == bool(solved) != ("no demonstrations on dev" in card)
