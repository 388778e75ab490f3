"""A bfloat16 model, as a GPU trains it, over float32 weights that the optimizer steps."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from mathrl.learners.checkpoint import Checkpoint
from mathrl.learners.distributed import Ranks
from mathrl.learners.learner import make_learner
from mathrl.learners.optimizer import FlatParameters
from mathrl.models.logprobs import prepare_language_model, response_logprobs
from mathrl.models.norm import FusedRMSNorm, use_fused_norms
from mathrl.models.prepared import compute_as
from mathrl.params.optimizer import AdamW, Muon
from tests.models.test_packing import random_groups

RANKS = Ranks(torch.device("cpu"))


def learner(model: Any, lr: float = 1e-3, kind: Any = "adamw", ema: float | None = None) -> Any:
    return make_learner(
        model, Muon(lr=lr, adamw_scale=0.05) if kind == "muon" else AdamW(lr=lr), 10, RANKS, name="rl", ema=ema
    )


def loss_of(model: Any, groups: Any) -> tuple[torch.Tensor, dict[str, Any]]:
    return -response_logprobs(model, groups)[0].sum() / 50, {}


def update(policy: Any, groups: Any) -> None:
    for micro, _ in policy.micro_batches([group.packed_tokens for group in groups], 30):
        policy.backward(policy.through_root(loss_of)(policy.model, [groups[i] for i in micro])[0])
    policy.update(0.0)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_updates_smaller_than_a_rounding_add_up(network: Callable[..., Any], kind: str) -> None:
    model, groups = network().to(torch.bfloat16), random_groups(1)
    start = copy.deepcopy(model)
    policy = learner(model, 2e-6, kind)
    assert policy.flat.weights.dtype == policy.flat.gradients.dtype == torch.float32
    before = policy.flat.weights.clone()
    for _ in range(3):
        update(policy, groups)
    moved = policy.flat.weights - before
    assert 0 < moved.abs().max() < 1e-4 and (moved != 0).float().mean() > 0.5
    same = [torch.equal(now, old) for now, old in zip(model.parameters(), start.parameters(), strict=True)]
    assert all(weight.dtype == torch.bfloat16 for weight in model.parameters())
    for name, weight in policy.flat.named.items():
        assert torch.equal(weight, policy.flat.masters[name].to(torch.bfloat16)), name
    assert sum(same) >= 3, "most weights of 0.1 do not move by 1e-6 in bfloat16"


def test_gradients_of_micro_batches_add_up_in_float32(network: Callable[..., Any]) -> None:
    model = network().to(torch.bfloat16)
    policy, groups = learner(model), random_groups(2)
    parts = []
    for group in groups:
        policy.flat.gradients.zero_()
        loss_of(model, [group])[0].backward()
        parts.append(policy.flat.gradients.clone())
    policy.flat.gradients.zero_()
    for group in groups:
        loss_of(model, [group])[0].backward()
    assert torch.equal(policy.flat.gradients, sum(parts[1:], parts[0]))
    rounded = policy.flat.gradients.to(torch.bfloat16).float()
    assert not torch.equal(rounded, policy.flat.gradients), "sums keep what bfloat16 would lose"


def test_gradients_of_a_weight_that_is_used_twice_add_up_in_float32() -> None:
    """As those of embeddings that are the head too; bfloat16 rounds 1 + 2^-10 to 1."""
    layer = torch.nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    flat = FlatParameters(layer)
    (layer.weight + 2.0**-10 * layer.weight).sum().backward()
    assert flat.gradients.tolist() == [1 + 2.0**-10]
    wide = FlatParameters(torch.nn.Linear(1, 1, dtype=torch.float64))
    assert wide.weights.dtype == wide.gradients.dtype == torch.float64, "nothing is rounded"


def test_averages_checkpoints_and_best_weights_are_float32(network: Callable[..., Any]) -> None:
    model, groups = network().to(torch.bfloat16), random_groups(3)
    policy = learner(model, 1e-4, ema=0.5)
    update(policy, groups)
    policy.keep_best()
    saved = {name: tensor.clone() for name, tensor in policy.tensors().items()}
    assert {name: tensor.dtype for name, tensor in saved.items()}["rl/weights"] == torch.float32
    again = learner(network().to(torch.bfloat16), 1e-4, ema=0.5)
    again.load(Checkpoint(1, saved, {}), policy.counts)
    for one in (policy, again):
        update(one, groups)
    assert torch.equal(policy.flat.weights, again.flat.weights), "resumed to the bit"
    trained = policy.flat.weights.clone()
    with policy.with_evaluated_weights():
        name = next(iter(policy.flat.named))
        assert not torch.equal(policy.flat.weights, trained)
        assert torch.equal(policy.flat.named[name], policy.flat.masters[name].to(torch.bfloat16))
    assert torch.equal(policy.flat.weights, trained)
    policy.finish()
    assert torch.equal(policy.flat.weights, saved["rl/best"])


def test_experts_are_trained_in_bfloat16_too() -> None:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(config).to(torch.bfloat16).eval()
    experts = [name for name, weight in model.named_parameters() if weight.dim() == 3]
    assert experts
    policy = learner(model, 1e-2)
    before = {name: policy.flat.masters[name].detach().clone() for name in experts}
    update(policy, random_groups(4))
    for name in experts:
        assert policy.flat.named[name].dtype == torch.bfloat16 and policy.flat.masters[name].dtype == torch.float32
        assert not torch.equal(policy.flat.masters[name], before[name]), name


def test_a_bfloat16_model_with_a_gpus_layout_is_near_the_float32_one(network: Callable[..., Any]) -> None:
    model, groups = network(), random_groups(5)
    exact = response_logprobs(model, groups)[0].detach()
    half = copy.deepcopy(model).to(torch.bfloat16)
    use_fused_norms(half)
    assert sum(isinstance(module, FusedRMSNorm) for module in half.modules()) == 5
    compute_as(half, replace(prepare_language_model(half), kernel="varlen"))
    near = response_logprobs(half, groups)[0].detach()
    assert near.dtype == torch.float32 and 0 < (near - exact).abs().mean() < 0.2
