"""Log-probs of the most probable tokens and of candidates against a plain forward pass of each response."""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from mathrl.models import fused, head
from mathrl.models.head import LogprobHead
from mathrl.models.logprobs import prepare_language_model, response_logprobs
from mathrl.models.packing import Group
from mathrl.models.prepared import Prepared, compute_as
from mathrl.models.top_tokens import candidate_logprobs, top_tokens
from mathrl.models.transformers_import import AutoConfig, AutoModelForCausalLM
from tests.models.test_packing import TOLERANCE, random_groups

N, D, V, K = 11, 6, 17, 4


@pytest.fixture(autouse=True)
def compiled_anew() -> Iterator[None]:
    fused._compile_once.cache_clear()
    yield
    fused._compile_once.cache_clear()


def plain_logprobs(model: Any, groups: list[Group], temperature: float) -> Tensor:
    """log softmax of all logits at each response token, [N, V], one response at a time."""
    rows = []
    for group in groups:
        for response in group.responses:
            logits = model(input_ids=torch.tensor([[*group.prompt, *response]])).logits[0].float()
            start = len(group.prompt) - 1
            rows.append((logits[start : start + len(response)] / temperature).log_softmax(-1))
    return torch.cat(rows)


def not_plain(architecture: str, **options: float) -> Any:
    """A model whose logits are capped or scaled after the head."""
    torch.manual_seed(1)
    config = AutoConfig.for_model(
        architecture, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, vocab_size=96,
        num_key_value_heads=2, pad_token_id=0, eos_token_id=2, **options,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for weight in model.parameters():
        weight.data.normal_(0, 0.3)
    return model


@pytest.mark.filterwarnings("ignore:Gemma2ForCausalLM trains padded")
@pytest.mark.parametrize("way", ["packed", "some rows at a time", "padded", "scaled logits", "capped logits"])
def test_values_and_gradients_are_those_of_all_logits(
    network: Callable[..., Any], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    makers = {
        "scaled logits": lambda: not_plain("granite", logits_scaling=8.0),
        "capped logits": lambda: not_plain("gemma2", final_logit_softcapping=2.0),
    }
    model, groups, temperature = makers.get(way, network)(), random_groups(4), 0.7
    found = prepare_language_model(model)
    assert found.packed == (way != "capped logits") and found.plain_head == (way not in makers)
    if way == "padded":
        compute_as(model, Prepared(packed=False, plain_head=True))
    if way == "some rows at a time":
        monkeypatch.setattr(head, "MOST_LOGITS", 700)
    with torch.no_grad():
        logp_NV = plain_logprobs(model, groups, temperature)
    tops = top_tokens(model, groups, temperature, K, 60)
    assert torch.allclose(tops.logprobs_NK, logp_NV[:, :60].topk(K).values, atol=TOLERANCE)
    assert torch.allclose(logp_NV.gather(1, tops.ids_NK), tops.logprobs_NK, atol=TOLERANCE) and tops.ids_NK.max() < 60
    assert torch.allclose(tops.sampled_N, response_logprobs(model, groups, temperature)[0], atol=TOLERANCE)
    targets_N = torch.cat([torch.tensor(response) for group in groups for response in group.responses])
    weights_NK = torch.randn(len(targets_N), K + 2, generator=torch.Generator().manual_seed(0))
    results = []
    for compute in ("here", "plainly"):
        model.zero_grad()
        if compute == "here":
            sampled_N, entropies_N, chosen_NK = candidate_logprobs(model, groups, temperature, tops.ids_NK)
        else:
            logp_NV = plain_logprobs(model, groups, temperature)
            sampled_N, entropies_N = logp_NV.gather(1, targets_N[:, None])[:, 0], -(logp_NV.exp() * logp_NV).sum(-1)
            chosen_NK = logp_NV.gather(1, tops.ids_NK)
        values = torch.cat([sampled_N[:, None], entropies_N[:, None], chosen_NK], dim=1)
        (values * weights_NK).sum().backward()
        results.append([values.detach(), *(weight.grad.clone() for weight in model.parameters())])
    for value, expected in zip(*results, strict=True):
        assert torch.allclose(value, expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(("used", "bias"), [("all", True), ("candidates", False), ("entropies", False)])
@pytest.mark.parametrize("compiled", [False, True])
def test_the_heads_gradients_in_float64(bias: bool, used: str, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate may be the sampled token: both gradients count. `compiled` is what a GPU takes, but for its code."""
    monkeypatch.setattr(head, "MOST_LOGITS", 4 * V)
    monkeypatch.setattr(head, "_is_fused", lambda hidden_ND: compiled)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    torch.manual_seed(0)
    linear = torch.nn.Linear(D, V, bias=bias, dtype=torch.float64)
    without_logits = copy.deepcopy(linear)
    without_logits.__class__ = LogprobHead
    hidden_ND, targets_N = torch.randn(N, D, dtype=torch.float64), torch.randint(0, V, (N,))
    ids_NK = torch.stack([torch.randperm(V)[:K] for _ in range(N)])
    ids_NK[0, 1] = targets_N[0]
    factors = {"all": (1.0, 1.0, 1.0), "candidates": (0.0, 0.0, 1.0), "entropies": (0.0, 1.0, 0.0)}[used]
    results = []
    for layer in (linear, without_logits):
        inputs = (3 * hidden_ND).clone().requires_grad_()
        if layer is linear:
            logp_NV = (layer(inputs) / 0.7).log_softmax(-1)
            outputs = [logp_NV.gather(1, targets_N[:, None])[:, 0], -(logp_NV.exp() * logp_NV).sum(-1)]
            outputs.append(logp_NV.gather(1, ids_NK))
        else:
            outputs = [*layer(inputs, targets_N, 0.7, candidates_NK=ids_NK)]
            sampled_N, top_NK, ids = layer(inputs, targets_N, 0.7, top=(K, V - 2))
            expected_NK = logp_NV[:, :-2].topk(K)
            assert torch.allclose(sampled_N, outputs[0]) and torch.allclose(top_NK, expected_NK.values)
            assert torch.equal(ids, expected_NK.indices)
        weights = torch.linspace(-1, 2, N, dtype=torch.float64)
        weighted = [outputs[0] * weights, outputs[1] * weights.flip(0), outputs[2] * weights[:, None].sin()]
        sum(factor * each.sum() for factor, each in zip(factors, weighted, strict=True) if factor).backward()
        results.append(
            [*(each.detach() for each in outputs), inputs.grad, *(weight.grad for weight in layer.parameters())]
        )
    for got, expected in zip(*reversed(results), strict=True):
        assert expected.abs().max() > 0.1 and torch.allclose(got, expected, atol=1e-12)
