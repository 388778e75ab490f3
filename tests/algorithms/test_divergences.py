"""The divergences from a teacher: cases by hand, torch's KL over a whole vocabulary, and what must hold of them."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import kl_div

from mathrl.algorithms.divergences import LEAST_REST, Divergence, Rest, renormalise, teacher_divergence, with_rest

KINDS: list[Divergence] = ["forward_kl", "reverse_kl", "jsd"]
RESTS: list[Rest] = ["bin", "renormalise"]
V = 13


def logprobs(seed: int, rows: int = 6, scale: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(rows, V, generator=generator, dtype=torch.float64)).log_softmax(-1)


def whole_vocabulary(kind: Divergence, policy_NV: Tensor, teacher_NV: Tensor, beta: float) -> Tensor:
    """By torch's kl_div, whose first argument is the distribution that the second is compared with."""
    if kind == "forward_kl":
        return kl_div(policy_NV, teacher_NV, reduction="none", log_target=True).sum(-1)
    if kind == "reverse_kl":
        return kl_div(teacher_NV, policy_NV, reduction="none", log_target=True).sum(-1)
    mixture_NV = (beta * teacher_NV.exp() + (1 - beta) * policy_NV.exp()).log()
    kls = [kl_div(mixture_NV, each, reduction="none", log_target=True).sum(-1) for each in (teacher_NV, policy_NV)]
    return beta * kls[0] + (1 - beta) * kls[1]


def top(policy_NV: Tensor, teacher_NV: Tensor, most: int) -> tuple[Tensor, Tensor]:
    teacher_NK, ids_NK = teacher_NV.topk(most)
    return policy_NV.gather(1, ids_NK), teacher_NK


def test_by_hand() -> None:
    """The teacher has 1/2, 1/4 and elsewhere 1/4; the policy 1/4, 1/8 and elsewhere 5/8."""
    p, q = torch.tensor([[0.5, 0.25]]).log(), torch.tensor([[0.25, 0.125]]).log()
    ln2, ratio = math.log(2), math.log(2.5)
    assert float(teacher_divergence("forward_kl", q, p)) == pytest.approx(0.75 * ln2 - 0.25 * ratio)
    assert float(teacher_divergence("reverse_kl", q, p)) == pytest.approx(-0.375 * ln2 + 0.625 * ratio)
    mixture = (0.4, 0.2, 0.4)  # beta 0.6
    of_p = sum(a * math.log(a / m) for a, m in zip((0.5, 0.25, 0.25), mixture, strict=True))
    of_q = sum(a * math.log(a / m) for a, m in zip((0.25, 0.125, 0.625), mixture, strict=True))
    assert float(teacher_divergence("jsd", q, p, beta=0.6)) == pytest.approx(0.6 * of_p + 0.4 * of_q)
    other = torch.tensor([[0.25, 0.25]]).log()  # (2/3, 1/3) against (1/2, 1/2)
    expected = 2 / 3 * math.log(4 / 3) + 1 / 3 * math.log(2 / 3)
    assert float(teacher_divergence("forward_kl", other, p, "renormalise")) == pytest.approx(expected)


@pytest.mark.parametrize("rest", RESTS)
@pytest.mark.parametrize("kind", KINDS)
def test_of_all_tokens_it_is_the_kl_of_the_vocabulary(kind: Divergence, rest: Rest) -> None:
    results = []
    for compute in (
        lambda policy, teacher: teacher_divergence(kind, *top(policy, teacher, V), rest, 0.3),
        lambda policy, teacher: whole_vocabulary(kind, policy, teacher, 0.3),
    ):
        logits = logprobs(1).requires_grad_()
        loss_N = compute(logits.log_softmax(-1), logprobs(2))
        (loss_N * torch.linspace(-1, 2, len(loss_N))).sum().backward()
        results.append((loss_N.detach(), logits.grad))
    for found, expected in zip(*results, strict=True):
        assert expected is not None and expected.abs().max() > 0.1
        assert torch.allclose(found, expected, atol=3e-6)


