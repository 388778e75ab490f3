"""Compiled SwiGLU and rotary positions against transformers' functions, but for a device's code: that takes minutes."""

import copy
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from transformers.models.cohere import modeling_cohere
from transformers.models.gemma.modeling_gemma import GemmaConfig, GemmaMLP

from mathrl.models import fused
from mathrl.models.fused import FusedSwiGLU, exchange_elementwise, use_fused_elementwise
from mathrl.models.logprobs import response_logprobs
from mathrl.models.packing import Group

GROUPS = [Group([5, 6, 7], [[8, 9, 10], [11, 12]]), Group([13], [[14, 15, 16, 17]])]


@pytest.fixture(scope="module", autouse=True)
def compiled() -> Iterator[None]:
    """Compile as for a GPU but for the last step, its code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager_decomp_partition"))
        fused._compile_once.cache_clear()
        yield
    fused._compile_once.cache_clear()


def fused_everywhere(model: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A copy whose layers use the compiled functions; the originals still rotate for `model`."""
    other = copy.deepcopy(model)
    modeling = sys.modules[type(model).__module__]
    monkeypatch.setattr(modeling, fused.ROTARY, getattr(modeling, fused.ROTARY))  # restored afterwards
    exchange_elementwise(other)
    return other


def gradient(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    model.zero_grad()
    logprobs = response_logprobs(model, GROUPS)[0]
    logprobs.sum().backward()
    return logprobs.detach(), torch.cat([weight.grad.flatten() for weight in model.parameters()])


def test_a_model_computes_the_same_also_recomputed(
    network: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network()
    other = fused_everywhere(model, monkeypatch)
    other.train().gradient_checkpointing_enable({"use_reentrant": False})
    assert sum(isinstance(module, FusedSwiGLU) for module in other.modules()) == len(model.model.layers)
    assert list(other.state_dict()) == list(model.state_dict())
    expected = gradient(model)  # a CPU keeps the plain rotation
    calls: list[int] = []

    def rotated(*arguments: torch.Tensor) -> Any:
        calls.append(1)
        return fused._compile_once(fused._rotate_eager)(*arguments)

    modeling = sys.modules[type(model).__module__]
    monkeypatch.setattr(modeling, fused.ROTARY, rotated)
    assert all(map(partial(torch.allclose, atol=1e-5, rtol=1e-5), gradient(other), expected))
    assert calls


def test_swiglu_keeps_its_inputs_alone_for_the_gradient() -> None:
    gate, up = torch.randn(2, 7, 12).requires_grad_(), torch.randn(2, 7, 12).requires_grad_()
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        fused.swiglu(gate, up)
    assert sorted(tensor.data_ptr() for tensor in kept) == sorted((gate.data_ptr(), up.data_ptr()))


def test_a_kernel_is_made_for_the_width_of_a_model_and_for_any_number_of_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Triton reads 16 bytes at a time only where it knows that rows are a multiple of 16 long."""
    widths: list[tuple[str, ...]] = []

    def shapes(graph: Any, _: Any) -> Any:
        tensors = [node.meta["example_value"] for node in graph.graph.nodes if node.op == "placeholder"]
        widths.append(tuple(str(tensor.shape[-1]) for tensor in tensors if isinstance(tensor, torch.Tensor)))
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile.func, backend=shapes))
    torch._dynamo.reset()
    fused._compile_once.cache_clear()
    for tokens in (5, 7, 48):
        fused.swiglu(torch.randn(1, tokens, 32), torch.randn(1, tokens, 32))
    assert widths == [("32", "32")], "one kernel for all lengths"
    for tokens in (5, 7, 48):
        query, key, angles = torch.randn(1, 4, tokens, 16), torch.randn(1, 2, tokens, 16), torch.randn(1, tokens, 16)
        fused.rotate(query, key, angles.cos(), angles.sin())
    assert widths == [("32", "32"), ("16",) * 4]
    fused._compile_once.cache_clear()


def test_other_functions_stay_as_they_are() -> None:
    plain = modeling_cohere.apply_rotary_pos_emb  # turns neighbours, not halves
    gelu = GemmaMLP(GemmaConfig(hidden_size=8, intermediate_size=12, hidden_act="gelu_pytorch_tanh"))
    assert not fused._is_rotary(plain) and not fused._is_swiglu(gelu)


def test_without_a_compiler_the_plain_functions_serve(
    network: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: torch.Tensor) -> Any:
        raise RuntimeError("no C compiler")

    monkeypatch.setattr(fused, "_compile_once", lambda function: fails)
    fused.compiles.cache_clear()
    model = network()
    use_fused_elementwise(model)
    assert "torch.compile failed (no C compiler)" in caplog.text
    assert not any(isinstance(module, FusedSwiGLU) for module in model.modules())
    fused.compiles.cache_clear()


def test_a_process_with_models_of_two_precisions_compiles_every_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    """With torch's own limit of eight the ninth variant runs without fusion, and only a warning says so.

    The limit counts traced variants: none of them needs code here, which would take a minute to make.
    """
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    fused._compile_once.cache_clear()
    counters = torch._dynamo.utils.counters
    torch._dynamo.reset()
    counters.clear()
    for dtype in (torch.float32, torch.bfloat16):
        for length, learns in ((1, False), (5, True), (5, False)):
            for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
                query, key = (torch.randn(2, heads, length, 8).to(dtype).requires_grad_(learns) for heads in (4, 2))
                angles = torch.randn(2, length, 8).to(dtype)
                with mode():
                    fused.rotate(query, key, angles.cos(), angles.sin())
    assert counters["stats"]["unique_graphs"] > 8, "the test has the variants that a process makes"
    assert not any("recompile_limit" in reason for reason in counters["unimplemented"])
    frames = counters["frames"]
    assert frames["total"] == frames["ok"], dict(counters)
    fused._compile_once.cache_clear()
