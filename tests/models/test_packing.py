"""Packed rows with a shared prompt against the plain forward pass of each response on its own."""

import copy
import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mathrl.models import head
from mathrl.models.attention import CausalLayout, LayoutsInTurn
from mathrl.models.linear import HalfLinear, keep_rounded_only, use_half_products
from mathrl.models.logprobs import _padded_logprobs, prepare_language_model, response_logprobs, token_logprobs
from mathrl.models.packing import Group, pack, rounded_up
from mathrl.models.prepared import compute_as

# Float32 sums in another order; log-probs are of the order of 10 in these models.
TOLERANCE = 2e-4


def random_groups(seed: int, count: int = 6) -> list[Group]:
    rng = random.Random(seed)

    def tokens(low: int, high: int) -> list[int]:
        return [rng.randrange(3, 90) for _ in range(rng.randint(low, high))]

    return [Group(tokens(1, 9), [tokens(1, 12) for _ in range(rng.choice([1, 2, 5]))]) for _ in range(count)]


def reference(model: Any, groups: list[Group], temperature: float = 1.0) -> torch.Tensor:
    """One response at a time, no padding, the model's own attention."""
    out = []
    for group in groups:
        for response in group.responses:
            ids = torch.tensor([[*group.prompt, *response]])
            logp = (model(input_ids=ids).logits[0].float() / temperature).log_softmax(-1)
            start = len(group.prompt) - 1
            out.append(logp[torch.arange(start, start + len(response)), torch.tensor(response)])
    return torch.cat(out)


