"""verl 0.9.1's policy losses, aggregation, KL penalties and value loss against ours, values and gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor

from mathrl.algorithms.aggregation import spread, token_weights
from mathrl.algorithms.divergences import teacher_divergence
from mathrl.algorithms.exploration import covariances, covariances_within, highest_covariances
from mathrl.algorithms.kl import kl_estimate
from mathrl.algorithms.policy_loss import Clip, policy_loss
from mathrl.algorithms.returns import clipped_value_loss
from mathrl.models.logprobs import token_logprobs

MODES = {"token_mean": "token-mean", "sequence_mean": "seq-mean-token-mean", "sequence_sum": "seq-mean-token-sum-norm"}
LONGEST = 40  # the configured length, which sequence_sum divides by


@pytest.fixture(scope="module")
def algos() -> Any:
    from verl.trainer.ppo import core_algos

    return core_algos


def actor(algos: Any, low: float, high: float, dual: float, **policy: float) -> Any:
    from verl.workers.config import ActorConfig, PolicyLossConfig

    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio=0.2,
        clip_ratio_low=low,
        clip_ratio_high=high,
        clip_ratio_c=dual,
        policy_loss=PolicyLossConfig(**policy),
    )
    config.global_batch_info["loss_scale_factor"] = LONGEST
    return config


def weighted(loss_N: Tensor, lengths_S: Tensor, aggregation: str) -> Tensor:
    weights_S = token_weights(lengths_S, aggregation, LONGEST).double()  # type: ignore[arg-type]
    return (spread(weights_S, lengths_S) * loss_N).sum()


@pytest.mark.parametrize("aggregation", MODES)
@pytest.mark.parametrize(
    ("kind", "low", "high", "dual"),
    [
        ("clip", 0.2, 0.28, None),
        ("clip", 0.2, 0.28, 1.5),
        ("gspo", 0.03, 0.04, None),
        ("cispo", 0.2, 0.28, None),
        ("cispo", 1.0, 4.0, None),
    ],
)
def test_verl_policy_loss(
    algos: Any, ragged: Any, agree: Any, kind: str, low: float, high: float, dual: float | None, aggregation: str
) -> None:
    old_SL, advantages_SL, weights_SL = -ragged.noise().abs(), ragged.noise(), ragged.noise().exp()
    start_SL = old_SL + ragged.noise(0.6)
    theirs_SL = start_SL.clone().requires_grad_()
    # dual clip is on by default there: a bound that nothing reaches disables it
    theirs, figures = algos.get_policy_loss_fn({"clip": "vanilla"}.get(kind, kind))(
        old_SL,
        theirs_SL,
        advantages_SL,
        ragged.mask_SL,
        MODES[aggregation],
        actor(algos, low, high, dual or 1e9),
        weights_SL,
    )
    theirs.backward()
    ours_N = ragged.flat(start_SL).requires_grad_()
    old_N, advantages_N = ragged.flat(old_SL), ragged.flat(advantages_SL)
    loss_N, clipped_N = policy_loss(kind, ours_N, old_N, advantages_N, ragged.lengths_S, Clip(low, high, dual))
    ours = weighted(loss_N * ragged.flat(weights_SL), ragged.lengths_S, aggregation)
    ours.backward()
    agree(ours, theirs)
    agree(ours_N.grad, ragged.flat(theirs_SL.grad))
    assert theirs_SL.grad.mul(1 - ragged.mask_SL).abs().max() == 0
    if dual is None:
        agree(clipped_N.double().mean(), figures["actor/pg_clipfrac"])
    assert 0 < clipped_N.sum() < len(clipped_N) or len(clipped_N) < 12 or high > 1


@pytest.mark.parametrize(
    ("kind", "low", "high", "aggregation"),
    [
        ("sapo", 0.2, 0.2, "sequence_mean"),
        ("gmpo", 0.4, 0.3, "sequence_mean"),
        ("dppo_tv", 0.1, 0.05, "token_mean"),
        ("dppo_tv", 0.1, 0.05, "sequence_sum"),
        ("dppo_kl", 0.02, 0.01, "token_mean"),
    ],
)
def test_verls_other_trust_regions(
    algos: Any, ragged: Any, agree: Any, kind: str, low: float, high: float, aggregation: str
) -> None:
    """Gradients; values too but for DPPO, whose loss verl writes with the log-prob in the place of the ratio."""
    old_SL, advantages_S = -ragged.noise().abs() - 0.01, ragged.noise()[:, 0]
    advantages_SL = advantages_S[:, None].expand_as(old_SL).clone()
    start_SL = (old_SL + ragged.noise(0.6)).clamp(max=-0.01)
    theirs_SL = start_SL.clone().requires_grad_()
    config = actor(algos, low, high, 3.0)
    theirs, figures = algos.get_policy_loss_fn({"gmpo": "geo_mean"}.get(kind, kind))(
        old_SL, theirs_SL, advantages_SL, ragged.mask_SL, MODES[aggregation], config, None
    )
    theirs.backward()
    ours_N = ragged.flat(start_SL).requires_grad_()
    clip = Clip(low, high, 3.0 if kind.startswith("dppo") else None, (config.tau_pos, config.tau_neg))
    advantages_N = ragged.flat(advantages_SL)
    loss_N, clipped_N = policy_loss(kind, ours_N, ragged.flat(old_SL), advantages_N, ragged.lengths_S, clip)  # type: ignore[arg-type]
    ours = weighted(loss_N, ragged.lengths_S, aggregation)
    ours.backward()
    agree(ours_N.grad, ragged.flat(theirs_SL.grad))
    if kind.startswith("dppo"):
        agree(clipped_N.double().mean(), figures["actor/pg_clipfrac"])
    else:
        agree(ours, theirs)


@pytest.mark.parametrize("aggregation", MODES)
@pytest.mark.parametrize("kind", ["clip", "gspo", "cispo"])
def test_verl_policy_loss_without_masked_tokens(
    algos: Any, ragged: Any, agree: Any, kind: str, aggregation: str
) -> None:
    """verl's trainer uses the mask of rejected tokens instead of the response mask."""
    old_SL, advantages_SL = -ragged.noise().abs(), ragged.noise()
    start_SL = old_SL + ragged.noise(0.3)
    kept_SL = ragged.mask_SL * (torch.rand(start_SL.shape, generator=ragged.generator) > 0.3)
    kept_SL[0, 0] = 1
    theirs_SL = start_SL.clone().requires_grad_()
    theirs, _ = algos.get_policy_loss_fn({"clip": "vanilla"}.get(kind, kind))(
        old_SL, theirs_SL, advantages_SL, kept_SL, MODES[aggregation], actor(algos, 0.1, 0.2, 1e9), None
    )
    theirs.backward()
    kept_N = ragged.flat(kept_SL).bool()
    ours_N = ragged.flat(start_SL).requires_grad_()
    old_N, advantages_N = ragged.flat(old_SL), ragged.flat(advantages_SL)
    loss_N, _ = policy_loss(kind, ours_N, old_N, advantages_N, ragged.lengths_S, Clip(0.1, 0.2), kept_N)
    weights_S = token_weights(kept_SL.sum(1).long(), aggregation, LONGEST).double()  # type: ignore[arg-type]
    ours = (spread(weights_S, ragged.lengths_S) * loss_N)[kept_N].sum()
    ours.backward()
    agree(ours, theirs)
    agree(ours_N.grad, ragged.flat(theirs_SL.grad))


