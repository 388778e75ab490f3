"""Each method's own loss against its gradient coefficient, token by token, on a tiny model."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mathrl.algorithms.coefficients import COEFFICIENTS, Sampled
from mathrl.algorithms.kl import kl_estimate
from mathrl.algorithms.policy_loss import policy_loss
from mathrl.models.base import character_tokenizer, fresh_network
from mathrl.models.logprobs import response_logprobs
from mathrl.models.packing import Group
from mathrl.params.run import FreshModel

torch.set_num_threads(1)
BASE = FreshModel(hidden_size=8, intermediate_size=16, layers=1, heads=2, kv_heads=1, alphabet="arithmetic")
# Pairs for DPO: preferred, rejected.
GROUPS = [Group((5, 6, 7), ((8, 9, 2), (10, 2))), Group((11, 4), ((7, 2), (3, 3, 9, 2)))]
LENGTHS = torch.tensor([3, 2, 2, 4])
Loss = Callable[[Tensor, Sampled], Tensor]


def by_policy_loss(kind: str) -> Loss:
    def loss(logprobs_N: Tensor, given: Sampled) -> Tensor:
        return policy_loss(
            kind,
            logprobs_N,
            given.old_N,
            given.advantages_N,
            given.lengths_S,
            given.clip_low,  # type: ignore[arg-type]
            given.clip_high,
            given.dual_clip,
        )[0].sum()

    return loss


def by_kl(kind: str) -> Loss:
    return lambda logprobs_N, given: given.beta * kl_estimate(logprobs_N, given.reference_N, kind).sum()  # type: ignore[arg-type]


def dpo_loss(logprobs_N: Tensor, given: Sampled) -> Tensor:
    """Rafailov et al. (arXiv:2305.18290), equation 7, response by response."""
    total = torch.zeros(())
    ratios = [part.sum() for part in torch.split(logprobs_N - given.reference_N, given.lengths_S.tolist())]
    for preferred, rejected in zip(ratios[::2], ratios[1::2], strict=True):
        total = total - torch.nn.functional.logsigmoid(given.beta * (preferred - rejected))
    return total


def cross_entropy(logprobs_N: Tensor, given: Sampled) -> Tensor:
    return -logprobs_N.sum()


def of_correct(logprobs_N: Tensor, given: Sampled) -> Tensor:
    parts = torch.split(logprobs_N, given.lengths_S.tolist())
    return -torch.stack([part.sum() for part, right in zip(parts, given.correct_S, strict=True) if right]).sum()


def grpo_loss(logprobs_N: Tensor, given: Sampled) -> Tensor:
    return by_policy_loss("clip")(logprobs_N, given) + by_kl("k3")(logprobs_N, given)


LOSSES: dict[str, Loss] = {
    "sft": cross_entropy, "rft": of_correct, "online_rft": of_correct, "dpo": dpo_loss,
    "reinforce": by_policy_loss("reinforce"), "ppo": by_policy_loss("clip"), "grpo": grpo_loss,
    "gspo": by_policy_loss("gspo"), "cispo": by_policy_loss("cispo"), "kl_k1": by_kl("k1"),
    "kl_k2": by_kl("k2"), "kl_k3": by_kl("k3"), "kl_k3+": by_kl("k3+"),
}  # fmt: skip


@pytest.fixture(scope="module")
def model() -> Any:
    made = fresh_network(BASE, character_tokenizer(BASE), seed=1).eval()
    for weight in made.parameters():
        weight.data.mul_(5)
    return made


@pytest.fixture(scope="module")
def slopes_NW(model: Any) -> Tensor:
    """∇ log policy of every token, one backward pass each, in the weights W."""
    logprobs_N, _ = response_logprobs(model, GROUPS)
    weights = list(model.parameters())
    return torch.stack(
        [torch.cat([g.flatten() for g in torch.autograd.grad(each, weights, retain_graph=True)]) for each in logprobs_N]
    )


def sampled(logprobs_N: Tensor, spread: float, **options: Any) -> Sampled:
    """Old and reference log-probs around the policy's; some ratios are outside the clip on either side."""
    generator = torch.Generator().manual_seed(3)
    moves = [torch.randn(len(logprobs_N), generator=generator) * spread for _ in range(2)]
    advantages_S = torch.tensor([1.2, -0.7, 0.9, -1.4])
    return Sampled(
        LENGTHS,
        logprobs_N.detach(),
        logprobs_N.detach() + moves[0],
        logprobs_N.detach() + moves[1],
        torch.repeat_interleave(advantages_S, LENGTHS),
        torch.tensor([1, 0, 1, 0]),
        **options,
    )


