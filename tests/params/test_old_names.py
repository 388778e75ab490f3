"""The names of version 0.1 are understood wherever values come from, and mean what they meant."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mathrl.compose import load_params, write_params
from mathrl.compose.load import read_layers
from mathrl.core.errors import UserError
from mathrl.params import old_names
from mathrl.params.data import NearDuplicates
from mathrl.params.load import dump_yaml, read_yaml
from mathrl.params.messages import parameters
from mathrl.params.old_names import NAMES, STILL_THERE, TYPES, new_key
from mathrl.params.schema import Params
from mathrl.recipes.recipe import load_recipe, step_params

PARAMS = Path(__file__).parents[2] / "params"
# Every dotted name of 0.1's schema, those of unions excepted.
OLD = json.loads(Path(__file__).with_name("old_parameters.json").read_text("utf-8"))
# Of the types of 0.1 that had options for all: what they mean with the type that has them.
GAE, PPO = ["rl.advantage=gae"], {"type": "gae"}


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old_names, "_told", set())


def value_at(params: Params, key: str) -> Any:
    value: Any = params.model_dump(mode="json", by_alias=True)
    for name in key.split("."):
        value = value[name] if isinstance(value, dict) else None
    return value


def test_every_name_of_the_old_schema_is_valid_or_in_the_table() -> None:
    valid = {*parameters(Params)}
    lost = [key for key in OLD if key not in valid and key not in NAMES and new_key(key) not in valid]
    dropouts = ["rl.critic.lora.dropout", "rl.lora.dropout"]  # sampling has no dropout: only 0 was valid
    minhash = ["curate.deduplicate.near.permutations"]  # left out where it is written
    recipes = ["controls.more_sft", "controls.worked_only", "suite", "suite.benchmarks", "suite.models"]  # now steps
    assert sorted(lost) == sorted(dropouts + minhash + recipes)
    assert len(OLD) == 460 and {*NAMES} <= {*OLD}
    assert {new.removesuffix(".type") for new in NAMES.values()} <= valid
    assert all(old not in valid for old in NAMES if old not in STILL_THERE), "a name has one meaning"


def test_files_with_the_functions_of_minhash_are_read(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(PARAMS, tmp_path / "params"))
    (folder / "curate.yaml").write_text("deduplicate: {near: {ngram: 3, permutations: 64}}\n")
    assert load_params(folder).curate.deduplicate.near == NearDuplicates(ngram=3)
    with pytest.raises(UserError, match=r"curate\.deduplicate\.near\.permutations"):
        load_params(folder, overrides=["curate.deduplicate.near.permutations=32"])


@pytest.mark.parametrize(
    ("old", "others", "new", "value"),
    [
        ("rl.lr=2e-4", [], "rl.optimizer.lr", 2e-4),
        ("sft.lr=2e-4", [], "sft.optimizer.lr", 2e-4),
        ("dpo.lr=2e-5", [], "dpo.optimizer.lr", 2e-5),
        ("reward_model.lr=2e-5", [], "reward_model.optimizer.lr", 2e-5),
        *((f"rl.advantage={old}", [], "rl.advantage.type", new) for old, new in TYPES["rl.advantage"].items()),
        ("rl.std_ddof=0", [], "rl.advantage.ddof", 0),
        ("rl.std_eps=0.1", [], "rl.advantage.eps", 0.1),
        ("rl.std_eps=0.1", ["rl.advantage=pass_at_k"], "rl.advantage.eps", 0.1),
        ("rl.step_returns=mean", ["rl.advantage=process"], "rl.advantage.step_returns", "mean"),
        ("rl.k=8", ["rl.advantage=max_at_k"], "rl.advantage.k", 8),
        ("rl.part_weights={accuracy: 2}", ["rl.advantage=part_std"], "rl.advantage.weights", {"accuracy": 2.0}),
        ("rl.whiten=true", ["rl.advantage=leave_one_out"], "rl.advantage.whiten", True),
        ("rl.gamma=0.9", ["rl.advantage=none"], "rl.advantage.gamma", 0.9),
        ("rl.gae_lambda=0.9", GAE, "rl.advantage.lam", 0.9),
        ("rl.critic={lr: 0.1, warmup_steps: 2}", GAE, "rl.advantage.critic.warmup_steps", 2),
        ("rl.critic={lr: 0.1, warmup_steps: 2}", GAE, "rl.advantage.critic.optimizer.lr", 0.1),
        ("rl.critic.lr=0.1", GAE, "rl.advantage.critic.optimizer.lr", 0.1),
        ("rl.critic.optimizer={beta2: 0.9}", GAE, "rl.advantage.critic.optimizer.beta2", 0.9),
        ("rl.critic={}", GAE, "rl.advantage.critic.optimizer.lr", 1e-3),  # of random weights
        ("rl.policy_loss=geo_mean", [], "rl.loss.type", "gmpo"),
        ("rl.policy_loss=gspo", ["rl.aggregation=sequence_mean"], "rl.loss.aggregation", "sequence_mean"),
        ("rl.clip_low=0.1", ["rl.policy_loss=dppo_tv"], "rl.loss.low", 0.1),
        ("rl.clip_high=0.1", ["rl.policy_loss=cispo"], "rl.loss.high", 0.1),
        ("rl.dual_clip=3", ["rl.policy_loss=gspo"], "rl.loss.dual", 3.0),
        ("rl.dual_clip=3", ["rl.policy_loss=dppo_kl"], "rl.loss.cap", 3.0),
        ("rl.sapo_temperatures=[1, 2]", ["rl.policy_loss=sapo"], "rl.loss.temperatures", [1.0, 2.0]),
        ("rl.log_ratio_penalty=0.1", [], "rl.loss.log_ratio_penalty", 0.1),
        ("rl.aggregation=sequence_sum", [], "rl.loss.aggregation", "sequence_sum"),
        ("rl.entropy_coef=0.1", [], "rl.loss.entropy_coef", 0.1),
        ("rl.drop_ratio=5", [], "rl.loss.drop_ratio", 5.0),
        ("rl.skip_zero_variance=false", [], "rl.loss.skip_zero_variance", False),
        ("rl.kl_coef=0.1", [], "rl.kl.coef", 0.1),
        ("rl.kl_coef=0.1", [], "rl.kl.type", "loss"),
        ("rl.kl_estimator=k2", ["rl.kl_coef=0.1"], "rl.kl.estimator", "k2"),
        ("rl.kl_in=reward", ["rl.kl_estimator=k1", "rl.kl_coef=0.1"], "rl.kl.type", "reward"),
        ("rl.kl_controller={target: 0.2}", ["rl.kl_coef=0.1"], "rl.kl.controller.target", 0.2),
        ("rl.kl_probe=2", [], "rl.kl", {"type": "probe", "groups": 2}),
        ("rl.kl_probe=2", ["rl.kl_coef=0.0"], "rl.kl.groups", 2),
        ("rl.kl_probe=2", ["rl.kl_coef=0.1"], "rl.kl.coef", 0.1),
        ("rl.dynamic_sampling=8", [], "rl.dynamic_sampling.rounds", 8),
        ("rl.dynamic_sampling=0", ["rl.prompts_per_round=96"], "rl.dynamic_sampling", None),
        ("rl.prompts_per_round=96", ["rl.dynamic_sampling=8"], "rl.dynamic_sampling.prompts_per_round", 96),
        ("rl.importance={kind: masked, low: 0.1}", [], "rl.importance.low", 0.1),
        ("rl.importance.kind=masked", [], "rl.importance.type", "masked"),
        ("rl.curriculum={order: pass_rate, floor: 0.1}", [], "rl.curriculum.floor", 0.1),
        ("rl.curriculum.order=pools", [], "rl.curriculum.type", "pools"),
        ("rl.eval_every=5", [], "rl.dev.every", 5),
        ("rl.eval_samples=5", [], "rl.dev.samples", 5),
        ("rl.eval_temperature=0.5", [], "rl.dev.temperature", 0.5),
        ("rl.export=best", [], "rl.dev.export", "best"),
    ],
)
def test_an_old_name_means_what_it_meant_in_any_order_and_says_so(
    old: str, others: list[str], new: str, value: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for overrides in ([old, *others], [*others, old]):
        assert value_at(load_params(PARAMS, overrides=overrides), new) == value, overrides
    line = capsys.readouterr().err
    assert line.startswith("parameters of version 0.1: ") and f"{old.partition('=')[0]}" in line
    assert line.count("\n") == 1, "once in a process"
    # The same in a file of params/ and in a preset.
    folder = Path(shutil.copytree(PARAMS, tmp_path / "params"))
    values: dict[str, Any] = {}
    for override in (old, *others):
        key, _, text = override.partition("=")
        section, *path = key.split(".")
        if len(path) == 1:
            values.setdefault(section, {})[path[0]] = read_value(text)
    if len(values.get("rl", {})) == len(others) + 1:
        (folder / "presets").mkdir(exist_ok=True)
        (folder / "presets" / "mine.yaml").write_text(dump_yaml({"help": "mine", **values}))
        assert value_at(load_params(folder, preset="mine"), new) == value
        file = folder / "rl.yaml"
        file.write_text(dump_yaml(values["rl"]))
        before = load_params(folder)
        assert value_at(before, new) == value
        write_params(before, load_params(folder, overrides=["rl.steps=7"]), folder)
        assert load_params(folder).rl == before.rl.model_copy(update={"steps": 7})
        assert not {*values["rl"]} - {"advantage", "dynamic_sampling", "importance", "curriculum"} & {*read_yaml(file)}


def read_value(text: str) -> Any:
    from mathrl.params.load import parse_yaml

    return parse_yaml(text, "the value")


def test_what_had_no_effect_is_left_out_with_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    params = load_params(PARAMS, overrides=["rl.gamma=0.9", "rl.k=2", "rl.verl.nodes=3"])
    assert params == load_params(PARAMS)
    assert "without effect here, and left out: rl.gamma, rl.k, rl.verl.nodes" in capsys.readouterr().err
    verl = ["rl.verl.nodes=2", "rl.verl={ray_address: auto}", "rl.engine=verl", "rl.ema=null",
            "rl.optimizer={type: adamw, schedule: constant}"]  # fmt: skip
    engine = load_params(PARAMS, overrides=verl).rl.engine
    assert engine.model_dump() == {"type": "verl", "nodes": 2, "ray_address": "auto", "overrides": ()}


@pytest.mark.parametrize(
    ("old", "said"),
    [
        ("rl.lr=fast", r"optimizer\.lr: Input should be a valid number.*'fast'"),
        ("rl.lr.x=1", r"optimizer\.lr: Input should be a valid number"),
        ("rl.kl_controller={}", "controller needs coef above 0"),
        ("rl.critic={clop: 1}", r"advantage\.critic\.clop: unknown parameter \(did you mean clip"),
    ],
)
def test_a_wrong_value_under_an_old_name_is_refused(old: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        load_params(PARAMS, overrides=["rl.kl_coef=0", "rl.advantage=gae", old])


def test_a_new_name_wins_over_an_old_one_in_a_file(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(PARAMS, tmp_path / "params"))
    (folder / "rl.yaml").write_text("lr: 0.1\noptimizer: {lr: 0.002}\ngamma: 0.5\nadvantage: {type: gae, gamma: 0.9}\n")
    rl = load_params(folder).rl
    assert (rl.optimizer.lr, value_at(load_params(folder), "rl.advantage.gamma")) == (0.002, 0.9)
    assert load_params(folder, overrides=["rl.lr=0.003"]).rl.optimizer.lr == 0.003


def test_recipes_and_search_spaces_may_have_old_names(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(PARAMS, tmp_path / "params"))
    recipe = {
        "description": "mine",
        "set": ["rl.lr=2e-4", "rl.optimizer.type=adamw", "rl.advantage=leave_one_out"],
        "set_fresh": ["rl.lr={times: 2}"],
        "steps": {"rl": {"stage": "rl", "start": "base", "set": ["rl.kl_coef=0.1", "rl.kl_coef={times: 0.5}"]}},
    }
    (folder / "recipes").mkdir(exist_ok=True)
    (folder / "recipes" / "mine.yaml").write_text(dump_yaml(recipe))
    rl = step_params(load_recipe("mine", folder), "rl", read_layers(folder)).rl
    assert (rl.optimizer.type, rl.optimizer.lr, rl.advantage.type, rl.kl_coef) == ("adamw", 4e-4, "rloo", 0.05)
    space = "{rl.lr: {kind: log, low: 1e-3, high: 1e-1}, rl.advantage: {kind: choice, values: [group_std, group_mean]}}"
    sweep = load_params(folder, overrides=[f"sweep.space={space}"]).sweep
    assert list(sweep.space) == ["rl.optimizer.lr", "rl.advantage.type"]
    assert sweep.space["rl.advantage.type"].values == ("grpo", "dr_grpo")  # type: ignore[union-attr]
    lam = "rl.gae_lambda: {kind: uniform, low: 0, high: 1}"
    (folder / "presets").mkdir(exist_ok=True)
    (folder / "presets" / "mine.yaml").write_text(f"help: mine\nsweep: {{space: {{rl.lr: null, {lam}}}}}")
    assert "rl.optimizer.lr" not in load_params(folder, preset="mine").sweep.space
    assert "rl.advantage.lam" in load_params(folder, preset="mine").sweep.space


def test_a_record_of_0_1_opens_with_its_values(capsys: pytest.CaptureFixture[str]) -> None:
    recorded = {
        "lr": 0.02, "optimizer": {"type": "adamw", "adamw_scale": 0.05, "warmup_steps": 3},
        "advantage": "leave_one_out",
        "std_ddof": 1, "std_eps": 1e-6, "critic": None, "policy_loss": "clip", "clip_high": 0.3, "dual_clip": None,
        "kl_coef": 0.0, "kl_probe": 0, "kl_in": "loss", "kl_estimator": "k3", "kl_controller": None, "gamma": 1.0,
        "dynamic_sampling": 0, "prompts_per_round": None, "lora": {"r": 4, "dropout": 0.0}, "eval_every": 5,
        "importance": {"when": "other_engine", "kind": "truncated", "level": "token", "low": 0.5, "high": 3.0},
        "curriculum": {"order": "shuffled", "floor": 0.02, "memory": 0.5, "pools": {}, "adaptive": None},
        "verl": {"nodes": 1, "ray_address": None, "overrides": []},
    }  # fmt: skip
    rl = load_params(PARAMS, instead={"rl": recorded}).rl
    assert (rl.optimizer.type, rl.optimizer.lr, rl.optimizer.warmup_steps) == ("adamw", 0.02, 3)
    assert (rl.advantage.type, rl.kl_coef, rl.dynamic_sampling, rl.dev.every) == ("rloo", 0.0, None, 5)
    assert (rl.importance.high, rl.importance.when) == (3.0, "other_engine")  # type: ignore[union-attr]
    assert value_at(load_params(PARAMS, instead={"rl": recorded}), "rl.loss.high") == 0.3
    assert "ignored" not in capsys.readouterr().err
