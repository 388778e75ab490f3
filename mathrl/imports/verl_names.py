"""Parameters and metrics of verl whose meaning depends on others of them."""

from collections.abc import Mapping, Sequence
from typing import Any

KL_IN_LOSS = ("actor_rollout_ref.actor.use_kl_loss", "actor_rollout_ref.actor.kl_loss_coef")
KL_IN_REWARD = ("algorithm.use_kl_in_reward", "algorithm.kl_ctrl.kl_coef")
CONTROLLER = ("algorithm.kl_ctrl.type", "algorithm.kl_ctrl.horizon", "algorithm.kl_ctrl.target_kl")
BATCHES = ("data.train_batch_size", "actor_rollout_ref.actor.ppo_mini_batch_size")
ESTIMATOR, BY_STD = "algorithm.adv_estimator", "algorithm.norm_adv_by_std_in_grpo"
LIMIT, LONGEST = "data.max_response_length", "response_length/max"
TRUNCATED = "rollout/truncated_share"


def verl_settings(config: Mapping[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """Our parameters that follow from several of verl's, and verl's names that were read for them.

    >>> config = {"algorithm.use_kl_in_reward": False, "algorithm.kl_ctrl.kl_coef": 0.001, "data.train_batch_size": 64}
    >>> config |= {"actor_rollout_ref.actor.use_kl_loss": True, "actor_rollout_ref.actor.kl_loss_coef": 0.01}
    >>> config |= {"actor_rollout_ref.actor.ppo_mini_batch_size": 16, "algorithm.adv_estimator": "grpo"}
    >>> verl_settings(config)[0]
    {'rl.kl': '{type: loss, coef: 0.01}', 'rl.minibatches': 4, 'rl.advantage': 'grpo'}
    """
    derived: dict[str, Any] = {}
    read: set[str] = set()
    for place, (switch, coefficient) in (("loss", KL_IN_LOSS), ("reward", KL_IN_REWARD)):
        if switch in config:
            read |= {switch, coefficient}
            if config[switch]:
                derived["rl.kl"] = f"{{type: {place}, coef: {config.get(coefficient, 0)}}}"
            else:
                derived.setdefault("rl.kl", "{type: loss, coef: 0}")
    if config.get(CONTROLLER[0]) == "fixed":
        read |= {*CONTROLLER}
    whole, part = (config.get(name) for name in BATCHES)
    if isinstance(whole, int) and isinstance(part, int) and part > 0 and whole % part == 0:
        derived["rl.minibatches"] = whole // part
        read.add(BATCHES[1])
    if (estimator := config.get(ESTIMATOR)) in ("grpo", "rloo", "gae"):
        derived["rl.advantage"] = "dr_grpo" if estimator == "grpo" and config.get(BY_STD) is False else estimator
        read |= {ESTIMATOR, BY_STD}
    return derived, read


def correct_truncation(rows: Sequence[dict[str, Any]], config: Mapping[str, Any]) -> None:
    """verl 0.9.1 counts the responses that are as long as the longest of the step, which may have ended by themselves.

    They are cut off where the longest has `data.max_response_length` tokens; where that is not known, as many as the
    longest response of the run.

    >>> rows = [{TRUNCATED: 0.4, LONGEST: 3.0}, {TRUNCATED: 0.1, LONGEST: 4.0}]
    >>> correct_truncation(rows, {"data.max_response_length": 4})
    >>> [row[TRUNCATED] for row in rows]
    [0.0, 0.1]
    """
    limit = config.get(LIMIT)
    if not isinstance(limit, int):
        limit = max((row[LONGEST] for row in rows if LONGEST in row), default=0)
    for row in rows:
        if TRUNCATED in row and row.get(LONGEST, limit) < limit:
            row[TRUNCATED] = 0.0
