"""verl 0.9.1's advantage estimators, KL controller and importance weights against ours."""

from typing import Any

import pytest
import torch

from mathrl.algorithms.advantages import group_advantages, whiten
from mathrl.algorithms.aggregation import spread
from mathrl.algorithms.alignment import importance_weights, normalise_weights, within_bounds
from mathrl.algorithms.kl import adapted_kl_coef
from mathrl.algorithms.returns import discounted_returns, gae, length_lambdas, token_rewards
from mathrl.algorithms.set_objectives import part_advantages, set_advantages
from mathrl.engines.verl_config import REJECTIONS


@pytest.fixture(scope="module")
def algos() -> Any:
    from verl.trainer.ppo import core_algos

    return core_algos


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo", "rloo"])
def test_verl_group_advantages(algos: Any, ragged: Any, agree: Any, kind: str) -> None:
    rewards_S = ragged.rewards()
    given = (ragged.at_ends(rewards_S), ragged.mask_SL, ragged.groups_S)
    if kind == "rloo":
        theirs, _ = algos.compute_rloo_outcome_advantage(*given)
    else:
        theirs, _ = algos.compute_grpo_outcome_advantage(*given, epsilon=1e-6, norm_adv_by_std_in_grpo=kind == "grpo")
    ours_PG = group_advantages(rewards_S.view(-1, ragged.group), kind, ddof=1, eps=1e-6)  # type: ignore[arg-type]
    agree(spread(ours_PG.flatten(), ragged.lengths_S), ragged.flat(theirs))
    # Another ddof or epsilon, the usual differences between systems, must not agree.
    if kind == "grpo":
        for wrong in ({"ddof": 0, "eps": 1e-6}, {"ddof": 1, "eps": 1e-4}):
            off = group_advantages(rewards_S.view(-1, ragged.group), kind, **wrong).flatten()  # type: ignore[arg-type]
            assert (spread(off, ragged.lengths_S) - ragged.flat(theirs)).abs().max() > 1e-5


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_verl_reinforce_plus_plus(algos: Any, ragged: Any, agree: Any, gamma: float) -> None:
    """With the KL in the reward, as the method has it."""
    rewards_S, penalty_SL = ragged.rewards(), ragged.noise(0.1)
    rewards_SL = ragged.at_ends(rewards_S) - penalty_SL * ragged.mask_SL
    config = type("Config", (), {"gamma": gamma})()
    theirs, returns = algos.compute_reinforce_plus_plus_outcome_advantage(rewards_SL, ragged.mask_SL, config)
    ours_N = discounted_returns(
        token_rewards(rewards_S, ragged.lengths_S, ragged.flat(penalty_SL)), ragged.lengths_S, gamma
    )
    agree(ours_N, ragged.flat(returns))
    agree(whiten(ours_N, torch.ones_like(ours_N, dtype=torch.bool)), ragged.flat(theirs))


def test_verl_reinforce_plus_plus_baseline(algos: Any, ragged: Any, agree: Any) -> None:
    rewards_S = ragged.rewards()
    theirs, _ = algos.compute_reinforce_plus_plus_baseline_outcome_advantage(
        ragged.at_ends(rewards_S), ragged.mask_SL, ragged.groups_S
    )
    centred_PG = group_advantages(rewards_S.view(-1, ragged.group), "dr_grpo")
    ours_N = spread(centred_PG.flatten(), ragged.lengths_S)
    agree(whiten(ours_N, torch.ones_like(ours_N, dtype=torch.bool)), ragged.flat(theirs))


def test_verl_remax(algos: Any, ragged: Any, agree: Any) -> None:
    rewards_S = ragged.rewards()
    baselines_S = torch.rand(len(rewards_S), generator=ragged.generator, dtype=torch.float64)
    theirs, _ = algos.compute_remax_outcome_advantage(ragged.at_ends(rewards_S), baselines_S, ragged.mask_SL)
    ours_N = discounted_returns(token_rewards(rewards_S, ragged.lengths_S), ragged.lengths_S, 1.0)
    agree(ours_N - spread(baselines_S, ragged.lengths_S), ragged.flat(theirs))


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.99, 0.95), (0.5, 0.0)])
def test_verl_gae(algos: Any, ragged: Any, agree: Any, gamma: float, lam: float) -> None:
    rewards_S, penalty_SL, values_SL = ragged.rewards(), ragged.noise(0.1), ragged.noise()
    values_SL = values_SL * ragged.mask_SL
    rewards_SL = ragged.at_ends(rewards_S) - penalty_SL * ragged.mask_SL
    theirs, returns = algos.compute_gae_advantage_return(rewards_SL, values_SL, ragged.mask_SL, gamma, lam)
    rewards_N = token_rewards(rewards_S, ragged.lengths_S, ragged.flat(penalty_SL))
    ours_N, targets_N = gae(rewards_N, ragged.flat(values_SL), ragged.lengths_S, gamma, lam)
    agree(targets_N, ragged.flat(returns))
    # verl whitens inside; raw advantages are its returns minus the values.
    agree(ours_N, ragged.flat(returns - values_SL))
    agree(whiten(ours_N, torch.ones_like(ours_N, dtype=torch.bool)), ragged.flat(theirs))