@pytest.mark.parametrize("rest", RESTS)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_the_values(kind: Divergence, rest: Rest) -> None:
    teacher_NV = logprobs(4, rows=3)

    def loss(logits: Tensor) -> Tensor:
        return teacher_divergence(kind, *top(logits.log_softmax(-1), teacher_NV, 4), rest, 0.7)

    assert torch.autograd.gradcheck(loss, (logprobs(3, rows=3).requires_grad_(),))


@pytest.mark.parametrize("kind", KINDS)
def test_with_the_bin_more_candidates_see_more_and_never_too_much(kind: Divergence) -> None:
    """Joining tokens in one bin can only hide a difference (the data-processing inequality)."""
    policy, teacher = logprobs(5, rows=50), logprobs(6, rows=50)
    whole = whole_vocabulary(kind, policy, teacher, 0.5)
    values = [teacher_divergence(kind, *top(policy, teacher, most)) for most in (1, 2, 5, V)]
    for less, more in zip(values, [*values[1:], whole], strict=True):
        assert (less >= 0).all() and (less <= more + 1e-6).all()
    assert (values[0] < whole - 0.01).any()
    if kind == "jsd":
        assert (whole <= math.log(2)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_bin_sees_a_policy_that_leaves_the_candidates(kind: Divergence) -> None:
    """Half of the probability of each candidate has gone to tokens that the teacher does not name."""
    teacher = logprobs(7)
    _, teacher_NK = top(teacher, teacher, 4)
    same, gone = teacher_NK.clone(), teacher_NK - math.log(2)
    assert teacher_divergence(kind, same, teacher_NK).abs().max() < 1e-12
    assert (teacher_divergence(kind, gone, teacher_NK) > 0.02).all()
    for policy in (same, gone):
        assert teacher_divergence(kind, policy, teacher_NK, "renormalise").abs().max() < 1e-12


@pytest.mark.parametrize("rest", RESTS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_probability_is_lost_and_no_order_counts(kind: Divergence, rest: Rest) -> None:
    policy, teacher = top(logprobs(8), logprobs(9), 5)
    for close in (with_rest, renormalise):
        assert torch.allclose(close(policy).exp().sum(-1), torch.ones(len(policy), dtype=torch.float64))
    order = torch.tensor([3, 0, 4, 1, 2])
    values = [
        teacher_divergence(kind, *pair, rest) for pair in ((policy, teacher), (policy[:, order], teacher[:, order]))
    ]
    assert torch.allclose(*values)


@pytest.mark.parametrize("beta", [1e-4, 1 - 1e-4])
def test_the_ends_of_the_jsd_are_the_two_kls(beta: float) -> None:
    policy, teacher = top(logprobs(10), logprobs(11), 5)
    kind, share = ("forward_kl", beta) if beta < 0.5 else ("reverse_kl", 1 - beta)
    expected = teacher_divergence(kind, policy, teacher)  # type: ignore[arg-type]
    assert torch.allclose(teacher_divergence("jsd", policy, teacher, beta=beta) / share, expected, rtol=1e-2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("swapped", [False, True])
def test_what_one_model_excludes_costs_a_finite_amount(kind: Divergence, swapped: bool) -> None:
    """In float32, where probabilities sum to 1 and a little more: the rest is never below LEAST_REST."""
    sure = torch.tensor([[0.0, -torch.inf, -torch.inf]])
    unsure = torch.tensor([[0.2, 0.3, 0.5]]).log()
    models: list[Any] = [sure, unsure]
    policy, teacher = models[::-1] if swapped else models
    policy = policy.clone().requires_grad_()
    loss_N = teacher_divergence(kind, policy, teacher)
    loss_N.sum().backward()
    assert policy.grad is not None and policy.grad.isfinite().all() and 0.1 < float(loss_N.detach()) < 60
    assert with_rest(torch.tensor([[1e-9, -30.0]])).exp()[0, -1] == pytest.approx(LEAST_REST)
