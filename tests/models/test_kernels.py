"""The kernels of GPUs: the choice as a table, and their layout on the CPU against plain attention."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from mathrl.core.errors import UserError
from mathrl.models import attention
from mathrl.models.attention import VarlenLayout
from mathrl.models.kernels import choose_kernel, flash_width
from mathrl.models.logprobs import prepare_language_model, response_logprobs
from mathrl.models.packing import Group, pack
from mathrl.models.prepared import compute_as
from mathrl.models.scores import make_scorer, prepare_scorer, token_scores
from tests.models.test_packing import TOLERANCE, check_equals_reference, random_groups, reference

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
H100, ADA, AMPERE, TURING = (9, 0), (8, 9), (8, 0), (7, 5)
# What each kernel can compute, from PyTorch's checks (see mathrl/models/kernels.py): types, widest head, capability.
FLASH = ({BF16, FP16}, 256, (8, 0))
EFFICIENT = ({BF16, FP16, FP32}, 1 << 16, (5, 0))


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
@pytest.mark.parametrize("width", [64, 80, 128, 256, 512])
@pytest.mark.parametrize("version", ["2.10.0", "2.11.0", "2.13.0+cu130"])
@pytest.mark.parametrize("capability", [H100, ADA, AMPERE, TURING])
def test_no_gpu_takes_the_math_kernel(
    dtype: torch.dtype, width: int, version: str, capability: tuple[int, int]
) -> None:
    if dtype == BF16 and capability < AMPERE:
        with pytest.raises(UserError, match=r"set model\.precision to float16 or float32"):
            choose_kernel("cuda", dtype, width, version, capability)
        return
    kernel = choose_kernel("cuda", dtype, width, version, capability)
    types, widest, least = {"varlen": FLASH, "efficient": EFFICIENT}[kernel]
    assert dtype in types and flash_width(width) <= widest and capability >= least
    fast = dtype != FP32 and width <= 256 and capability >= AMPERE and version != "2.10.0"
    assert (kernel == "varlen") == fast
    assert choose_kernel("cpu", dtype, width, version) == "cpu"


def test_heads_are_padded_to_widths_that_have_a_backward_pass() -> None:
    # aten/src/ATen/native/transformers/cuda/sdp_utils.cpp: multiples of 8; no gradient for 193 to 224 on sm86, sm89.
    for width in range(1, 257):
        assert flash_width(width) >= width and flash_width(width) % 8 == 0 and not 192 < flash_width(width) <= 224


@pytest.mark.parametrize("architecture,kv_heads,hidden", [("qwen2", 1, 32), ("llama", 2, 24), ("qwen2", 4, 32)])
def test_varlen_rows_equal_plain_attention_with_gradients(
    network: Callable[..., Any], architecture: str, kv_heads: int, hidden: int
) -> None:
    model = network(architecture=architecture, kv_heads=kv_heads, hidden_size=hidden)  # heads of 8, and of 6: padded
    groups = random_groups(1)
    response_logprobs(model, groups[:1])
    compute_as(model, replace(prepare_language_model(model), kernel="varlen"))
    batch = pack(groups, kernel="varlen")
    assert isinstance(batch.layout, VarlenLayout) and batch.layout.key_rows_U is not None, "a prompt is shared"
    check_equals_reference(model, groups, 1)


def test_varlen_shares_the_prompts_of_long_responses_too(
    network: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, groups = network(), random_groups(3)
    expected = reference(model, groups)
    tokens = sum(group.packed_tokens for group in groups)
    response_logprobs(model, groups[:1])
    compute_as(model, replace(prepare_language_model(model), kernel="varlen"))
    monkeypatch.setattr("mathrl.models.packing.LONG", 8)
    batch = pack(groups, kernel="varlen")
    assert sum(group.tokens_by("varlen") for group in groups) == tokens
    assert len(batch.input_ids_1T[0]) - tokens < 8 < sum(group.packed_tokens for group in groups) - tokens
    (whole,) = groups[0].cut(groups[0].tokens_by("varlen"), "varlen")
    assert whole == groups[0] and len(groups[0].cut(groups[0].tokens_by("varlen"), "cpu")) > 1
    assert torch.allclose(response_logprobs(model, groups)[0], expected, atol=TOLERANCE)
    # A causal mask aligned to the first key and not to the last would be seen.
    right = attention.varlen_reference

    def aligned_left(q: Any, k: Any, v: Any, layout: VarlenLayout, scale: float) -> Any:
        starts = layout.query_starts_S1
        return right(q, k[: len(q)], v[: len(q)], VarlenLayout(starts, starts, 0, 0, None, starts, starts), scale)

    monkeypatch.setattr(attention, "varlen_reference", aligned_left)
    assert not torch.allclose(response_logprobs(model, groups)[0], expected, atol=0.05)


def test_one_response_per_prompt_copies_no_keys() -> None:
    batch = pack([Group([1, 2, 3], [[4, 5, 6]]), Group([7], [[8, 9]])], kernel="varlen")
    layout = batch.layout
    assert isinstance(layout, VarlenLayout) and layout.key_rows_U is None
    assert layout.query_starts_S1.tolist() == layout.key_starts_S1.tolist() == [0, 5, 7, 8]
    assert layout.query_starts_S1.dtype == torch.int32 and (layout.longest_query, layout.longest_key) == (5, 5)


def test_scores_of_varlen_rows(network: Callable[..., Any]) -> None:
    scorer, groups = make_scorer(network()), random_groups(1)
    with torch.no_grad():
        scorer.score.weight.normal_(generator=torch.Generator().manual_seed(4))
        expected = token_scores(scorer, groups)
        compute_as(scorer, replace(prepare_scorer(scorer), kernel="varlen"))
        assert torch.allclose(token_scores(scorer, groups), expected, atol=1e-4) and expected.abs().max() > 1


def test_the_call_is_what_torch_expects() -> None:
    """`varlen_attn` itself, on tensors without values: shapes, types and its gradient's."""
    layout = pack([Group([1, 2, 3], [[4, 5, 6], [7, 8]])], kernel="varlen").layout
    assert isinstance(layout, VarlenLayout)
    query, key = (torch.empty(1, heads, 8, 64, device="meta", dtype=BF16, requires_grad=True) for heads in (4, 2))
    moved = VarlenLayout(
        *(getattr(layout, name).to("meta") for name in ("query_starts_S1", "key_starts_S1")),
        layout.longest_query,
        layout.longest_key,
        *(getattr(layout, name).to("meta") for name in ("key_rows_U", "uses_U", "use_starts_T")),
    )
    out = moved.attend(None, query, key, key, 0.125)
    assert out.shape == (1, 8, 4, 64) and out.dtype == BF16
    out.sum().backward()
    assert key.grad is not None and key.grad.shape == key.shape