@pytest.mark.parametrize("options", [{}, {"beta": 0.5, "clip_low": 0.1, "clip_high": 0.1}, {"dual_clip": 1.1}])
@pytest.mark.parametrize("method", COEFFICIENTS)
def test_the_gradient_is_the_sum_of_coefficients_times_slopes(
    model: Any, slopes_NW: Tensor, method: str, options: dict[str, Any]
) -> None:
    logprobs_N, _ = response_logprobs(model, GROUPS)
    # A response's mean ratio varies less than its tokens'.
    given = sampled(logprobs_N, 1.2 if method == "gspo" else 0.4, **options)
    loss = LOSSES[method](logprobs_N, given)
    gradient_W = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
    coefficients_N = COEFFICIENTS[method](given)
    expected_W = -(coefficients_N[:, None] * slopes_NW).sum(0)
    scale = float(expected_W.norm())
    # Sums of eleven float32 gradients in another order.
    assert scale > 1e-3 and float((gradient_W - expected_W).norm()) < 1e-5 * scale
    for wrong_N in (coefficients_N + 0.01, coefficients_N * 1.01):
        assert float((gradient_W + (wrong_N[:, None] * slopes_NW).sum(0)).norm()) > 1e-3 * scale
    # A method's clip really clips here, and one that clips no token differs from one that does.
    if method in ("ppo", "grpo", "gspo"):
        from_clip_N = COEFFICIENTS["gspo" if method == "gspo" else "ppo"](given)
        assert 0 < int((from_clip_N == 0).sum()) < len(from_clip_N)


def test_the_bounds_themselves_are_inside() -> None:
    """Ratios of exactly 1.5, 0.5 and 2: the gradient there is that of the free branch."""
    ratios, advantages_N = torch.tensor([1.5, 0.5, 2.0]), torch.tensor([1.0, -1.0, -1.0])
    zero_N = torch.zeros(3)
    given = Sampled(torch.tensor([3]), ratios.log(), zero_N, zero_N, advantages_N, torch.ones(1),
                    clip_low=0.5, clip_high=0.5, dual_clip=2.0)  # fmt: skip
    assert torch.equal(ratios.log().exp(), ratios)
    assert torch.equal(COEFFICIENTS["ppo"](given), ratios * advantages_N)
    # A dual clip below the upper clip bounds negative advantages alone.
    one_N, half_N = torch.ones(1), torch.full((1,), 0.5)
    given = Sampled(one_N.long(), torch.tensor([1.25]).log(), 0 * one_N, 0 * one_N, half_N, one_N, dual_clip=1.1)
    assert COEFFICIENTS["ppo"](given).item() == pytest.approx(0.625)
    assert COEFFICIENTS["rft"](given).dtype == torch.float32
    whole = Sampled(one_N.long(), 0 * one_N, 0 * one_N, 0 * one_N, half_N, torch.tensor([True]))
    assert COEFFICIENTS["online_rft"](whole).dtype == torch.float32


def test_at_ratio_one_they_are_the_papers() -> None:
    """DeepSeekMath, appendix A.1."""
    logprobs_N = torch.linspace(-2, -0.1, 11)
    given = sampled(logprobs_N, 0.0, beta=0.04)
    one_N, advantages_N = torch.ones(11), given.advantages_N
    for method in ("ppo", "grpo", "gspo", "cispo", "reinforce"):
        assert torch.allclose(COEFFICIENTS[method](given), advantages_N)  # here reference = policy too
    assert torch.equal(COEFFICIENTS["sft"](given), one_N)
    assert COEFFICIENTS["rft"](given).tolist() == [1, 1, 1, 0, 0, 1, 1, 0, 0, 0, 0]
    apart = Sampled(LENGTHS, logprobs_N, logprobs_N, logprobs_N - 0.3, advantages_N, given.correct_S, beta=0.04)
    expected_N = advantages_N + 0.04 * (torch.exp(torch.tensor(-0.3)) - 1)
    assert torch.allclose(COEFFICIENTS["grpo"](apart), expected_N)


def test_a_far_reference_has_a_bounded_pull() -> None:
    """k3 is kept within e^20, with no gradient beyond, in loss and coefficient alike."""
    logprobs_N = torch.tensor([-30.0, -1.0, -21.0], requires_grad=True)
    reference_N = torch.tensor([-1.0, -25.0, -1.0])
    loss = kl_estimate(logprobs_N, reference_N, "k3").sum()
    (gradient_N,) = torch.autograd.grad(loss, logprobs_N)
    zero_N = torch.zeros(3)
    given = Sampled(torch.tensor([3]), logprobs_N.detach(), zero_N, reference_N, zero_N, torch.ones(1), beta=1.0)
    assert torch.allclose(gradient_N, -COEFFICIENTS["kl_k3"](given)) and torch.isfinite(loss)
