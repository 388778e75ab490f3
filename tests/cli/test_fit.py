"""`mathrl plan --fit` on a project of one's own: data and tokenizer are measured, values shown, written and kept."""

import json
from pathlib import Path

import pytest

from mathrl.cli.fit import fit_params, named_hardware, this_machine
from mathrl.cli.plan import plan
from mathrl.compose import load_params
from mathrl.core.errors import UserError
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