@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_verl_gae_by_length(algos: Any, ragged: Any, agree: Any, alpha: float) -> None:
    """VAPO's lambda of each response: verl has one for all rows, and is asked for the rows of each length."""
    rewards_S, values_SL = ragged.rewards(), ragged.noise() * ragged.mask_SL
    advantages_SL = torch.zeros_like(values_SL)
    for length in set(ragged.lengths_S.tolist()):
        lam, given = max(0.0, 1 - 1 / (alpha * length)), (ragged.at_ends(rewards_S), values_SL, ragged.mask_SL)
        _, returns_SL = algos.compute_gae_advantage_return(*given, 0.99, lam)
        rows_S = ragged.lengths_S == length
        advantages_SL[rows_S] = (returns_SL - values_SL)[rows_S]
    rewards_N = token_rewards(rewards_S, ragged.lengths_S)

    def ours(alpha: float) -> Any:
        lam_S = length_lambdas(ragged.lengths_S.double(), alpha)
        return gae(rewards_N, ragged.flat(values_SL), ragged.lengths_S, 0.99, lam_S)[0]

    agree(ours(alpha), ragged.flat(advantages_SL))
    assert (ours(1.2 * alpha) - ragged.flat(advantages_SL)).abs().max() > 1e-3 or ragged.lengths_S.max() < 6


def test_verl_adaptive_kl_controller(algos: Any, agree: Any) -> None:
    theirs = algos.AdaptiveKLController(0.1, target_kl=6.0, horizon=10_000)
    ours = 0.1
    for kl, samples in [(12.0, 256), (6.5, 256), (0.1, 512), (5.9, 64), (200.0, 1024)]:
        theirs.update(kl, samples)
        ours = adapted_kl_coef(ours, kl, samples, target=6.0, horizon=10_000)
        agree(ours, theirs.value)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("kind", ["truncated", "masked"])
def test_verl_importance_weights(ragged: Any, agree: Any, kind: str, level: str) -> None:
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

    sampler_SL, gap_SL = -ragged.noise().abs(), ragged.noise(0.5)
    old_SL = sampler_SL + gap_SL
    masked = kind == "masked"
    proto, kept_SL, _ = compute_rollout_correction_and_rejection_mask(
        old_SL,
        sampler_SL,
        ragged.mask_SL,
        rollout_is=level,
        rollout_is_threshold="0.5_2.0" if masked else 2.0,
        rollout_rs={"token": "token_k1", "sequence": "seq_sum_k1"}[level] if masked else None,
        rollout_rs_threshold="0.5_2.0" if masked else None,
    )
    weights_N, kept_N = importance_weights(
        ragged.flat(old_SL),
        ragged.flat(sampler_SL),
        ragged.lengths_S,
        kind,
        level,
        0.5,
        2.0,  # type: ignore[arg-type]
    )
    agree(weights_N, ragged.flat(proto.batch["rollout_is_weights"]))
    agree(kept_N.double(), ragged.flat(kept_SL))
    if masked and len(kept_N) > 20:
        assert not kept_N.all()


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("reject", ["token", "sequence", "geometric"])
def test_verls_rejection_beside_normalised_weights(ragged: Any, agree: Any, level: Any, reject: Any) -> None:
    """Its bounds are those of the sampler's probability over the trainer's."""
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

    sampler_SL, gap_SL = -ragged.noise().abs(), ragged.noise(0.5)
    proto, kept_SL, _ = compute_rollout_correction_and_rejection_mask(
        sampler_SL + gap_SL,
        sampler_SL,
        ragged.mask_SL,
        rollout_is=level,
        rollout_is_threshold=1.5,
        rollout_is_batch_normalize=True,
        rollout_rs=REJECTIONS[reject],
        rollout_rs_threshold=f"{1 / 1.2}_{1 / 0.7}",
    )
    old_N, sampler_N, lengths_S = ragged.flat(sampler_SL + gap_SL), ragged.flat(sampler_SL), ragged.lengths_S
    weights_N, _ = importance_weights(old_N, sampler_N, lengths_S, "truncated", level, 0.0, 1.5)
    agree(normalise_weights(weights_N, lengths_S, level), ragged.flat(proto.batch["rollout_is_weights"]))
    agree(within_bounds(old_N, sampler_N, lengths_S, reject, 0.7, 1.2).double(), ragged.flat(kept_SL))


def test_verls_best_of_group(algos: Any, ragged: Any, agree: Any) -> None:
    """Its pass@k advantage is ours for k = G, up to the factor G of the exact gradient."""
    rewards_S = ragged.rewards() + ragged.noise()[:, 0]
    theirs, _ = algos.compute_grpo_passk_outcome_advantage(
        ragged.at_ends(rewards_S), ragged.mask_SL, ragged.groups_S, config={"norm_adv_by_std_in_grpo": False}
    )
    ours_PG = set_advantages(rewards_S.view(-1, ragged.group), "pkpo", ragged.group) / ragged.group
    agree(spread(ours_PG.flatten(), ragged.lengths_S), ragged.flat(theirs))


@pytest.mark.parametrize("weights", [[1.0, 1.0], [1.0, 0.3]])
def test_verl_gdpo(algos: Any, ragged: Any, agree: Any, weights: list[float]) -> None:
    parts_KS = torch.stack([ragged.rewards(), ragged.noise()[:, 0]]).float().double()  # verl reads float32
    mask_SL = ragged.mask_SL
    theirs, _ = algos.compute_gdpo_outcome_advantage(
        ragged.at_ends(parts_KS.sum(0)),
        mask_SL,
        ragged.groups_S,
        config={"gdpo_reward_keys": ["a", "b"], "gdpo_reward_weights": weights},
        non_tensor_batch={"a": parts_KS[0].numpy(), "b": parts_KS[1].numpy()},
        batch={
            "prompts": torch.zeros(len(mask_SL), 1),
            "attention_mask": torch.cat([torch.ones(len(mask_SL), 1), mask_SL], 1).long(),
        },
    )
    ours_PG = part_advantages(parts_KS.view(2, -1, ragged.group), weights)
    ours_N = spread(ours_PG.flatten(), ragged.lengths_S)
    agree(whiten(ours_N, torch.ones_like(ours_N, dtype=torch.bool)), ragged.flat(theirs))