@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "k3+"])
def test_verl_kl_penalty(algos: Any, ragged: Any, agree: Any, kind: str) -> None:
    start_SL, reference_SL = -ragged.noise().abs(), -ragged.noise().abs()
    theirs_SL = start_SL.clone().requires_grad_()
    theirs = algos.kl_penalty(theirs_SL, reference_SL, kind)
    (theirs * ragged.mask_SL).sum().backward()
    ours_N = ragged.flat(start_SL).requires_grad_()
    values_N = kl_estimate(ours_N, ragged.flat(reference_SL), kind)  # type: ignore[arg-type]
    values_N.sum().backward()
    agree(values_N, ragged.flat(theirs))
    agree(ours_N.grad, ragged.flat(theirs_SL.grad))


@pytest.mark.parametrize("aggregation", MODES)
def test_verl_value_loss(algos: Any, ragged: Any, agree: Any, aggregation: str) -> None:
    start_SL, old_SL, returns_SL = ragged.noise(), ragged.noise(), ragged.noise()
    theirs_SL = start_SL.clone().requires_grad_()
    theirs, share = algos.compute_value_loss(
        theirs_SL, returns_SL, old_SL, ragged.mask_SL, 0.5, MODES[aggregation], loss_scale_factor=LONGEST
    )
    theirs.backward()
    ours_N = ragged.flat(start_SL).requires_grad_()
    loss_N, clipped_N = clipped_value_loss(ours_N, ragged.flat(old_SL), ragged.flat(returns_SL), 0.5)
    ours = weighted(loss_N, ragged.lengths_S, aggregation)
    ours.backward()
    agree(ours, theirs)
    agree(ours_N.grad, ragged.flat(theirs_SL.grad))
    agree(clipped_N.double().mean(), share)


def test_verl_fully_masked_responses_count_nowhere(algos: Any, ragged: Any, agree: Any) -> None:
    mask_SL, loss_SL = ragged.mask_SL.clone(), ragged.noise()
    mask_SL[::3] = 0
    counted_S = mask_SL.sum(1).long()
    for aggregation, mode in MODES.items():
        theirs = algos.agg_loss(loss_SL, mask_SL, mode, loss_scale_factor=LONGEST)
        agree(weighted(loss_SL[mask_SL.bool()], counted_S, aggregation), theirs)


