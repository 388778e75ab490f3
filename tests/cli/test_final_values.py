"""Where a person meets the judgement of rates and lengths: dry runs, the flow, the stage."""

import json
import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from mathrl.cli.recipe import print_steps
from mathrl.cli.run import run
from mathrl.core.errors import UserError
from mathrl.core.paths import WORKTREE_NOTE
from mathrl.params import Params
from mathrl.params.load import dump_yaml, load_params, read_yaml
from mathrl.stages.stage_run import run_stage
from tasks.reproduction import FreshClone
from tasks.workspace import prepare, prepare_recipe

ROOT = Path(__file__).parents[2]
QWEN = ["model.base.type=pretrained", "model.base.path=Qwen/Qwen2.5-0.5B"]
RATES = [*QWEN, "sft.steps=0", "rl.lr=0.003", "rl.optimizer.type=adamw"]
LENGTHS = ["prompt.max_tokens=512", "difficulty.max_tokens=512", "rl.max_tokens=512"]


@pytest.fixture(autouse=True)
def at_the_top(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_a_dry_run_warns_once_of_a_typed_rate_and_names_what_a_preset_replaces(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run("rl", presets=["dapo", "gsm8k"], overrides=[*QWEN, "rl.lr=0.02"], dry_run=True)
    warned = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
    assert len([line for line in warned if "rl.lr is 0.02, 20,000 times AdamW's usual rate" in line]) == 1
    assert any("presets: gsm8k replaces values of dapo: curate.sources" in line for line in warned)
    run("rl", presets=["gsm8k"], overrides=[*QWEN, "rl.lr=2e-6"], dry_run=True)
    assert "usual rate" not in capsys.readouterr().out


def test_a_recipes_dry_run_has_the_presets_values(capsys: pytest.CaptureFixture[str]) -> None:
    print_steps("sft-rl", "gsm8k", QWEN)
    printed = capsys.readouterr().out
    assert "over params/ with preset gsm8k" in printed
    assert "  with sft.lr 1e-05 (adamw)" in printed and "  with rl.lr 1e-06 (adamw), rl.max_tokens 400" in printed
    print_steps("rft", "qwen2.5-0.5b-gsm8k", ["sft.lr=0.01"])
    assert "warning: rft: sft.lr is 0.01, 1,000 times AdamW's" in capsys.readouterr().out


def test_the_command_in_the_header_of_rl_from_base_works(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "params" / "recipes" / "rl-from-base.yaml").read_text("utf-8")
    (command,) = [line.removeprefix("#").split() for line in text.splitlines() if "mathrl recipe rl-from-base" in line]
    settings = [word for before, word in pairwise(command) if before == "--set"]
    print_steps(command[2], command[command.index("--preset") + 1], settings)
    assert "  with rl.lr 1e-06 (adamw), rl.max_tokens 1024" in capsys.readouterr().out


def test_the_flow_refuses_before_it_makes_a_worktree() -> None:
    with pytest.raises(UserError, match=r"rl\.lr is 0\.01, 1,000 times Muon's"):
        prepare("rl", None, QWEN)
    with pytest.raises(UserError, match=r"steps\.rl: rl\.max_tokens is 64, too short"):
        prepare_recipe("sft-rl", None, QWEN)


def stage(folder: Path, capsys: pytest.CaptureFixture[str], step: str = "", overrides: Sequence[str] = ()) -> str:
    """What stage rl says in the folder: that it would start, or why not."""

    def start(params: Params) -> None:
        raise UserError("it starts")

    with pytest.raises(SystemExit) as ended:
        run_stage("rl", print, inputs=[], outputs=[], step=step, overrides=overrides, before=start)
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_the_stage_takes_what_was_typed_for_its_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "params", tmp_path / "params")
    monkeypatch.chdir(tmp_path)
    settings = [*RATES, *LENGTHS]
    assert "rl.lr is 0.003, 3,000 times" in stage(tmp_path, capsys, overrides=settings)
    (tmp_path / WORKTREE_NOTE).write_text(json.dumps({"overrides": ["preset gsm8k", "rl.lr=0.003"]}))
    assert "it starts" in stage(tmp_path, capsys, overrides=settings)
    assert "rl.max_tokens is 8" in stage(tmp_path, capsys, overrides=[*settings, "rl.max_tokens=8"])
    # The overrides of a step's command are the recipe's too: what was typed stands in the recipe's file.
    assert "rl.lr is 0.003" in stage(tmp_path, capsys, "deepseek-r1/rl_1", settings)
    file = tmp_path / "params" / "recipes" / "deepseek-r1.yaml"
    file.write_text(dump_yaml(read_yaml(file) | {"overrides": ["rl.lr=0.003"]}))
    assert "it starts" in stage(tmp_path, capsys, "deepseek-r1/rl_1", settings)


def test_a_reproduction_takes_the_rate_that_somebody_typed_for_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "params", tmp_path / "params")
    typed = load_params(ROOT / "params", overrides=[*RATES, *LENGTHS]).model_dump(mode="json", by_alias=True)
    FreshClone(ROOT, "HEAD", tmp_path).write_sections({name: typed[name] for name in ("model", "prompt", "rl")})
    monkeypatch.chdir(tmp_path)
    assert "it starts" in stage(tmp_path, capsys)
    (tmp_path / WORKTREE_NOTE).unlink()
    assert "rl.lr is 0.003, 3,000 times" in stage(tmp_path, capsys)
