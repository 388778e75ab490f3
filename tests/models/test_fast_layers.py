"""Layers whose class was exchanged against those they were."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from mathrl.models import linear
from mathrl.models.linear import HalfLinear, use_half_products
from mathrl.models.logprobs import response_logprobs
from mathrl.models.norm import FastRMSNorm, FusedRMSNorm, use_fast_norms, use_fused_norms
from mathrl.models.packing import Group
from mathrl.models.shapes import ModelShape
from mathrl.planning import run_time

GROUPS = [Group([5, 6, 7], [[8, 9, 10], [11, 12]]), Group([13], [[14, 15, 16, 17]])]


def gradient(model: Any) -> torch.Tensor:
    model.zero_grad()
    response_logprobs(model, GROUPS)[0].sum().backward()
    return torch.cat([weight.grad.flatten() for weight in model.parameters()])


def test_norms_equal_the_original_forward_and_backward(network: Callable[..., Any]) -> None:
    model, random = network(), torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.copy_(torch.rand(len(weight), generator=random) + 0.5)
    before, names = gradient(model), list(model.state_dict())
    use_fast_norms(model)
    assert sum(isinstance(module, FastRMSNorm) for module in model.modules()) == 5
    after = gradient(model)
    assert before.abs().max() > 1 and torch.allclose(after, before, atol=1e-3, rtol=1e-3)
    assert list(model.state_dict()) == names


def test_other_norms_stay_as_they_are() -> None:
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
    from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

    norms = torch.nn.Sequential(GemmaRMSNorm(32), Qwen2RMSNorm(32))
    use_fast_norms(norms)
    assert [type(norm) for norm in norms] == [GemmaRMSNorm, FastRMSNorm]


def test_norms_are_told_apart_where_zero_3_has_divided_their_weights() -> None:
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
    from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

    norms = torch.nn.Sequential(GemmaRMSNorm(32), Qwen2RMSNorm(32)).to(torch.bfloat16)
    for weight in norms.parameters():  # as deepspeed.zero.Init leaves them
        weight.ds_numel, weight.data = weight.numel(), torch.empty(0, dtype=torch.bfloat16)  # type: ignore[attr-defined]
    use_fused_norms(norms)
    assert [type(norm) for norm in norms] == [GemmaRMSNorm, FusedRMSNorm]
    assert all(len(weight) == 0 for weight in norms.parameters())


def test_layers_with_one_input_are_one_product_and_equal_single_ones(network: Callable[..., Any]) -> None:
    model = network()
    single = copy.deepcopy(model)
    use_half_products(model)
    use_half_products(single)
    for module in single.modules():
        if isinstance(module, HalfLinear):
            module.__dict__["_product"] = type(module.__dict__["_product"])([module], torch.bfloat16)
            module.__dict__["_place"] = 0
    layer = model.model.layers[0]
    attention, mlp = layer.self_attn, layer.mlp
    some = (attention.q_proj, attention.v_proj, mlp.up_proj, mlp.down_proj)
    assert [len(each.__dict__["_product"].layers) for each in some] == [3, 3, 2, 1]
    assert torch.equal(response_logprobs(model, GROUPS)[0], response_logprobs(single, GROUPS)[0])
    # The input's gradient is summed before it is rounded, not after.
    one, three = gradient(model), gradient(single)
    assert torch.nn.functional.cosine_similarity(one, three, dim=0) > 0.9999


@pytest.mark.parametrize("own", [True, False])
def test_without_bfloat16_instructions_products_are_of_the_same_values_rounded_once(
    network: Callable[..., Any], own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the layers, forward and backward, and of torch's Muon."""
    dtypes: set[torch.dtype] = set()

    class Seen(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func in linear._PRODUCTS and len(args) == 3:  # addmm, which only Muon calls
                dtypes.add(args[0].dtype)
            return func(*args, **(kwargs or {}))

    def update(has_products: bool) -> tuple[torch.Tensor, torch.Tensor]:
        monkeypatch.setattr(linear, "_has_products", lambda device, dtype: has_products)
        model = network()
        use_half_products(model)
        before = gradient(model)
        matrices = [weight for weight in model.model.layers.parameters() if weight.ndim == 2]
        with Seen(), linear.FastProducts():
            torch.optim.Muon(matrices, lr=0.1).step()
        return before, torch.cat([weight.detach().flatten() for weight in matrices])

    found, expected = update(own), update(True)
    assert dtypes == ({torch.bfloat16} if own else {torch.bfloat16, torch.float32})
    for values, others in zip(found, expected, strict=True):
        assert (values - others).norm() < 0.01 * others.norm()


def test_a_plans_rate_is_that_of_the_products_that_training_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 products that PyTorch computes one by one are slow, and none is computed so."""
    seen: set[torch.dtype] = set()

    class Seen(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if "matmul" in func.__name__:
                seen.add(args[0].dtype)
            return func(*args, **(kwargs or {}))

    monkeypatch.setattr(linear, "_has_products", lambda device, dtype: False)
    monkeypatch.setattr(run_time, "SECONDS", 0.0)
    shape = ModelShape(8, 16, 1, 1, 1, 8, 32, 1000, 500, 256, True)
    with Seen():
        assert run_time.product_rate(shape, torch.device("cpu"), torch.bfloat16) > 0
    assert seen == {torch.float32}


def test_a_copy_has_products_of_its_own(network: Callable[..., Any]) -> None:
    model = network()
    use_half_products(model)
    other = copy.deepcopy(model)
    attention = other.model.layers[0].self_attn
    shared = attention.q_proj.__dict__["_product"]
    assert (
        shared
        is attention.k_proj.__dict__["_product"]
        is not model.model.layers[0].self_attn.q_proj.__dict__["_product"]
    )
    assert shared.layers[1] is attention.k_proj
    before = response_logprobs(model, GROUPS)[0].detach()
    with torch.no_grad():
        attention.k_proj.weight.mul_(3)
    assert torch.equal(response_logprobs(model, GROUPS)[0], before)
    assert not torch.allclose(response_logprobs(other, GROUPS)[0], before, atol=1e-2)
