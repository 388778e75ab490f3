"""Settings without effect are reported, defaults and shipped files are not."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mathrl.compose import load_params
from mathrl.compose.load import preset_names
from mathrl.params.ignored import warnings
from mathrl.recipes.recipe import load_recipe, recipe_names, recipe_warnings

ROOT = Path(__file__).parents[2]
PARAMS = ROOT / "params"


@pytest.mark.parametrize("preset", [None, *preset_names(PARAMS)])
def test_the_shipped_parameters_have_no_idle_settings(preset: str | None) -> None:
    assert warnings(load_params(PARAMS, preset=preset)) == []


def test_the_shipped_recipes_have_no_idle_settings() -> None:
    assert [line for name in recipe_names(PARAMS) for line in recipe_warnings(load_recipe(name, PARAMS), PARAMS)] == []


@pytest.mark.parametrize(
    ("idle", "others", "used"),
    [
        ("model.base.alphabet=arithmetic", ["model.base.tokenizer={type: bpe}"], ["model.base.tokenizer=null"]),
        ("rl.gamma=0.9", [], ["rl.advantage=none"]),
        ("rl.gae_lambda=0.9", [], ["rl.advantage=gae", "rl.critic={}"]),
        ("rl.std_ddof=0", ["rl.advantage=group_mean"], ["rl.advantage=group_std"]),
        ("rl.std_eps=0.1", ["rl.advantage=leave_one_out"], ["rl.advantage=process"]),
        ("rl.step_returns=mean", [], ["rl.advantage=process"]),
        ("rl.k=2", [], ["rl.advantage=pass_at_k"]),
        ("rl.part_weights={accuracy: 2}", [], ["rl.advantage=part_std"]),
        ("rl.sapo_temperatures=[1, 2]", [], ["rl.policy_loss=sapo"]),
        ("rl.std_ddof=0", ["rl.advantage=pass_at_k"], ["rl.advantage=part_std"]),
        ("rl.clip_low=0.1", ["rl.policy_loss=sapo"], ["rl.policy_loss=dppo_tv"]),
        ("rl.clip_low=0.1", ["rl.policy_loss=reinforce"], ["rl.policy_loss=gspo"]),
        ("rl.clip_high=0.1", ["rl.policy_loss=reinforce"], ["rl.policy_loss=cispo"]),
        ("rl.kl_estimator=k2", [], ["rl.kl_coef=0.1"]),
        ("rl.kl_probe=2", ["rl.kl_coef=0.1"], []),
        ("rl.curriculum.floor=0.1", [], ["rl.curriculum.order=pass_rate"]),
        ("rl.importance.low=0.1", ["rl.importance.kind=truncated"], ["rl.importance.kind=masked"]),
        ("rl.prompts_per_round=96", [], ["rl.dynamic_sampling=4"]),
        ("rl.export=best", ["rl.eval_every=0"], []),
        ("rl.optimizer.adamw_scale=0.5", ["rl.optimizer.type=adamw", "rl.lr=1e-4"], []),
        ("dpo.optimizer.adamw_scale=0.5", [], ["dpo.optimizer.type=muon"]),
        ("rl.lora={}", [], ["rl.optimizer.type=adamw", "rl.lr=1e-4"]),
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
    (line,) = warnings(load_params(PARAMS, overrides=[idle, *others]))
    assert (key in line or key == "rl.lora") and " no effect: " in line
    assert warnings(load_params(PARAMS, overrides=[idle, *used])) == []


def test_settings_with_one_reason_share_a_line() -> None:
    overrides = ["rl.policy_loss=reinforce", "rl.clip_low=0.1", "rl.clip_high=0.1"]
    (line,) = warnings(load_params(PARAMS, overrides=overrides))
    assert line == "rl.clip_low, rl.clip_high have no effect: rl.policy_loss reinforce has no ratio to clip"


def test_adamw_at_the_rate_of_muon_is_questioned() -> None:
    (line,) = warnings(load_params(PARAMS, overrides=["rl.optimizer.type=adamw"]))
    assert "rl.lr is 0.01, the default for Muon" in line and "0.0005" in line


def test_a_dry_run_prints_them(tmp_path: Path) -> None:
    shutil.copytree(PARAMS, tmp_path / "params")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    program = "from mathrl.cli import main; main()"
    command = [sys.executable, "-c", program, "run", "rl", "--dry-run", "--set", "rl.gamma=0.9"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MATHRL_")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert "warning: rl.gamma has no effect: rl.advantage group_std uses no discount" in done.stdout
