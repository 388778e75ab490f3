"""The head that gives log-probs without keeping logits, against plain autograd."""

import copy
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch

from mathrl.models import fused, head
from mathrl.models.head import LogprobHead
from mathrl.models.logprobs import prepare_language_model, response_logprobs
from mathrl.models.transformers_import import AutoConfig, AutoModelForCausalLM
from tests.models.test_packing import random_groups, reference

N, D, V = 11, 6, 17


@pytest.fixture(autouse=True)
def compiled_anew() -> Iterator[None]:
    fused._compile_once.cache_clear()
    yield
    fused._compile_once.cache_clear()


def plain(
    linear: Any, hidden_ND: torch.Tensor, targets_N: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    logp_NV = (torch.nn.functional.linear(hidden_ND, linear.weight, linear.bias) / temperature).log_softmax(-1)
    return logp_NV.gather(1, targets_N[:, None])[:, 0], -(logp_NV.exp() * logp_NV).sum(-1)


@pytest.mark.parametrize(("bias", "rows"), [(False, 100), (True, 2)])
@pytest.mark.parametrize("used", ["log-probs", "both"])
@pytest.mark.parametrize("compiled", [False, True])
def test_log_probs_entropies_and_gradients_in_float64(
    bias: bool, used: str, rows: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`compiled` is what a GPU takes, but for the last step, its code."""
    monkeypatch.setattr(head, "MOST_LOGITS", rows * V)
    monkeypatch.setattr(head, "_is_fused", lambda hidden_ND: compiled)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    torch.manual_seed(0)
    linear = torch.nn.Linear(D, V, bias=bias, dtype=torch.float64)
    without_logits = copy.deepcopy(linear)
    without_logits.__class__ = LogprobHead
    hidden_ND, targets_N = torch.randn(N, D, dtype=torch.float64), torch.randint(0, V, (N,))
    results = []
    for layer, function in ((linear, plain), (without_logits, lambda layer, *args: layer(*args, entropy=True))):
        inputs = (3 * hidden_ND).clone().requires_grad_()
        logprobs_N, entropies_N = function(layer, inputs, targets_N, 0.7)
        weights_N = torch.linspace(-1, 2, N, dtype=torch.float64)
        loss = (logprobs_N * weights_N).sum()  # without an edge to the entropies: the shorter backward pass
        if used == "both":
            loss = loss + (entropies_N * weights_N.flip(0)).sum()
        loss.backward()
        grads = [inputs.grad, *(weight.grad for weight in layer.parameters())]
        results.append([logprobs_N.detach(), entropies_N.detach(), *grads])
    for got, expected in zip(*reversed(results), strict=True):
        assert expected.abs().max() > 0.1 and torch.allclose(got, expected, atol=1e-12)


@pytest.mark.parametrize("entropy", [False, True])
def test_a_logit_of_minus_infinity_has_no_share(entropy: bool) -> None:
    """Some models pad their vocabulary with such logits."""
    logits_nV = torch.tensor([[1.0, 2.0, -torch.inf], [0.0, -torch.inf, -torch.inf]])
    targets_n, scale_n = torch.tensor([1, 0]), torch.ones(2)
    for score, slopes in ((fused._score_tokens, fused._logit_slopes), (head._score_tokens, head._logit_slopes)):
        logprobs_n, sums_n, entropies_n = score(logits_nV.clone(), targets_n, 1.0, entropy)
        p = 1 / (1 + math.e)  # of the first logit
        assert logprobs_n.tolist() == pytest.approx([math.log(1 - p), 0.0], abs=1e-6)
        expected = [-p * math.log(p) - (1 - p) * math.log(1 - p), 0.0]
        assert entropies_n.tolist() == pytest.approx(expected if entropy else [], abs=1e-6)
        above_n = scale_n if entropy else None
        found = slopes(logits_nV.clone(), targets_n, 1.0, sums_n, scale_n, entropies_n, above_n, torch.float32)
        more = [p * (math.log(p) + expected[0]), (1 - p) * (math.log(1 - p) + expected[0])] if entropy else [0.0, 0.0]
        assert found.flatten().tolist() == pytest.approx([p + more[0], -p + more[1], 0.0, 0.0, 0.0, 0.0], abs=1e-6)


def test_without_targets_it_is_the_layer_that_it_was() -> None:
    linear = torch.nn.Linear(D, V)
    hidden = torch.randn(2, 3, D)
    expected = linear(hidden)
    linear.__class__ = LogprobHead
    assert torch.equal(linear(hidden), expected)


def test_a_gpu_rounds_no_logit_that_is_sampled_from() -> None:
    """The meta device stands for a GPU: a table of shapes and types."""
    layer = torch.nn.Linear(D, V, dtype=torch.bfloat16, device="meta")
    layer.__class__ = LogprobHead
    hidden = torch.empty(1, 3, D, dtype=torch.bfloat16, device="meta")
    with torch.no_grad():
        sampled = layer(hidden)
    assert sampled.dtype == torch.float32 and sampled.shape == (1, 3, V)
    assert layer(hidden).dtype == torch.bfloat16  # autograd has no gradient of such a product


def test_a_confident_token_keeps_its_small_gradient_in_bfloat16() -> None:
    """1 - p = 0.001 would be lost if p were rounded before the difference."""
    linear = torch.nn.Linear(1, 2, bias=False, dtype=torch.bfloat16)
    linear.weight.data = torch.tensor([[7.0], [0.0]], dtype=torch.bfloat16)
    linear.__class__ = LogprobHead
    hidden = torch.ones(1, 1, dtype=torch.bfloat16, requires_grad=True)
    linear(hidden, torch.tensor([0]))[0].sum().backward()
    expected = 7 * (1 - 1 / (1 + torch.exp(torch.tensor(-7.0))))
    assert hidden.grad is not None and float(hidden.grad) == pytest.approx(float(expected), rel=0.01)


def test_entropies_only_where_they_are_asked_for(network: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model, groups = network(), random_groups(2)
    gradients = []
    for most in (1 << 26, 200):
        monkeypatch.setattr(head, "MOST_LOGITS", most)
        for entropy in (True, False):
            logprobs_N, entropies_N = response_logprobs(model, groups, entropy=entropy)
            assert len(entropies_N) == (len(logprobs_N) if entropy else 0)
            model.zero_grad()
            logprobs_N.sum().backward()
            gradients.append(torch.cat([weight.grad.flatten() for weight in model.parameters()]))
    assert torch.equal(gradients[0], gradients[1]) and torch.equal(gradients[2], gradients[3])
    assert torch.allclose(gradients[0], gradients[2], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("architecture", "plain", "options"),
    [
        ("gemma2", False, {"final_logit_softcapping": 2.0}),
        ("gemma2", False, {"final_logit_softcapping": 300.0}),  # above every logit of a small random model
        ("granite", False, {"logits_scaling": 8.0}),
        ("cohere", False, {"logit_scale": 0.25}),
        ("phi", True, {}),  # the head has a bias
    ],
)
def test_logits_that_are_capped_scaled_or_shifted_keep_their_log_probs(
    architecture: str, plain: bool, options: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head alone gives log-probs only where nothing follows it; a bias is a part of it."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape = sizes | {"vocab_size": 96, "num_key_value_heads": 2, "pad_token_id": 0, "eos_token_id": 2}
    torch.manual_seed(1)
    config = AutoConfig.for_model(architecture, **shape, **options)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for weight in model.parameters():
        weight.data.normal_(0, 0.8)
    groups = random_groups(2, count=3)
    with torch.no_grad():
        expected = reference(model, groups, 0.7)
        for most_logits in (1 << 26, 200):
            monkeypatch.setattr(head, "MOST_LOGITS", most_logits)
            assert torch.allclose(response_logprobs(model, groups, 0.7)[0], expected, atol=1e-4)
        assert prepare_language_model(model).plain_head == plain
        for name, value in options.items():  # what is expected depends on it
            monkeypatch.setattr(model.config, name, value / 4)
            monkeypatch.setattr(model, name, value / 4, raising=False)
            assert not torch.allclose(reference(model, groups, 0.7), expected, atol=1e-3)