def test_verl_entropy(ragged: Any, agree: Any) -> None:
    from verl.utils.torch_functional import entropy_from_logits

    logits_NV = torch.randn(30, 11, generator=ragged.generator)
    rows_N = torch.arange(30)
    agree(token_logprobs(logits_NV, rows_N, rows_N % 11, 1.0)[1], entropy_from_logits(logits_NV))


def test_verls_clip_cov(algos: Any, ragged: Any, agree: Any) -> None:
    """With room for all tokens between the bounds, so that chance decides nothing; and without a clip on the way."""
    old_SL, advantages_SL = -ragged.noise().abs(), ragged.noise()
    start_SL = old_SL + ragged.noise(0.3)
    theirs_SL = start_SL.clone().requires_grad_()
    config = actor(algos, 0.999, 50.0, 1e9, clip_cov_ratio=1.0, clip_cov_lb=0.2, clip_cov_ub=1.0)
    theirs, figures = algos.get_policy_loss_fn("clip_cov")(
        old_SL, theirs_SL, advantages_SL, ragged.mask_SL, "token-mean", config, None
    )
    theirs.backward()
    ours_N, advantages_N = ragged.flat(start_SL).requires_grad_(), ragged.flat(advantages_SL)
    covariances_N = covariances(ours_N.detach(), advantages_N, torch.ones(len(ours_N), dtype=torch.bool))
    chosen_N = covariances_within(covariances_N, 1.0, 0.2, 1.0, torch.Generator())
    loss_N, _ = policy_loss("clip_cov", ours_N, ragged.flat(old_SL), advantages_N, ragged.lengths_S, Clip(0.999, 50.0))
    ours = loss_N.masked_fill(chosen_N, 0.0).mean()
    ours.backward()
    agree(ours, theirs)
    agree(ours_N.grad, ragged.flat(theirs_SL.grad))
    agree(chosen_N.double().mean(), figures["actor/pg_clipfrac"])


@pytest.mark.parametrize("share", [0.05, 0.4])
def test_verls_kl_cov(algos: Any, ragged: Any, agree: Any, share: float) -> None:
    old_SL, advantages_SL = -ragged.noise().abs(), ragged.noise()
    start_SL = old_SL + ragged.noise(0.3)
    theirs_SL = start_SL.clone().requires_grad_()
    config = actor(algos, 0.2, 0.2, 1e9, kl_cov_ratio=share, ppo_kl_coef=0.7)
    theirs, _ = algos.get_policy_loss_fn("kl_cov")(
        old_SL, theirs_SL, advantages_SL, ragged.mask_SL, "token-mean", config, None
    )
    theirs.backward()
    ours_N, advantages_N, old_N = (ragged.flat(values_SL) for values_SL in (start_SL, advantages_SL, old_SL))
    ours_N.requires_grad_()
    covariances_N = covariances(ours_N.detach(), advantages_N, torch.ones(len(ours_N), dtype=torch.bool))
    held_N = highest_covariances(covariances_N, share)
    loss_N, _ = policy_loss("kl_cov", ours_N, old_N, advantages_N, ragged.lengths_S, Clip(0.2, 0.2))
    ours = (loss_N + 0.7 * held_N * (ours_N - old_N).abs()).mean()
    ours.backward()
    agree(ours, theirs)
    agree(ours_N.grad, ragged.flat(theirs_SL.grad))


def test_forward_kl_over_a_teachers_tokens(agree: Any, ragged: Any) -> None:
    """verl drops the rest of both models, so its loss is ours without the bin's term."""
    from verl.trainer.distillation.fsdp.losses import compute_forward_kl_topk
    from verl.workers.config import DistillationConfig, DistillationLossConfig

    tokens = int(ragged.mask_SL.sum())
    policy_NV, teacher_NV = torch.randn(2, tokens, 50, generator=ragged.generator).mul(2)
    teacher_NK, ids_NK = teacher_NV.log_softmax(-1).topk(8)
    loss = DistillationLossConfig(
        loss_mode="forward_kl_topk", topk=8, log_prob_min_clamp=None, use_policy_gradient=False
    )
    theirs = compute_forward_kl_topk(
        policy_NV[None], *(torch.nested.nested_tensor([each], layout=torch.jagged) for each in (teacher_NK, ids_NK)),
        DistillationConfig(distillation_loss=loss), "thd",
    )  # fmt: skip
    policy_NK = policy_NV.log_softmax(-1).gather(1, ids_NK)
    rest_N, of_policy_N = (1 - each.exp().sum(-1) for each in (teacher_NK, policy_NK))
    found_N = teacher_divergence("forward_kl", policy_NK, teacher_NK) - rest_N * (rest_N / of_policy_N).log()
    for ours, name in (
        (found_N, "distillation_losses"),
        (1 - rest_N, "teacher_mass"),
        (1 - of_policy_N, "student_mass"),
    ):
        agree(ours, theirs[name][0])
