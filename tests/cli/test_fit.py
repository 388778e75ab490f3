"""`mathrl plan --fit` on a project of one's own: data and tokenizer are measured, values shown, written and kept."""

import json
from pathlib import Path

import pytest

from mathrl.cli.fit import fit_params, hardware_given
from mathrl.cli.plan import plan
from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.models.base import make_base
from mathrl.params.run import FreshModel, Model
from mathrl.params.schema import SECTIONS

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
    for section in SECTIONS:
        (folder / f"{section}.yaml").write_text("")
    (folder / "curate.yaml").write_text(CURATE % (tmp_path / "own.jsonl"))
    (folder / "mix.yaml").write_text("components: [{source: own, weight: 1.0}]\n")
    (folder / "model.yaml").write_text(f"base: {{type: pretrained, path: {tmp_path / 'model'}}}\n")
    (folder / "sft.yaml").write_text("steps: 0\n")
    (folder / "rl.yaml").write_text("# by hand\nema: null\noptimizer: {type: adamw, lr: 3.0e-6}  # of the paper\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mathrl.cli.known_lengths.main_checkout", lambda: tmp_path)
    monkeypatch.setattr("mathrl.cli.known_lengths._curated", lambda *_: {})
    return tmp_path


def test_what_follows_is_measured_shown_written_and_then_kept(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fit_params(None, [], 1, 24e9) == []
    shown = capsys.readouterr().out
    assert "for 1 GPU of 24 GB; 200 problems: prompts of up to" in shown and "solutions of up to 300 (95 %)" in shown
    assert "95 % of the solutions have at most 300 tokens" in shown and "rl.max_tokens" in shown
    assert "written:" in shown
    params = load_params()
    assert params.rl.max_tokens == params.evaluate.max_tokens == 480 and params.rollout.vllm.sleep
    assert params.rl.optimizer.lr == 3e-6, "what somebody wrote is left alone"
    text = (project / "params" / "rl.yaml").read_text()
    assert "# by hand" in text and "# of the paper" in text and "steps" not in text
    assert fit_params(None, [], 1, 24e9) == []
    assert "nothing to write" in capsys.readouterr().out and load_params() == params


def test_a_value_of_the_command_line_is_planned_with_and_not_written(project: Path) -> None:
    fit_params(None, ["rl.max_tokens=700"], 2, 80e9)
    assert "max_tokens" not in (project / "params" / "rl.yaml").read_text()
    params = load_params()
    assert params.evaluate.max_tokens == 700 and params.run.processes == 2


def test_hardware_is_what_was_named_or_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mathrl.cli.fit.gpu_count", lambda: 0)
    assert (hardware_given(None, 24e9).count, hardware_given(8, 80e9).memory) == (1, 80 * 10**9)
    here = hardware_given(None, None)
    assert here.kind == "cpu" and here.count >= 1 and here.memory > 1e9
    with pytest.raises(UserError, match="add the memory of one"):
        hardware_given(2, None)


def test_random_weights_need_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "params" / "model.yaml").write_text("")
    assert fit_params(None, [], 1, 24e9) == []
    assert "nothing to derive" in capsys.readouterr().out and plan.registered_callback is not None
