"""The configuration of another trainer in the section rl: what is not taken over is named."""

from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from mathrl.imports.foreign_run import ForeignRun, read_run
from mathrl.imports.write_record import parameters
from mathrl.params.other_trainers import parameter_names
from tests.imports.conftest import unpack_verl_run


def another(value: Any) -> Any:
    if isinstance(value, bool | None):
        return not value
    return f"{value}x" if isinstance(value, str) else abs(2 * value) or 0.5


def test_every_argument_of_trl_is_taken_over_or_named(trl_run: Path) -> None:
    """Another value of a field changes the section rl or is in the list of what was not taken over."""
    plain = {name: value for name, value in read_run(trl_run).config.items() if not isinstance(value, list | tuple)}
    assert len(plain) > 150 and {"epsilon_high", "delta", "sync_ref_model", "vespo_k_pos"} <= plain.keys()

    def taken(config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        return parameters(ForeignRun(trl_run, "TRL", config=config), [], [{"step": 1}])

    known = {row.name for row in parameter_names() if row.trainer == "TRL"}
    there = {name: value for name, value in plain.items() if name not in known}
    assert taken(there)[1] == there
    beside = {name: plain[name] for name in ("loss_type", "steps_per_generation", "gradient_accumulation_steps")}
    for name in plain.keys() & known - {"reward_weights"}:  # they weigh the rollouts' rewards: test_formats.py
        before, _ = taken(beside | {"beta": 0.1, name: plain[name]})
        section, unused = taken(beside | {"beta": 0.1, name: another(plain[name])})
        assert section != before or name in unused, f"{name}={another(plain[name])} is dropped"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"loss_type": "grpo", "epsilon": 0.1, "delta": 3.0},
         {"type": "clip", "aggregation": "sequence_mean", "low": 0.1, "high": 0.1, "dual": 3.0}),
        ({"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28}, {"type": "clip", "low": 0.2, "high": 0.28}),
        ({"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4},
         {"type": "gspo", "aggregation": "sequence_mean", "low": 3e-4, "high": 3e-4}),
        ({"loss_type": "cispo", "epsilon": 0.2, "epsilon_high": 5.0}, {"type": "cispo", "low": 1, "high": 4.0}),
        ({"loss_type": "sapo", "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.2},
         {"type": "sapo", "temperatures": [1.0, 1.2]}),
        ({"loss_type": "dr_grpo", "top_entropy_quantile": 0.2}, {"aggregation": "sequence_sum", "top_entropy": 0.2}),
    ],
)  # fmt: skip
def test_a_loss_of_trl_is_ours(tmp_path: Path, config: dict[str, Any], expected: dict[str, Any]) -> None:
    rl, unused = parameters(ForeignRun(tmp_path, "TRL", config=config), [], [{"step": 1}])
    assert rl["loss"] | expected == rl["loss"] and not unused


def test_updates_of_trl_are_counted_in_gradient_accumulation_steps(tmp_path: Path) -> None:
    config = {"steps_per_generation": 8, "gradient_accumulation_steps": 4, "scale_rewards": "none"}
    config |= {"mask_truncated_completions": True, "beta": 0.0, "loss_type": "luspo", "sync_ref_model": True}
    rl, unused = parameters(ForeignRun(tmp_path, "TRL", config=config), [], [{"step": 1}])
    assert (rl["minibatches"], rl["advantage"]["type"], rl["truncated"], rl["kl"]) == (2, "dr_grpo", "mask", None)
    assert unused == {"loss_type": "luspo", "sync_ref_model": True}
    uneven = {"steps_per_generation": 8, "gradient_accumulation_steps": 3}
    assert parameters(ForeignRun(tmp_path, "TRL", config=uneven), [], [{"step": 1}])[1] == uneven


@pytest.fixture(scope="module")
def verl_healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_verl_run("healthy", tmp_path_factory.mktemp("verl"))


ACTOR, CORRECTION = "actor_rollout_ref.actor.", "algorithm.rollout_correction.rollout_is"
# What is off in verl's defaults, and hides other settings.
SWITCHES: list[dict[str, Any]] = [
    {"actor_rollout_ref.model.lora_rank": 8, CORRECTION: "token", "algorithm.filter_groups.enable": True,
     "algorithm.filter_groups.max_num_gen_batches": 5},
    {f"{ACTOR}use_kl_loss": False, "algorithm.use_kl_in_reward": True, "algorithm.kl_ctrl.type": "adaptive",
     f"{ACTOR}clip_ratio_low": None},
]  # fmt: skip


def of_verl(folder: Path, config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return parameters(ForeignRun(folder, "verl", config=config), [], [{"step": 1}])


def test_every_setting_of_verl_is_taken_over_or_named(verl_healthy: Path) -> None:
    """As above, of the configuration of a run or of the same with what is off in it."""
    whole = read_run(verl_healthy).config
    known = {row.name for row in parameter_names() if row.trainer == "verl"} | {f"{CORRECTION}_batch_normalize"}
    _, unused = of_verl(verl_healthy, whole)
    first = {f"{ACTOR}optim.lr_warmup_steps_ratio"}  # stands for the steps
    assert len(whole) > 800 and whole.keys() - known - first <= unused.keys()
    contexts = [(whole | switches, of_verl(verl_healthy, whole | switches)[0]) for switches in ({}, *SWITCHES)]
    for name in sorted(name for name in whole.keys() & known if not isinstance(whole[name], list)):
        tries = ((of_verl(verl_healthy, config | {name: another(config[name])}), before) for config, before in contexts)
        assert any(section != before or name in left for (section, left), before in tries), f"{name} is dropped"


def test_what_is_off_in_verl_is_off(verl_healthy: Path) -> None:
    rl, unused = of_verl(verl_healthy, read_run(verl_healthy).config)
    assert (rl["lora"], rl["importance"], rl["dynamic_sampling"]) == (None, None, None)
    assert (rl["optimizer"]["warmup_steps"], rl["kl"]["controller"], rl["loss"]["type"]) == (0, None, "clip")
    assert not {name for name in unused if name.startswith("actor_rollout_ref.model.lora_")} - {
        "actor_rollout_ref.model.lora_adapter_path",
        "actor_rollout_ref.model.lora.rank",
    }


@pytest.mark.parametrize(
    ("config", "path", "expected", "left"),
    [
        ({"actor_rollout_ref.model.lora_rank": 8, "actor_rollout_ref.model.lora_alpha": 32}, "lora.alpha", 32, ()),
        ({CORRECTION: "sequence", f"{CORRECTION}_threshold": 5.0, f"{CORRECTION}_batch_normalize": True}, "importance",
         {"type": "truncated", "level": "sequence", "high": 5.0, "normalise": True, "when": "always"}, ()),
        ({"algorithm.filter_groups.enable": False, "algorithm.filter_groups.max_num_gen_batches": 10,
          "data.gen_batch_size": 1536}, "dynamic_sampling", None, ()),
        ({"algorithm.filter_groups.enable": True, "algorithm.filter_groups.max_num_gen_batches": 10,
          "data.gen_batch_size": 1536}, "dynamic_sampling", {"rounds": 10, "prompts_per_round": 1536}, ()),
        ({"algorithm.adv_estimator": "gae", "algorithm.lam": 0.95}, "advantage", {"whiten": True, "lam": 0.95}, ()),
        ({f"{ACTOR}policy_loss.loss_mode": "gspo", f"{ACTOR}loss_agg_mode": "token-mean"}, "loss",
         {"type": "gspo", "aggregation": "sequence_mean"}, ()),
        ({f"{ACTOR}clip_ratio": 0.1}, "loss", {"low": 0.1, "high": 0.1}, ()),
        ({f"{ACTOR}clip_ratio": 0.1, f"{ACTOR}clip_ratio_low": 0.2, f"{ACTOR}clip_ratio_high": 0.3}, "loss",
         {"low": 0.2, "high": 0.3}, ()),
        ({f"{ACTOR}grad_clip": 0.5, f"{ACTOR}optim.clip_grad": 1.0}, "optimizer.clip_norm", 1.0,
         (f"{ACTOR}grad_clip", f"{ACTOR}optim.clip_grad")),
        ({f"{ACTOR}use_dynamic_bsz": True, f"{ACTOR}ppo_max_token_len_per_gpu": 2048}, "tokens_per_microbatch", 2048,
         ()),
        ({f"{ACTOR}use_kl_loss": True, f"{ACTOR}kl_loss_coef": 0.01, f"{ACTOR}kl_loss_type": "mse"}, "kl",
         {"type": "loss", "coef": 0.01, "estimator": "k2"}, ()),
        ({f"{ACTOR}use_kl_loss": True, f"{ACTOR}kl_loss_coef": 0.01, "algorithm.use_kl_in_reward": True,
          "algorithm.kl_ctrl.kl_coef": 0.02}, "kl", {"type": "loss", "coef": 0.01},
         ("algorithm.use_kl_in_reward", "algorithm.kl_ctrl.kl_coef")),
        ({"algorithm.use_kl_in_reward": True, "algorithm.kl_ctrl.kl_coef": 0.02, "algorithm.kl_ctrl.type": "adaptive",
          "algorithm.kl_ctrl.horizon": 500, "algorithm.kl_ctrl.target_kl": 0.2}, "kl",
         {"type": "reward", "controller": {"horizon": 500, "target": 0.2}}, ()),
    ],
)  # fmt: skip
def test_settings_of_verl_that_belong_together(
    tmp_path: Path, config: dict[str, Any], path: str, expected: Any, left: tuple[str, ...]
) -> None:
    rl, unused = of_verl(tmp_path, config)
    value = reduce(dict.__getitem__, path.split("."), rl)
    assert (value | expected if isinstance(expected, dict) else expected) == value
    assert set(unused) == set(left)


@pytest.mark.parametrize("wrong", ["x", [1], 0.5, True])
@pytest.mark.parametrize(("system", "kept"), [("verl", {}), ("TRL", {}), ("TRL", {"loss_type": "cispo"})])
def test_a_value_of_a_wrong_type_is_no_traceback(tmp_path: Path, system: str, kept: dict[str, Any], wrong: Any) -> None:
    names = {row.name for row in parameter_names() if row.trainer == system} | {"reward_weights", f"{ACTOR}optim.betas"}
    run = ForeignRun(tmp_path, system, config=dict.fromkeys(names, wrong) | kept)
    assert parameters(run, [], [{"step": 1}])[0]["steps"] >= 1
    assert run.reward_weights in ([], wrong)
