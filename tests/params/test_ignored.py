"""Settings without effect are reported, defaults and shipped files are not."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mathrl.cli.main import app
from mathrl.compose import load_params
from mathrl.compose.experiment import preset_names
from mathrl.core.errors import UserError
from mathrl.planning.final_values import ignored_settings
from mathrl.recipes.recipe import load_recipe, recipe_names, recipe_warnings

ROOT = Path(__file__).parents[2]
PARAMS = ROOT / "params"


@pytest.mark.parametrize("preset", [None, *preset_names(PARAMS)])
def test_the_shipped_parameters_have_no_idle_settings(preset: str | None) -> None:
    assert ignored_settings(load_params(PARAMS, preset=preset)) == []


def test_the_shipped_recipes_have_no_idle_settings() -> None:
    assert [line for name in recipe_names(PARAMS) for line in recipe_warnings(load_recipe(name, PARAMS), PARAMS)] == []


@pytest.mark.parametrize(
    ("idle", "others", "used"),
    [
        ("model.base.alphabet=arithmetic", ["model.base.tokenizer={type: bpe}"], ["model.base.tokenizer=null"]),
        ("rl.dev.export=best", ["rl.dev.every=0"], []),
        ("rl.lora={}", [], ["rl.optimizer.type=adamw", "rl.optimizer.lr=1e-4"]),
        ("rollout.vllm.sleep=true", ["rollout.engine=torch"], ["rollout.engine=vllm"]),
        ("rollout.servers.bucket_mb=5", [], ["rollout.engine=vllm_server", "rollout.servers.urls=['http://a:1']"]),
        ("rollout.turns.max_calls=2", [], ["rollout.tool.kind=bubblewrap"]),
        ("prompt.tools=python", [], ["prompt.template=chat"]),
        ("training.deepspeed.stage=3", [], ["training.backend=deepspeed"]),
        ("training.fsdp.context_parallel=2", [], ["training.backend=fsdp"]),
        ("prompt.system=Hello", [], ["prompt.template=chat"]),
        ("evaluate.top_p=0.9", ["evaluate.temperature=0"], []),
        ("sample.labelled_per_problem=3", [], ["sample.continuations=4"]),
        ("reward.second_grader.model=m", [], ["reward.second_grader={type: llm, endpoint: 'http://a', model: m}"]),
    ],
)
def test_a_setting_without_effect_is_named_and_one_with_effect_is_not(
    idle: str, others: list[str], used: list[str]
) -> None:
    key = idle.partition("=")[0]
    (line,) = ignored_settings(load_params(PARAMS, overrides=[idle, *others]))
    assert (key in line or key == "rl.lora") and " no effect: " in line
    assert ignored_settings(load_params(PARAMS, overrides=[idle, *used])) == []


def test_settings_with_one_reason_share_a_line() -> None:
    overrides = ["evaluate.temperature=0", "rollout.engine=torch", "rollout.vllm.sleep=true", "rollout.vllm.eager=true"]
    (line,) = ignored_settings(load_params(PARAMS, overrides=overrides))
    assert line == "rollout.vllm.sleep, rollout.vllm.eager have no effect: rollout.engine is torch"


@pytest.mark.parametrize(
    ("override", "types"),
    [
        ("rl.advantage.gamma=0.9", "types reinforce, remax and gae have it"),
        ("rl.advantage.lam=0.9", "type gae has it"),
        ("rl.kl={type: probe, coef: 0.1}", "types loss and reward have it"),
        ("rl.kl={type: reward, estimator: k3}", "type loss has it"),
        ("rl.engine.nodes=2", "type verl has it"),
        ("rl.optimizer={type: adamw, adamw_scale: 0.5}", "type muon has it"),
    ],
)
def test_an_option_of_another_type_cannot_be_written(override: str, types: str) -> None:
    with pytest.raises(UserError, match=f"unknown parameter .only {types}"):
        load_params(PARAMS, overrides=[override])


def test_a_dry_run_prints_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(PARAMS, tmp_path / "params")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("MATHRL_")]:
        monkeypatch.delenv(name)
    words = ["run", "rl", "--dry-run", "--set", "rl.dev.every=0", "--set", "rl.dev.export=best"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert "warning: rl.dev.export has no effect: rl.dev.every is 0" in done.stdout
