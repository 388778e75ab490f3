"""KL estimators: values, gradients, bias; and the controller."""

import math
from collections.abc import Callable

import pytest
import torch

from mathrl.algorithms.kl import adapted_kl_coef, kl_estimate, unbiased_kl

KINDS = ("k1", "k2", "k3", "k3+")


def test_estimators_by_hand() -> None:
    logprobs, reference = torch.tensor([math.log(0.5)]), torch.tensor([math.log(0.25)])
    expected = {"k1": math.log(2), "k2": math.log(2) ** 2 / 2, "k3": 0.5 + math.log(2) - 1}
    expected["k3+"] = expected["k3"]
    for kind, value in expected.items():
        assert kl_estimate(logprobs, reference, kind).item() == pytest.approx(value)  # type: ignore[arg-type]
    # The other way round: d = -ln 2.
    assert kl_estimate(reference, logprobs, "k1").item() == pytest.approx(-math.log(2))
    assert kl_estimate(reference, logprobs, "k3").item() == pytest.approx(2 - math.log(2) - 1)


def test_gradients_by_hand() -> None:
    # d = ln 2: dk1 = 1, dk2 = d, dk3 = 1 - exp(-d) = 1/2, dk3+ = dk2.
    for kind, slope in (("k1", 1.0), ("k2", math.log(2)), ("k3", 0.5), ("k3+", math.log(2))):
        logprobs = torch.tensor([math.log(0.5)], requires_grad=True)
        kl_estimate(logprobs, torch.tensor([math.log(0.25)]), kind).sum().backward()  # type: ignore[arg-type]
        assert logprobs.grad.item() == pytest.approx(slope), kind  # type: ignore[union-attr]


def test_the_unbiased_kl_by_hand() -> None:
    """d = ln 2 and r = 4: r (1/2 + ln 2 - 1); its gradient is r d, since that of r k3 is r k3 + r (1 - exp(-d))."""
    logprobs = torch.tensor([math.log(0.5)], requires_grad=True)
    found = unbiased_kl(logprobs, torch.tensor([math.log(0.25)]), torch.tensor([math.log(0.125)]))
    assert found.item() == pytest.approx(4 * (math.log(2) - 0.5))
    found.sum().backward()
    assert logprobs.grad.item() == pytest.approx(4 * math.log(2))  # type: ignore[union-attr]
    far = unbiased_kl(torch.tensor([0.0]), torch.tensor([-1.0]), torch.tensor([-90.0]))
    assert far.item() == pytest.approx(math.exp(20) * (math.exp(-1)), rel=1e-5), "the ratio is at most e^20"


def test_only_the_unbiased_kl_has_the_kls_gradient_off_policy() -> None:
    """Tokens of an older policy; the expectation over them taken exactly."""
    logits = torch.tensor([0.3, -0.5, 1.1], dtype=torch.float64)
    reference = torch.tensor([0.9, 0.2, -0.4], dtype=torch.float64).log_softmax(-1)
    old = torch.tensor([-0.4, 0.5, 0.2], dtype=torch.float64).log_softmax(-1)

    def gradient(value: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        z = logits.clone().requires_grad_()
        value(z.log_softmax(-1)).backward()
        assert z.grad is not None
        return z.grad

    exact = gradient(lambda logp: (logp.exp() * (logp - reference)).sum())
    assert torch.allclose(gradient(lambda logp: (old.exp() * unbiased_kl(logp, reference, old)).sum()), exact)
    for kind in ("k2", "k3"):
        wrong = gradient(lambda logp: (old.exp() * kl_estimate(logp, reference, kind)).sum())  # type: ignore[arg-type] # noqa: B023
        assert not torch.allclose(wrong, exact, rtol=0.05), kind


def test_k3_is_bounded_at_a_gap_of_20() -> None:
    far = kl_estimate(torch.tensor([-90.0, 90.0]), torch.zeros(2), "k3")
    assert far[0].item() == pytest.approx(math.expm1(20) - 20, rel=1e-5)
    assert far[1].item() == pytest.approx(19.0)
    near = kl_estimate(torch.tensor([-19.0]), torch.zeros(1), "k3")
    assert near.item() == pytest.approx(math.expm1(19) - 19, rel=1e-5)


def test_the_controller_by_hand() -> None:
    # The golden value of verl and OpenRLHF: the error is clipped at 0.2, 0.2 * 256 / 10,000 = 0.00512.
    assert adapted_kl_coef(0.1, 12.0, 256, 6.0, 10_000) == pytest.approx(0.100512, rel=1e-12)
    assert adapted_kl_coef(0.1, 6.6, 256, 6.0, 10_000) == pytest.approx(0.1 * (1 + 0.1 * 0.0256))
    assert adapted_kl_coef(0.1, 5.4, 256, 6.0, 10_000) == pytest.approx(0.1 * (1 - 0.1 * 0.0256))
    assert adapted_kl_coef(0.1, 0.0, 256, 6.0, 10_000) == pytest.approx(0.1 * (1 - 0.2 * 0.0256))
    assert adapted_kl_coef(0.1, 6.0, 256, 6.0, 10_000) == 0.1
