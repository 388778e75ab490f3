"""`mathrl plan --fit` on a project of one's own; `mathrl runs health FOLDER` on metrics alone."""

import json
from pathlib import Path

import pytest

import mathrl
from mathrl.cli.fit import fit_params, named_hardware, this_machine
from mathrl.cli.plan import plan
from mathrl.cli.runs import health
from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.core.files import write_json
from mathrl.models.base import make_base
from mathrl.params.run import FreshModel, Model

CURATE = """\
sources:
  - {type: file, name: own, path: %s, split: rl, solution_key: solution}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = [{"question": f"{n} + {n} = ?", "answer": str(2 * n), "solution": "1" * 300} for n in range(200)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    make_base(Model(base=FreshModel(), precision="float32"), tmp_path / "model", 0)
    folder = tmp_path / "params"
    folder.mkdir()
    (folder / "curate.yaml").write_text(CURATE % (tmp_path / "own.jsonl"))
    (folder / "mix.yaml").write_text("components: [{source: own, weight: 1.0}]\n")
    (folder / "model.yaml").write_text(f"base: {{type: pretrained, path: {tmp_path / 'model'}}}\n")
    (folder / "sft.yaml").write_text("steps: 0\n")
    (folder / "rl.yaml").write_text("# by hand\nema: null\noptimizer: {type: adamw, lr: 3.0e-6}  # of the paper\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mathrl.cli.fit.main_checkout", lambda: tmp_path)
    monkeypatch.setattr("mathrl.cli.fit._known_splits", lambda *_: None)
    return tmp_path


def test_what_follows_is_measured_shown_written_and_then_kept(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fit_params(None, ["hardware=1x24GB"]) == []
    shown = capsys.readouterr().out
    assert "for 1 GPU of 24 GB; 200 problems: prompts of up to" in shown and "solutions of up to 300 (95 %)" in shown
    assert "95 % of the solutions have at most 300 tokens" in shown and "rl.max_tokens" in shown
    assert "written:" in shown
    params = load_params()
    assert params.rl.max_tokens == params.evaluate.max_tokens == 480 and params.rollout.vllm.sleep
    assert params.rl.optimizer.lr == 3e-6, "what somebody wrote is left alone"
    text = (project / "params" / "rl.yaml").read_text()
    assert "# by hand" in text and "# of the paper" in text and "steps" not in text
    assert fit_params(None, ["hardware=1x24GB"]) == []
    assert "nothing to write" in capsys.readouterr().out and load_params() == params


def test_what_the_command_line_chose_and_set_is_written_with_what_follows_from_it(project: Path) -> None:
    fit_params(None, ["rl.max_tokens=700", "rl.lora={}", "hardware=2x80GB", "method=ppo"])
    params = load_params()
    assert params.evaluate.max_tokens == params.rl.max_tokens == 700 and params.run.processes == 2
    assert params.rl.lora is not None and params.rl.advantage.type == "gae", "rates follow from adapters and the critic"
    assert (project / "params" / "experiment.yaml").read_text().split() == "method: ppo hardware: 2x80GB".split()


def test_hardware_is_what_was_named_or_this_machine(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mathrl.cli.fit.gpu_count", lambda: 0)
    assert named_hardware(None, [], None, 24e9, fit=True) == ["hardware=1x24GB"]
    assert named_hardware(None, [], 8, 80e9, fit=False) == ["hardware=8x80GB"]
    assert named_hardware(None, ["hardware=4x24GB"], None, 80e9, fit=True) == ["hardware=4x80GB"]
    assert named_hardware(None, ["run.processes=3"], None, 80e9, fit=False) == ["hardware=3x80GB"]
    assert named_hardware(None, [], 2, None, fit=False) == []
    with pytest.raises(UserError, match="memory of a GPU too"):
        named_hardware(None, [], 2, None, fit=True)
    here = this_machine()
    assert here.kind == "cpu" and here.count >= 1 and here.memory > 1e9


def test_random_weights_need_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "params" / "model.yaml").write_text("base: {type: fresh}\n")
    assert fit_params(None, ["hardware=1x24GB"]) == []
    assert "nothing to derive" in capsys.readouterr().out and plan.registered_callback is not None


def folder_with(tmp_path: Path, rows: list[dict[str, float]]) -> str:
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(tmp_path)


def flat_run(*names: str) -> list[dict[str, float]]:
    """80 steps of RL that learns nothing while entropy falls and responses grow."""
    rows = [
        {
            "step": step,
            "reward/accuracy": 0.3,
            "entropy": 0.49 * 0.92**step,
            "response_length": 210.0 + 10 * step,
            "kl": 0.001 * step,
        }
        for step in range(1, 81)
    ]
    return [{name: value for name, value in row.items() if name == "step" or name in names} for row in rows]


ALL = ("reward/accuracy", "entropy", "response_length", "kl")


def test_rows_with_a_reward_are_judged_as_rl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    health(folder_with(tmp_path, flat_run(*ALL)))
    printed = capsys.readouterr().out
    assert ": yellow after 80 steps; " in printed and " rules had their metrics" in printed
    assert all(f"yellow, {rule}, from step" in printed for rule in ("length", "flat", "entropy"))


@pytest.mark.parametrize("rows", [[], [{"step": 1, "actor/kl_loss": 0.1, "critic/rewards/mean": 0.3}]])
def test_metrics_of_other_names_are_not_green(tmp_path: Path, rows: list[dict[str, float]]) -> None:
    with pytest.raises(UserError, match="nothing could be judged"):
        health(folder_with(tmp_path, rows))
    assert mathrl.health_report(tmp_path)["colour"] == "unknown"


def test_a_record_whose_last_row_was_cut_is_judged_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a full disk or a kill leaves it."""
    folder = Path(folder_with(tmp_path, flat_run("reward/accuracy")))
    write_json(folder / "run.json", {"stage": "rl", "key": "k", "status": "failed"})
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 99, "rew')
    health(str(folder), as_json=True)
    assert json.loads(capsys.readouterr().out)["steps"] == len(flat_run("reward/accuracy"))
