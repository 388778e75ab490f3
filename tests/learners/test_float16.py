"""Training in float16: its products, the scaled loss that keeps small gradients, and what an overflow does."""

import math
from typing import Any

import torch

from mathrl.learners.checkpoint import Checkpoint
from mathrl.learners.torch_learner import LossScale, TorchLearner
from mathrl.models.linear import HalfLinear, use_half_products
from mathrl.models.load import precision_of
from mathrl.params.optimizer import AdamW

PARAMS = AdamW(lr=0.01, warmup_steps=0, schedule="constant", clip_norm=None)
IDS = torch.arange(4, 10).view(1, 6)


def model(small: Any, dtype: torch.dtype | None = torch.float16) -> Any:
    made = small.policy()[0]
    if dtype is not None:
        use_half_products(made, dtype)
    return made


def gradient(policy: TorchLearner, factor: float) -> torch.Tensor:
    policy.flat.gradients.zero_()
    policy.backward(factor * policy.model(input_ids=IDS, labels=IDS).loss)
    policy.reduce()
    return policy.flat.gradients.clone()


def test_products_round_to_eleven_bits(small: Any) -> None:
    """By hand: 1 + 2^-11 rounds to 1 in float16, and 1 + 2^-10 stays; bfloat16 has neither."""
    layer = next(each for each in model(small).modules() if isinstance(each, HalfLinear))
    assert layer.product_dtype == torch.float16
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[0, 0], layer.weight[1, 0] = 1 + 2**-11, 1 + 2**-10
        row = torch.zeros(1, layer.in_features)
        row[0, 0] = 1
        out = layer(row)
    product = layer.__dict__["_product"]
    product.outputs, product.input = [], None
    assert out[0, :2].tolist() == [1.0, 1 + 2**-10]
    assert [precision_of(model(small, dtype)) for dtype in (torch.float16, torch.bfloat16, None)] == [
        "float16", "bfloat16", "float32",
    ]  # fmt: skip


def test_the_scaled_loss_keeps_gradients_that_float16_has_not(small: Any) -> None:
    exact = gradient(TorchLearner(model(small, None), PARAMS, 9), 1e-6)
    half, plain = TorchLearner(model(small), PARAMS, 9), TorchLearner(model(small), PARAMS, 9)
    plain.loss_scale = LossScale(1.0)

    def error(policy: TorchLearner) -> float:
        return float((gradient(policy, 1e-6) - exact).norm() / exact.norm())

    assert error(half) < 0.01 < 0.1 < error(plain)


def test_an_overflow_halves_the_scale_and_is_not_a_bad_update(small: Any) -> None:
    policy = TorchLearner(model(small), PARAMS, 9)
    assert policy.loss_scale == LossScale(65536.0)
    policy.loss_scale = LossScale(2.0**100)
    before = policy.flat.weights.clone()
    gradient(policy, 1.0)
    policy.update(1.0)
    assert torch.equal(policy.flat.weights, before) and policy.loss_scale == LossScale(2.0**99)
    assert policy.counts == {"updates": 1, "bad": 0} and policy.factor == 0
    policy.update(math.nan)  # a loss that is none is no overflow
    policy.loss_scale = LossScale(1.0)
    policy.flat.gradients[0] = math.inf
    policy.update(1.0)
    assert policy.counts == {"updates": 3, "bad": 2} and policy.loss_scale.value == 1.0
    policy.loss_scale = LossScale(2.0)
    policy.flat.gradients[0] = math.inf
    policy.update(1.0)
    assert policy.counts["bad"] == 2 and policy.loss_scale == LossScale(1.0), "a smaller scale is left to try"
    gradient(policy, 1e-3)
    policy.update(1.0)
    assert policy.counts["updates"] == 5 and policy.loss_scale == LossScale(1.0, good=1)
    policy.loss_scale.value = 2.0**130  # more than float32 holds
    tensors = {name: value.clone() for name, value in policy.tensors().items()}
    again = TorchLearner(model(small), PARAMS, 9)
    again.load(Checkpoint(5, tensors, {}), policy.counts)
    assert again.loss_scale == policy.loss_scale