def check_equals_reference(model: Any, groups: list[Group], seed: int) -> None:
    """Packed log-probs at temperature 0.7, and the gradient of a random sum of them, equal the plain ones."""
    results = []
    for logprobs_of in (reference, lambda *arguments: response_logprobs(*arguments)[0]):
        model.zero_grad()
        logprobs = logprobs_of(model, groups, 0.7)
        weights = torch.randn(len(logprobs), generator=torch.Generator().manual_seed(seed))
        (logprobs * weights).sum().backward()
        results.append((logprobs.detach(), [weight.grad.clone() for weight in model.parameters()]))
    (expected, gradients), (packed, packed_gradients) = results
    assert torch.allclose(packed, expected, atol=TOLERANCE)
    for gradient, packed_gradient in zip(gradients, packed_gradients, strict=True):
        assert torch.allclose(packed_gradient, gradient, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("architecture,kv_heads", [("llama", 2), ("qwen2", 4)])
def test_packed_logprobs_and_gradients_equal_the_plain_ones(
    network: Callable[..., Any], architecture: str, kv_heads: int
) -> None:
    model = network(architecture=architecture, kv_heads=kv_heads)
    assert prepare_language_model(model).packed
    for seed in range(2):
        groups = random_groups(seed)
        check_equals_reference(model, groups, seed)
        # The prompt is in the row once a group, and little else.
        batch = pack(groups)
        assert batch.input_ids_1T.shape[1] == rounded_up(sum(group.packed_tokens for group in groups))


def test_long_sequences_do_not_share_their_prompt_and_agree(
    network: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network(architecture="qwen2", kv_heads=1)
    groups = random_groups(3)
    expected, entropies = response_logprobs(model, groups, 0.7)
    weights = torch.randn(len(expected), generator=torch.Generator().manual_seed(0))
    model.zero_grad()
    (expected * weights).sum().backward()
    gradients = [weight.grad.clone() for weight in model.parameters()]
    shared = sum(group.packed_tokens for group in groups)
    monkeypatch.setattr("mathrl.models.packing.LONG", 8)
    assert isinstance(pack(groups).layout, CausalLayout)
    assert sum(group.packed_tokens for group in groups) > shared
    model.zero_grad()
    found, found_entropies = response_logprobs(model, groups, 0.7)
    (found * weights).sum().backward()
    assert torch.allclose(found, expected, atol=TOLERANCE)
    assert torch.allclose(found_entropies, entropies, atol=TOLERANCE)
    for weight, gradient in zip(model.parameters(), gradients, strict=True):
        assert torch.allclose(weight.grad, gradient, atol=1e-3, rtol=1e-3)
    # Boundaries matter: one sequence too long by a token sees its neighbour.
    lengths = pack(groups).layout.lengths
    monkeypatch.setattr(
        "mathrl.models.packing.CausalLayout", lambda _: CausalLayout([lengths[0] + 1, lengths[1] - 1, *lengths[2:]])
    )
    assert not torch.allclose(response_logprobs(model, groups, 0.7)[0], expected, atol=TOLERANCE)


def test_a_long_group_leaves_the_others_their_shared_prompts(
    network: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = [
        Group((7, 10, 5), ((5, 9, 2), (3, 2), (4, 4, 2))),
        Group((7, 3), ((6,) * 9, (5, 2))),
        Group((5, 5, 8, 9), ((3, 9), (2,)), (np.array([False, True]), np.array([True]))),
        Group((9, 8, 7, 6), ((4, 3, 2, 6, 8, 9),), (np.array([True, False, True, True, False, True]),)),
    ]
    expected = pack(groups)
    model = network()
    logprobs, _ = response_logprobs(model, groups, 0.7)
    monkeypatch.setattr("mathrl.models.packing.LONG", 8)
    assert [group.long for group in groups] == [False, True, False, True]
    batch = pack(groups)
    assert isinstance(batch.layout, LayoutsInTurn)
    assert (
        batch.input_ids_1T.shape[1]
        == rounded_up(sum(group.packed_tokens for group in groups))
        == sum(batch.layout.lengths)
    )
    assert torch.equal(batch.targets_N, expected.targets_N)
    assert torch.allclose(response_logprobs(model, groups, 0.7)[0], logprobs, atol=TOLERANCE)
    check_equals_reference(model, [Group(group.prompt, group.responses) for group in groups], 0)


def test_packed_and_padded_agree_on_entropy_too(network: Callable[..., Any]) -> None:
    model, groups = network(), random_groups(5)
    packed, padded = response_logprobs(model, groups, 1.3), _padded_logprobs(model, groups, 1.3)
    for found, expected in zip(packed, padded, strict=True):
        assert torch.allclose(found, expected, atol=TOLERANCE)
    for function in (response_logprobs, _padded_logprobs):
        logprobs_N, entropies_N = function(model, groups, 1.3, entropy=False)
        assert torch.allclose(logprobs_N, packed[0], atol=TOLERANCE) and len(entropies_N) == 0


def test_entropy_by_hand() -> None:
    logits = torch.tensor([[0.0, 0.0], [30.0, -math.inf], [math.log(3), 0.0], [1000.0, 1000.0]])
    three = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    entropies = token_logprobs(logits, torch.arange(4), torch.zeros(4, dtype=torch.long), 1.0)[1]
    assert entropies.tolist() == pytest.approx([math.log(2), 0.0, three, math.log(2)])


def test_bfloat16_products_are_near_and_notice_new_weights(network: Callable[..., Any]) -> None:
    model, groups = network(), random_groups(4)
    exact = response_logprobs(model, groups)[0].detach()
    use_half_products(model)
    near = response_logprobs(model, groups)[0].detach()
    assert 0 < (near - exact).abs().mean() < 0.2
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, foreach=True)
    response_logprobs(model, groups)[0].sum().backward()
    optimizer.step()
    changed = response_logprobs(model, groups)[0].detach()
    assert (changed - near).abs().mean() > 0.2
    assert torch.equal(changed, response_logprobs(model, groups)[0].detach())


def test_a_frozen_model_keeps_its_rounded_weights_alone(network: Callable[..., Any]) -> None:
    model = network(architecture="qwen2", kv_heads=1)
    use_half_products(model)
    groups = random_groups(4)
    expected, _ = response_logprobs(model, groups)
    frozen = copy.deepcopy(model).requires_grad_(False)
    keep_rounded_only(frozen)
    bytes_ = {
        each.weight.untyped_storage().data_ptr(): each.weight.untyped_storage().nbytes()
        for each in frozen.modules()
        if isinstance(each, HalfLinear)
    }
    whole = sum(each.weight.numel() for each in model.modules() if isinstance(each, HalfLinear))
    assert sum(bytes_.values()) == 2 * whole, "stored once, two bytes a weight"
    with torch.no_grad():
        assert torch.equal(response_logprobs(frozen, groups)[0], expected)
        assert torch.equal(response_logprobs(model, groups)[0], expected), "the model it was copied from is whole"
    assert all(each.weight.dtype == torch.float32 for each in model.modules() if isinstance(each, HalfLinear))


def test_attention_with_more_than_softmax_falls_back() -> None:
    """Gemma 2 caps its scores; a sliding window hides keys: both are found out and computed plainly."""
    from transformers import Gemma2Config, Gemma2ForCausalLM, MistralConfig, MistralForCausalLM

    sizes = {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "pad_token_id": 0,
    }
    torch.manual_seed(0)
    gemma = Gemma2ForCausalLM(Gemma2Config(**sizes, attn_logit_softcapping=0.5)).eval()
    mistral = MistralForCausalLM(MistralConfig(**sizes, sliding_window=4)).eval()
    for model in (gemma, mistral):
        assert not prepare_language_model(model).packed
        groups = random_groups(1)
        found, _ = response_logprobs(model, groups)
        assert torch.allclose(found, reference(model, groups), atol=TOLERANCE)


def test_logits_in_parts_give_the_same_log_probs_and_gradients(
    network: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network(architecture="qwen2", kv_heads=1)
    compute_as(model, replace(prepare_language_model(model), packed=False))
    groups = random_groups(5)

    def both() -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        model.zero_grad()
        logprobs_N, entropies_N = response_logprobs(model, groups, 0.7)
        weights = torch.randn(len(logprobs_N), generator=torch.Generator().manual_seed(1))
        (logprobs_N * weights + 0.3 * entropies_N * weights).sum().backward()
        return logprobs_N, entropies_N, [weight.grad.clone() for weight in model.parameters()]

    whole = both()
    widest, vocabulary = 0, model.get_output_embeddings().weight.shape[0]
    rows_at_a_time = 3
    monkeypatch.setattr("mathrl.models.head.MOST_LOGITS", rows_at_a_time * vocabulary)
    product = head.wide_product

    def watched(hidden_nD: torch.Tensor, weight_VD: torch.Tensor) -> torch.Tensor:
        nonlocal widest
        widest = max(widest, len(hidden_nD))
        return product(hidden_nD, weight_VD)

    monkeypatch.setattr(head, "wide_product", watched)
    parts = both()
    assert widest == rows_at_a_time, "never more logits at a time"
    assert torch.allclose(parts[0], whole[0], atol=1e-5) and torch.allclose(parts[1], whole[1], atol=1e-5)
    for found, expected in zip(parts[2], whole[2], strict=True):
        assert torch.allclose(found, expected, atol=1e-5, rtol=1e-4)


def test_a_capped_head_keeps_all_its_logits(network: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model = network(architecture="qwen2", kv_heads=1)
    groups = random_groups(2)

    class Capped(type(model)):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            out = super().forward(*args, **kwargs)
            out.logits = 3 * torch.tanh(out.logits / 3)
            return out

    model.__class__ = Capped
    expected, _ = response_logprobs(model, groups)
    monkeypatch.setattr("mathrl.models.head.MOST_LOGITS", 100)
    found, _ = response_logprobs(model, groups)
    assert torch.equal(found, expected)
    way = prepare_language_model(model)
    assert not way.plain_head
    compute_as(model, replace(way, plain_head=True))  # the wrong answer would be seen
    model.get_output_embeddings().__class__ = head.LogprobHead
    assert not torch.allclose(response_logprobs(model, groups)[0], expected, atol=1e-3)
