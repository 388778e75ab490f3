"""What another training engine cannot do is refused by name, all at once, and no parameter is missing in its table."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.params.engines import engine_problem, value_of
from mathrl.params.ignored import ignored_settings
from mathrl.params.meaning import Meaning, yaml_value
from mathrl.params.schema import READS, Params
from mathrl.params.section import Section
from mathrl.params.trl_meanings import TRL_RL, TRL_SFT
from mathrl.params.verl import Verl
from mathrl.params.verl_meanings import VERL_RL
from tests.test_house import load_tool

ROOT = Path(__file__).parents[2]
PARAMS = ROOT / "params"
TRL = ["rl.engine=trl", "rl.ema=null", "rl.optimizer.type=adamw", "rl.lr=5e-4", "rl.std_eps=1e-4"]
VERL = ["rl.engine=verl", "rl.ema=null", "rl.optimizer.type=adamw", "rl.lr=5e-4", "rl.optimizer.schedule=constant"]
# Sections as a whole, which one entry of the table stands for, or which have no meaning of their own.
WHOLE = {
    "rl.engine",
    "sft.engine",
    "sft.lora",
    "rl.curriculum.pools",
    "rl.lora",
    "rl.critic",
    "rl.kl_controller",
    "rl.importance",
}


def settings(section: Section, path: str) -> Iterator[str]:
    for name in type(section).model_fields:
        value, setting = getattr(section, name), f"{path}.{name}"
        if isinstance(value, Section) and setting not in WHOLE:
            yield from settings(value, setting)
        else:
            yield setting


@pytest.mark.parametrize(("stage", "table"), [("sft", TRL_SFT), ("rl", TRL_RL), ("rl", VERL_RL)])
def test_the_table_has_every_parameter_of_the_section(stage: str, table: tuple[Meaning, ...]) -> None:
    params = load_params(PARAMS)
    named = [meaning.setting for meaning in table]
    assert len(named) == len(set(named))
    verls = {f"rl.verl.{name}" for name in Verl.model_fields} - {*named}  # only verl has them
    assert {*settings(getattr(params, stage), stage)} - {*named} - verls == {f"{stage}.engine"}
    assert {name.split(".")[0] for name in named} <= {*READS[stage]}
    for name in named:
        value_of(params, name)  # such a parameter exists


def test_what_trl_cannot_do_is_named_all_at_once_with_what_to_write_instead() -> None:
    with pytest.raises(UserError) as raised:
        load_params(PARAMS, overrides=["rl.engine=trl", "rl.dynamic_sampling=4", "training.backend=deepspeed"])
    message = str(raised.value)
    instead = ("rl.optimizer.type=adamw", "rl.std_eps=0.0001", "rl.ema=null", "rl.dynamic_sampling=0",
               "training.backend=torch", "or rl.engine=mathrl")  # fmt: skip
    assert all(words in message for words in instead) and "params/rl.yaml + rl.engine=trl" in message
    assert "rl.asynchronous" not in message


def test_what_it_says_to_write_is_taken() -> None:
    assert engine_problem(load_params(PARAMS, overrides=TRL), "rl") == ""
    assert engine_problem(load_params(PARAMS), "rl") == ""


@pytest.mark.parametrize(
    ("override", "others", "instead"),
    [
        ("rl.advantage=leave_one_out", [], "rl.advantage=group_std"),
        ("rl.advantage=process", [], "rl.advantage=group_std"),
        ("rl.advantage=gae", ["rl.critic={}"], "rl.critic=null"),
        ("rl.policy_loss=reinforce", [], "rl.policy_loss=clip"),
        ("rl.policy_loss=cispo", [], "rl.clip_low=1"),
        ("rl.policy_loss=gspo", [], "rl.aggregation=sequence_mean"),
        ("rl.policy_loss=geo_mean", [], "rl.policy_loss=clip"),
        ("rl.policy_loss=sapo", [], "rl.aggregation=sequence_mean"),
        ("rl.advantage=pass_at_k", [], "rl.advantage=group_std"),
        ("rl.log_ratio_penalty=0.001", [], "rl.log_ratio_penalty=0"),
        ("rl.whiten=true", [], "rl.whiten=false"),
        ("rl.std_ddof=0", [], "rl.std_ddof=1"),
        ("rl.kl_probe=2", [], "rl.kl_probe=0"),
        ("rl.kl_estimator=k2", ["rl.kl_coef=0.1"], "rl.kl_estimator=k3"),
        ("rl.kl_controller={}", ["rl.kl_coef=0.1"], "rl.kl_controller=null"),
        ("rl.importance={}", [], "rl.importance=null"),
        ("rl.drop_ratio=5", [], "rl.drop_ratio=null"),
        ("rl.asynchronous={}", [], "rl.asynchronous=null"),
        ("rl.curriculum.order=pass_rate", [], "rl.curriculum.order=shuffled"),
        ("rl.ema=0.9", [], "rl.ema=null"),
        ("rl.export=best", [], "rl.export=last"),
        ("rl.optimizer.type=muon", [], "rl.optimizer.type=adamw"),
        ("reward.judge.continuations=2", [], "reward.judge.continuations=0"),
        ("rollout.engine=vllm", [], "rollout.engine=torch"),
        ("rollout.tool.kind=bubblewrap", [], "rollout.tool.kind=none"),
        ("training.on_out_of_memory=halve", [], "training.on_out_of_memory=stop"),
    ],
)
def test_each_setting_beyond_trl_is_refused(override: str, others: list[str], instead: str) -> None:
    with pytest.raises(UserError) as raised:
        load_params(PARAMS, overrides=[*TRL, *others, override])
    assert instead in str(raised.value)
    load_params(PARAMS, overrides=[*others, override])  # mathrl's own loop can do it


def test_what_verl_cannot_do_is_named_all_at_once_with_what_to_write_instead() -> None:
    with pytest.raises(UserError) as raised:
        load_params(PARAMS, overrides=["rl.engine=verl", "run.device=cpu", "rollout.engine=torch"])
    message = str(raised.value)
    instead = ("rl.optimizer.type=adamw", "rl.optimizer.schedule=constant", "rl.ema=null", "run.device=auto",
               "rollout.engine=vllm", "or rl.engine=mathrl")  # fmt: skip
    assert all(words in message for words in instead) and "params/rl.yaml + rl.engine=verl: engine verl" in message
    assert engine_problem(load_params(PARAMS, overrides=VERL), "rl") == ""


@pytest.mark.parametrize(
    ("override", "others", "instead"),
    [
        ("rl.advantage=max_rl", [], "rl.advantage=group_std"),
        ("rl.std_eps=1e-4", [], "rl.std_eps=1e-06"),
        ("rl.lora={}", [], "rl.lora=null"),
        ("rl.advantage=gae", ["rl.critic={}"], "rl.critic=null"),
        ("rl.policy_loss=sapo", [], "rl.aggregation=sequence_mean"),
        ("rl.policy_loss=gspo", ["rl.dual_clip=3"], "rl.dual_clip=null"),
        ("rl.policy_loss=dppo_tv", [], "rl.dual_clip=20"),
        ("rl.truncated=mask", [], "rl.truncated=keep"),
        ("rl.verl.nodes=2", [], "rl.verl.ray_address=auto"),
        ("rl.dynamic_sampling=4", [], "rl.dynamic_sampling=0"),
        ("rl.kl_controller={}", ["rl.kl_coef=0.1"], "rl.kl_controller=null"),
        ("rl.optimizer.schedule=linear", [], "rl.optimizer.schedule=constant"),
        ("rl.keep_rollouts.which=all", [], "rl.keep_rollouts.which=none"),
        ("reward.parts=[{type: majority}]", [], "reward.parts without type majority"),
        ("training.backend=deepspeed", [], "training.backend=torch"),
        ("rollout.tool.kind=bubblewrap", [], "rollout.tool.kind=none"),
    ],
)
def test_each_setting_beyond_verl_is_refused(override: str, others: list[str], instead: str) -> None:
    with pytest.raises(UserError) as raised:
        load_params(PARAMS, overrides=[*VERL, *others, override])
    assert instead in str(raised.value)
    load_params(PARAMS, overrides=[*others, override])  # mathrl's own loop can do it


@pytest.mark.parametrize("override", ["actor.lr", "=1", "a b=1"])
def test_an_override_of_verl_is_a_key_and_a_value(override: str) -> None:
    with pytest.raises(UserError, match=r"verl.overrides"):
        load_params(PARAMS, overrides=[*VERL, f"rl.verl.overrides=['{override}']"])


def test_settings_of_verl_have_no_effect_on_another_engine() -> None:
    (line,) = [line for line in ignored_settings(load_params(PARAMS, overrides=["rl.verl.nodes=2"])) if "verl" in line]
    assert line == "rl.verl.nodes has no effect: rl.engine is mathrl"


def test_sft_by_trl_is_refused_what_it_cannot_do() -> None:
    trl = ["sft.engine=trl", "sft.optimizer.type=adamw", "sft.lr=0.003"]
    assert engine_problem(load_params(PARAMS, overrides=trl), "sft") == ""
    with pytest.raises(UserError) as raised:
        load_params(PARAMS, overrides=["sft.engine=trl", "training.backend=deepspeed"])
    message = str(raised.value)
    assert "params/sft.yaml + sft.engine=trl: engine trl cannot do what is set; set sft.optimizer.type=adamw" in message
    assert "training.backend=torch (" in message and "or sft.engine=mathrl" in message and "rl.engine" not in message
    load_params(PARAMS, overrides=["sft.engine=trl", "sft.steps=0"])  # nothing is trained


def test_settings_without_effect_are_not_refused() -> None:
    load_params(PARAMS, overrides=[*TRL, "rl.advantage=group_mean", "rl.std_eps=1e-6", "rl.kl_estimator=k1"])


def test_the_page_has_the_tables_of_the_code() -> None:
    page = (ROOT / "docs/engines.md").read_text(encoding="utf-8")
    assert load_tool("engine_tables").up_to_date(page) == page, "run: python tools/engine_tables.py"
    assert "| `rl.ema` | refused | `null`: it keeps no moving average of the weights |" in page


def test_values_are_written_as_overrides_have_them() -> None:
    assert [yaml_value(value) for value in (None, False, 1e-4, 0, "torch")] == ["null", "false", "0.0001", "0", "torch"]
    assert isinstance(load_params(PARAMS), Params)
