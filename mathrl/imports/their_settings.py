"""Our parameters that follow from several of another trainer's, or from a value that it writes in another way.

Each is (our path, its value as in `--set`, the names of theirs that it comes from); an empty path says that nothing
follows from these names. What is not here is taken over by its name (mathrl/params/other_trainers.py) or listed as
theirs alone.
"""

from collections.abc import Iterator, Mapping
from typing import Any

Derived = tuple[str, Any, tuple[str, ...]]
Config = Mapping[str, Any]

ACTOR, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.model"
KL_IN_LOSS = (f"{ACTOR}.use_kl_loss", f"{ACTOR}.kl_loss_coef", f"{ACTOR}.kl_loss_type")
KL_IN_REWARD = ("algorithm.use_kl_in_reward", "algorithm.kl_ctrl.kl_coef", "algorithm.kl_penalty")
CONTROLLER = ("algorithm.kl_ctrl.type", "algorithm.kl_ctrl.horizon", "algorithm.kl_ctrl.target_kl")
BATCHES = ("data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size")
ESTIMATOR, BY_STD = "algorithm.adv_estimator", "algorithm.norm_adv_by_std_in_grpo"
LOSS, AVERAGE = f"{ACTOR}.policy_loss.loss_mode", f"{ACTOR}.loss_agg_mode"
CLIP = tuple(f"{ACTOR}.clip_ratio{end}" for end in ("", "_low", "_high"))
GRADIENT_CLIP = (f"{ACTOR}.grad_clip", f"{ACTOR}.optim.clip_grad")  # of its older workers, and of the others
OPTIMIZER, BETAS = f"{ACTOR}.optim.optimizer", f"{ACTOR}.optim.betas"
WARM_UP = (f"{ACTOR}.optim.lr_warmup_steps", f"{ACTOR}.optim.lr_warmup_steps_ratio")
LORA = (f"{MODEL}.lora_rank", f"{MODEL}.lora_alpha", f"{MODEL}.target_modules")
PACKING = (f"{ACTOR}.use_dynamic_bsz", f"{ACTOR}.ppo_max_token_len_per_gpu")
IMPORTANCE = tuple(f"algorithm.rollout_correction.rollout_is{end}" for end in ("", "_threshold", "_batch_normalize"))
FILTER = tuple(f"algorithm.filter_groups.{name}" for name in ("enable", "max_num_gen_batches"))
ROUND = "data.gen_batch_size"
VERL_AVERAGES = {
    "token-mean": "token_mean",
    "seq-mean-token-mean": "sequence_mean",
    "seq-mean-token-sum-norm": "sequence_sum",
}
# verl's `loss_mode`: our loss. Two of them have an average of their own.
VERL_LOSSES = {"vanilla": "clip", "gpg": "reinforce", **{name: name for name in ("gspo", "sapo", "cispo")}}
BY_SEQUENCE = ("gspo", "sapo")
VERL_KL = {"mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
REFUSED = "refused"  # a value that no parameter takes, so that theirs is listed
# TRL's `loss_type`: our loss and its average.
TRL_LOSSES = {
    "grpo": ("clip", "sequence_mean"),
    "dapo": ("clip", "token_mean"),
    "dr_grpo": ("clip", "sequence_sum"),
    "cispo": ("cispo", "token_mean"),
    "sapo": ("sapo", "sequence_mean"),
}
GROUP, NO_SCALE = ("group", "True"), ("none", "False")  # TRL took truth values before


def derived_settings(system: str, config: Config) -> Iterator[Derived]:
    """What follows from the configuration of a trainer; a later setting may belong to an earlier one.

    >>> config = {"algorithm.use_kl_in_reward": False, "algorithm.kl_ctrl.kl_coef": 0.001, "data.train_batch_size": 64}
    >>> config |= {"actor_rollout_ref.actor.use_kl_loss": True, "actor_rollout_ref.actor.kl_loss_coef": 0.01}
    >>> config |= {"actor_rollout_ref.actor.ppo_mini_batch_size": 16, "algorithm.adv_estimator": "grpo"}
    >>> [(path, value) for path, value, _ in derived_settings("verl", config) if path]
    [('rl.kl', '{type: loss, coef: 0.01}'), ('rl.minibatches', 4), ('rl.advantage', 'grpo')]
    >>> [(path, value) for path, value, _ in derived_settings("TRL", {"loss_type": "grpo", "epsilon": 0.2})]
    [('rl.loss.type', 'clip'), ('rl.loss.aggregation', 'sequence_mean'), ('rl.loss.low', 0.2), ('rl.loss.high', 0.2)]
    """
    if system == "verl":
        yield from _of_verl(config)
    if system == "TRL":
        yield from _of_trl(config)


def _of_verl(config: Config) -> Iterator[Derived]:
    yield from _verl_loss(config)
    yield from _verl_kl(config)
    yield from _verl_optimizer(config)
    whole, part = (config.get(name) for name in BATCHES)
    if isinstance(whole, int) and isinstance(part, int) and part > 0 and whole % part == 0:
        yield "rl.minibatches", whole // part, BATCHES[1:]
    if (estimator := config.get(ESTIMATOR)) in ("grpo", "rloo"):
        advantage = "dr_grpo" if estimator == "grpo" and config.get(BY_STD) is False else estimator
        yield "rl.advantage", advantage, (ESTIMATOR, BY_STD)
    elif estimator == "gae":
        yield "rl.advantage", "{type: gae, whiten: true}", (ESTIMATOR, BY_STD)
    if (on := config.get(PACKING[0])) is not None:
        yield ("rl.tokens_per_microbatch" if on else ""), config.get(PACKING[1]), PACKING
    level, high, normalise = (config.get(name) for name in IMPORTANCE)
    if level is not None:
        ours = f"{{type: truncated, level: {level}, high: {high or 2}, normalise: {bool(normalise)}}}"
        yield "rl.importance", ours, IMPORTANCE
    elif IMPORTANCE[0] in config:
        yield "rl.importance", "null", IMPORTANCE
    if config.get(FILTER[0]):
        yield "rl.dynamic_sampling", f"{{rounds: {config.get(FILTER[1])}}}", FILTER
    else:
        yield "", None, (*FILTER, ROUND)


def _verl_loss(config: Config) -> Iterator[Derived]:
    loss = VERL_LOSSES.get(str(config.get(LOSS)), "")
    if loss:
        yield "rl.loss.type", loss, (LOSS,)
    if loss in BY_SEQUENCE:
        yield "rl.loss.aggregation", "sequence_mean", (AVERAGE,)
    elif (average := str(config.get(AVERAGE))) in VERL_AVERAGES:
        yield "rl.loss.aggregation", VERL_AVERAGES[average], (AVERAGE,)
    both, *ends = (config.get(name) for name in CLIP)
    if None not in ends:
        yield "", None, CLIP[:1]
    elif both is not None:
        for path, end, name in zip(("rl.loss.low", "rl.loss.high"), ends, CLIP[1:], strict=True):
            yield path, both if end is None else end, (CLIP[0], name)


def _verl_kl(config: Config) -> Iterator[Derived]:
    there = [(place, names) for place, names in (("loss", KL_IN_LOSS), ("reward", KL_IN_REWARD)) if names[0] in config]
    on = [(place, names) for place, names in there if config[names[0]]]
    for number, (place, names) in enumerate(on):
        if number:  # ours has one place
            yield "rl.kl", REFUSED, names
            continue
        yield "rl.kl", f"{{type: {place}, coef: {config.get(names[1], 0)}}}", names[:2]
        if place == "loss" and (estimator := VERL_KL.get(str(config.get(names[2])))):
            yield "rl.kl.estimator", estimator, names[2:]
        if place == "reward" and config.get(names[2]) in ("kl", "k1"):
            yield "", None, names[2:]
    for _, names in there:
        if not on:
            yield "rl.kl", "{type: loss, coef: 0}", names
        elif not config[names[0]]:
            yield "", None, names
    if config.get(CONTROLLER[0]) == "fixed" or config.get(KL_IN_REWARD[0]) is False:
        yield "", None, CONTROLLER
    elif config.get(CONTROLLER[0]) == "adaptive" and len(on) == 1:
        horizon, target = (config.get(name) for name in CONTROLLER[1:])
        yield "rl.kl.controller", f"{{horizon: {horizon}, target: {target}}}", CONTROLLER


def _verl_optimizer(config: Config) -> Iterator[Derived]:
    if config.get(OPTIMIZER) == "AdamW":
        yield "rl.optimizer.type", "adamw", (OPTIMIZER,)
    if isinstance(betas := config.get(BETAS), list | tuple):
        for number, beta in enumerate(betas, start=1):
            yield f"rl.optimizer.beta{number}", beta, (BETAS,)
    limits = [limit for name in GRADIENT_CLIP if (limit := config.get(name)) is not None]
    if limits:
        yield "rl.optimizer.clip_norm", limits[0] if limits[0] == limits[-1] else REFUSED, GRADIENT_CLIP
    steps, ratio = (config.get(name) for name in WARM_UP)
    if isinstance(steps, int) and steps <= 0 and not ratio:
        yield "rl.optimizer.warmup_steps", 0, WARM_UP
    if not config.get(LORA[0]):
        yield "", None, LORA


def _of_trl(config: Config) -> Iterator[Derived]:
    yield from _trl_loss(config)
    if "reward_weights" in config:  # they weigh the rewards of the rollouts
        yield "", None, ("reward_weights",)
    if beta := config.get("beta"):
        estimator = "unbiased" if config.get("use_bias_correction_kl") else "k3"
        kl = f"{{type: loss, coef: {beta}, estimator: {estimator}}}"
        yield "rl.kl", kl, ("beta", "use_bias_correction_kl")
    elif beta is not None:
        yield "rl.kl", "null", ("beta",)
    if config.get("multi_objective_aggregation", "sum_then_normalize") == "sum_then_normalize":
        if (scale := str(config.get("scale_rewards"))) in GROUP:
            yield "rl.advantage", "{type: grpo, eps: 0.0001}", ("scale_rewards",)
        elif scale in NO_SCALE:
            yield "rl.advantage", "dr_grpo", ("scale_rewards",)
    if isinstance(mask := config.get("mask_truncated_completions"), bool):
        yield "rl.truncated", "mask" if mask else "keep", ("mask_truncated_completions",)
    # TRL counts micro-batches of a generation batch, of which gradient_accumulation_steps are one update.
    whole, part = config.get("steps_per_generation"), config.get("gradient_accumulation_steps", 1)
    if isinstance(whole, int):
        even = isinstance(part, int) and part > 0 and whole % part == 0
        names = ("steps_per_generation", "gradient_accumulation_steps")
        yield "rl.minibatches", whole // part if even else REFUSED, names
    responses, group = config.get("generation_batch_size"), config.get("num_generations")
    if isinstance(responses, int) and isinstance(group, int) and group > 0 and responses % group == 0:
        yield "rl.prompts_per_step", responses // group, ("generation_batch_size",)


def _trl_loss(config: Config) -> Iterator[Derived]:
    loss, average = TRL_LOSSES.get(str(config.get("loss_type")), ("", ""))
    level = config.get("importance_sampling_level", "token")
    if not loss or level not in ("token", "sequence") or (level == "sequence" and loss != "clip"):
        return
    names = ("loss_type", "importance_sampling_level")
    yield "rl.loss.type", "gspo" if level == "sequence" else loss, names
    yield "rl.loss.aggregation", average, names
    low = config.get("epsilon")
    high = low if config.get("epsilon_high") is None else config["epsilon_high"]
    if loss == "sapo":
        ours = [config.get(f"sapo_temperature_{sign}") for sign in ("pos", "neg")]
        yield "rl.loss.temperatures", ours, ("sapo_temperature_pos", "sapo_temperature_neg")
    elif loss == "cispo" and isinstance(high, int | float):  # it bounds the ratio itself, and above alone
        yield "rl.loss.low", 1, ("epsilon",)
        yield "rl.loss.high", high - 1, ("epsilon_high",)
    elif low is not None:
        yield "rl.loss.low", low, ("epsilon",)
        yield "rl.loss.high", high, ("epsilon_high",)
        if (delta := config.get("delta")) is not None:
            yield "rl.loss.dual", delta, ("delta",)
    if config.get("top_entropy_quantile") == 1:  # all tokens
        yield "rl.loss.top_entropy", "null", ("top_entropy_quantile",)
