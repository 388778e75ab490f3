"""Attention over packed tokens, put under any Hugging Face model through its attention interface.

A model's own code does everything but attention: its input is one row of T tokens without padding. Which
token sees which is in a `Layout` (training, prefill), a `CausalLayout` (training on long sequences), `LayoutsInTurn`
(long ones beside others), a `VarlenLayout` (both, on GPUs) or a `DecodeCache` (one new token per sequence), passed
through the model's forward as the keyword argument `layout`. `mathrl.models.kernels` says which of them a device takes.

On a CPU the results of a layout are the same to the bit in every run. On a GPU the forward passes of all kernels
here are too, but not the backward passes of flash and memory-efficient attention, which add the gradient of the
queries with atomic operations, unless `torch.use_deterministic_algorithms(True)` is set.

Shapes: T packed tokens; H query heads, K key heads, R = H / K; d width of a head; in a block S sequences of
q queries and k keys each; B sequences that are decoded, L columns of their cache; U uses of the T tokens as keys.
"""

import inspect
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from mathrl.models.kernels import flash_width
from mathrl.models.transformers_import import (
    ALL_ATTENTION_FUNCTIONS,
    ALL_MASK_ATTENTION_FUNCTIONS,
    sdpa_attention_forward,
    sdpa_mask,
)

NAME = "mathrl"


@dataclass(frozen=True)
class Block:
    """S sequences padded to one length, whose queries see their prefix and their own past.

    `query_rows_Sq` and `key_rows_Sk` are rows of the packed tokens (0 where there is padding);
    `padding_rows` are the places of padding in the flattened queries; `bias_Sqk` is -inf where a query does
    not see a key, else 0 (its first dimension is 1 if all sequences are alike).
    """

    query_rows_Sq: Tensor
    key_rows_Sk: Tensor
    padding_rows: Tensor
    bias_Sqk: Tensor


class RowLayout(Protocol):
    """Says which token of a packed row sees which."""

    def attend(self, module: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """[1, H, T, d], [1, K, T, d], [1, K, T, d] → [1, T, H, d]."""
        ...


@dataclass
class Layout:
    """Every packed token is a query in exactly one place of the blocks and a key in one or more.

    `place_T` is that query's place in the blocks' flattened queries; `uses` and `use_starts_T` list, for each
    token, its places in the blocks' flattened keys. With `capture`, keys and values of each layer are kept
    in `captured` (as [T, K, d]).
    """

    blocks: list[Block]
    place_T: Tensor
    uses: Tensor
    use_starts_T: Tensor
    capture: bool = False
    captured: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def attend(self, module: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """[1, H, T, d], [1, K, T, d], [1, K, T, d] → [1, T, H, d]."""
        heads, tokens = query.shape[1], query.shape[2]
        query_T, key_T, value_T = (heads_1nTd[0].transpose(0, 1) for heads_1nTd in (query, key, value))
        if self.capture:
            self.captured.append((key_T, value_T))
        out: Tensor = _BlockAttention.apply(query_T, key_T, value_T, self, scale)  # type: ignore[no-untyped-call]
        return out.view(1, tokens, heads, value.shape[-1])


@dataclass
class CausalLayout:
    """Whole sequences one after the other in the row, for long ones: `lengths` sum to T.

    PyTorch's own kernels keep no table of probabilities, so memory grows with the length and not with its square; a
    prompt then stands before each of its responses. On a GPU it is the memory-efficient kernel or an error, never
    the math kernel: key heads are repeated for it and heads padded to a multiple of 8.
    """

    lengths: list[int]

    def attend(self, module: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """[1, H, T, d], [1, K, T, d], [1, K, T, d] → [1, T, H, d]."""
        if query.device.type != "cpu":
            with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
                return self._efficient(query, key, value, scale)
        return self._by_sequence(query, key, value, scale)

    def _efficient(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        repeats, width = query.shape[1] // key.shape[1], value.shape[-1]
        key, value = (heads.repeat_interleave(repeats, 1) for heads in (key, value))
        return self._by_sequence(_widen(query), _widen(key), _widen(value), scale)[..., :width]

    def _by_sequence(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        parts = zip(*(torch.split(heads_1nTd, self.lengths, 2) for heads_1nTd in (query, key, value)), strict=True)
        outs = [
            torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
            )
            for q, k, v in parts
        ]
        return torch.cat(outs, dim=2).transpose(1, 2)


@dataclass
class LayoutsInTurn:
    """Parts of the row one after the other, each with a layout of its own: `lengths` sum to T."""

    layouts: list[RowLayout]
    lengths: list[int]

    def attend(self, module: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """[1, H, T, d], [1, K, T, d], [1, K, T, d] → [1, T, H, d]."""
        parts = zip(self.layouts, *(torch.split(heads, self.lengths, 2) for heads in (query, key, value)), strict=True)
        return torch.cat([layout.attend(module, q, k, v, scale) for layout, q, k, v in parts], 1)


@dataclass
class VarlenLayout:
    """Sequences of any length in one call of flash attention, with the prompt of a group in the row once.

    Sequence s has the queries `query_starts_S1[s]` to `query_starts_S1[s + 1]` of the row and as keys those of
    `key_rows_U` between `key_starts_S1[s]` and `key_starts_S1[s + 1]` (both int32): its prompt, then its own tokens.
    Its last query sees all of its keys, the one before all but the last, and so on, which is how flash attention
    aligns its causal mask (version 2.1 and later). `uses_U` and `use_starts_T` list the places of each token among the
    keys. `key_rows_U` is None where each token is a key once. `longest_*` are the most queries and keys of a sequence.
    """

    query_starts_S1: Tensor
    key_starts_S1: Tensor
    longest_query: int
    longest_key: int
    key_rows_U: Tensor | None
    uses_U: Tensor
    use_starts_T: Tensor
    capture: bool = False
    captured: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def attend(self, module: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """[1, H, T, d], [1, K, T, d], [1, K, T, d] → [1, T, H, d]."""
        width = value.shape[-1]
        # Not heads[0], whose gradient is a tensor of zeros to be filled.
        query_T, key_T, value_T = (heads_1nTd.squeeze(0).transpose(0, 1) for heads_1nTd in (query, key, value))
        if self.capture:
            self.captured.append((key_T, value_T))
        if self.key_rows_U is not None:
            key_T, value_T = (
                _SharedKeys.apply(tensor, self.key_rows_U, self.uses_U, self.use_starts_T)  # type: ignore[no-untyped-call]
                for tensor in (key_T, value_T)
            )
        attention = varlen_reference if query.device.type == "cpu" else varlen_attention
        out_THd = attention(_widen(query_T), _widen(key_T), _widen(value_T), self, scale)
        return out_THd[..., :width][None]


def varlen_attention(q_THd: Tensor, k_UKd: Tensor, v_UKd: Tensor, layout: VarlenLayout, scale: float) -> Any:
    """softmax(q k^T scale) v of each sequence of the layout by PyTorch's flash attention, in float16 or bfloat16."""
    from torch.nn.attention.varlen import varlen_attn  # not in a torch before 2.10

    # Torch 2.11 takes fewer key heads without being told.
    grouped: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}
    return varlen_attn(
        q_THd,
        k_UKd,
        v_UKd,
        layout.query_starts_S1,
        layout.key_starts_S1,
        layout.longest_query,
        layout.longest_key,
        scale=scale,
        window_size=(-1, 0),
        **grouped,
    )


def varlen_reference(q_THd: Tensor, k_UKd: Tensor, v_UKd: Tensor, layout: VarlenLayout, scale: float) -> Tensor:
    """What `varlen_attention` computes, on a CPU and in any type, a sequence at a time (slow)."""
    repeats = q_THd.shape[1] // k_UKd.shape[1]
    q_lengths, k_lengths = (starts_S1.diff().tolist() for starts_S1 in (layout.query_starts_S1, layout.key_starts_S1))
    parts = (torch.split(q_THd, q_lengths), torch.split(k_UKd, k_lengths), torch.split(v_UKd, k_lengths))
    outs = []
    for q_qHd, k_kKd, v_kKd in zip(*parts, strict=True):
        scores_Hqk = torch.einsum("qhd,khd->hqk", q_qHd, k_kKd.repeat_interleave(repeats, 1)) * scale
        hidden_qk = torch.ones_like(scores_Hqk[0], dtype=torch.bool).triu(1 + len(k_kKd) - len(q_qHd))
        weights_Hqk = scores_Hqk.masked_fill(hidden_qk, -torch.inf).softmax(-1)
        outs.append(torch.einsum("hqk,khd->qhd", weights_Hqk, v_kKd.repeat_interleave(repeats, 1)))
    return torch.cat(outs)


class _SharedKeys(torch.autograd.Function):
    """Keys in the order of their uses; a token's gradient is the sum over its uses, in a fixed order."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, key_TKd: Tensor, key_rows_U: Tensor, uses_U: Tensor, use_starts_T: Tensor
    ) -> Tensor:
        ctx.save_for_backward(uses_U, use_starts_T)
        return key_TKd.index_select(0, key_rows_U)

    @staticmethod
    def backward(ctx: Any, grad_UKd: Tensor) -> Any:  # type: ignore[override]
        uses_U, use_starts_T = ctx.saved_tensors
        # Unlike index_add_ it adds in float32, also where the gradient is bfloat16, and without atomic operations.
        grad = torch.nn.functional.embedding_bag(uses_U, grad_UKd.flatten(1), use_starts_T, mode="sum")
        return grad.view(-1, *grad_UKd.shape[1:]), None, None, None


def _widen(heads: Tensor) -> Tensor:
    """Heads padded with zeros to a width that the kernels take, which changes no score and no output."""
    missing = flash_width(heads.shape[-1]) - heads.shape[-1]
    return torch.nn.functional.pad(heads, (0, missing)) if missing else heads


class _BlockAttention(torch.autograd.Function):
    """softmax(q k^T scale) v within each block, in float32; backward written out (no double backward)."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, query_THd: Tensor, key_TKd: Tensor, value_TKd: Tensor, layout: Layout, scale: float
    ) -> Tensor:
        query, key, value = (tensor.float() for tensor in (query_THd, key_TKd, value_TKd))
        key_heads = key.shape[1]
        outs, weights = [], []
        for block in layout.blocks:
            q = _rows(query, block.query_rows_Sq, key_heads)
            k, v = (_rows(tensor, block.key_rows_Sk, key_heads) for tensor in (key, value))
            scores = torch.matmul(q, k.transpose(-1, -2)).mul_(scale)
            by_query = scores.view(*scores.shape[:2], block.query_rows_Sq.shape[1], -1, scores.shape[-1])
            by_query.add_(block.bias_Sqk[:, None, :, None, :])
            probabilities = torch.softmax(scores, dim=-1)
            outs.append(_flat(torch.matmul(probabilities, v), block.query_rows_Sq))
            weights.append(probabilities)
        ctx.layout, ctx.scale, ctx.dtype = layout, scale, query_THd.dtype
        ctx.save_for_backward(query, key, value, *weights)
        out = _join(outs).index_select(0, layout.place_T)
        return out.view(query.shape[0], query.shape[1], value.shape[2]).to(query_THd.dtype)

    @staticmethod
    def backward(ctx: Any, grad_THd: Tensor) -> Any:  # type: ignore[override]
        layout, scale = ctx.layout, ctx.scale
        query, key, value, *weights = ctx.saved_tensors
        key_heads, grad_out = key.shape[1], grad_THd.float()
        grads_q, grads_k, grads_v = [], [], []
        for block, probabilities in zip(layout.blocks, weights, strict=True):
            q = _rows(query, block.query_rows_Sq, key_heads)
            k, v = (_rows(tensor, block.key_rows_Sk, key_heads) for tensor in (key, value))
            grad = _rows(grad_out, block.query_rows_Sq, key_heads, zeros=block.padding_rows)
            grads_v.append(_flat(torch.matmul(probabilities.transpose(-1, -2), grad), block.key_rows_Sk))
            grad_scores = torch._softmax_backward_data(
                torch.matmul(grad, v.transpose(-1, -2)), probabilities, -1, torch.float32
            ).mul_(scale)
            grads_q.append(_flat(torch.matmul(grad_scores, k), block.query_rows_Sq))
            grads_k.append(_flat(torch.matmul(grad_scores.transpose(-1, -2), q), block.key_rows_Sk))
        grad_q = _join(grads_q).index_select(0, layout.place_T).view(query.shape)
        grad_k, grad_v = (_sum_gradients(grads, layout) for grads in (grads_k, grads_v))
        return (
            grad_q.to(ctx.dtype),
            grad_k.view(key.shape).to(ctx.dtype),
            grad_v.view(value.shape).to(ctx.dtype),
            None,
            None,
        )


def _rows(packed_THd: Tensor, rows_Sn: Tensor, key_heads: int, zeros: Tensor | None = None) -> Tensor:
    """Packed heads → [S, K, n R, d]: the R query heads of a key head side by side (R is 1 for keys)."""
    tokens, heads, width = packed_THd.shape
    rows = packed_THd.reshape(tokens, heads * width).index_select(0, rows_Sn.view(-1))
    if zeros is not None:
        rows.index_fill_(0, zeros, 0.0)
    by_head = rows.view(*rows_Sn.shape, key_heads, heads // key_heads, width).transpose(1, 2)
    return by_head.reshape(rows_Sn.shape[0], key_heads, -1, width)


def _flat(heads_SKnd: Tensor, rows_Sn: Tensor) -> Tensor:
    """The inverse of `_rows`' arrangement: [S, K, n R, d] → [S n, H d]."""
    sequences, key_heads, _, width = heads_SKnd.shape
    by_row = heads_SKnd.view(sequences, key_heads, rows_Sn.shape[1], -1, width).transpose(1, 2)
    return by_row.reshape(rows_Sn.numel(), -1)


def _join(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _sum_gradients(grads: list[Tensor], layout: Layout) -> Tensor:
    """The gradient of each token's key: the sum over its places, in a fixed order (index_add is slower)."""
    return torch.nn.functional.embedding_bag(layout.uses, _join(grads), layout.use_starts_T, mode="sum")


class DecodeCache:
    """Keys and values of B sequences while they are decoded, one column per token, prompts padded on the left.

    The next token's key goes to `column`. `bias_BL` is 0 where a sequence has a token and -inf elsewhere, also in
    unused columns, so that scores are computed for a multiple of sixteen columns: softmax over another number is four
    times slower on a CPU.
    """

    def __init__(self, layers: list[tuple[Tensor, Tensor]], bias_BL: Tensor, column: int) -> None:
        self.layers, self.bias_BL, self.column = layers, bias_BL, column

    def attend(self, module: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """[1, H, B, d] and the new keys and values [1, K, B, d] → [1, B, H, d]."""
        keys, values = self.layers[module.layer_idx]
        width, key_heads = query.shape[-1], key.shape[1]
        keys[:, :, self.column] = key[0].transpose(0, 1)
        values[:, :, self.column] = value[0].transpose(0, 1)
        self.bias_BL[:, self.column] = 0.0
        seen = min(-(-(self.column + 1) // 16) * 16, self.bias_BL.shape[1])
        sequences, heads = query.shape[2], query.shape[1]
        q = query[0].transpose(0, 1).reshape(sequences * key_heads, heads // key_heads, width).float()
        k = keys[:, :, :seen].flatten(0, 1)
        v = values[:, :, :seen].flatten(0, 1)
        scores = torch.bmm(q, k.transpose(1, 2)).mul_(scale)
        scores.view(sequences, heads, seen).add_(self.bias_BL[:, None, :seen])
        out = torch.bmm(torch.softmax(scores, dim=-1), v)
        return out.view(1, sequences, heads, -1).to(query.dtype)

    def grow(self) -> None:
        """Double the columns."""
        self.layers = [
            (torch.cat([k, torch.zeros_like(k)], 2), torch.cat([v, torch.zeros_like(v)], 2)) for k, v in self.layers
        ]
        self.bias_BL = torch.cat([self.bias_BL, torch.full_like(self.bias_BL, -torch.inf)], 1)

    def keep(self, rows: Tensor) -> None:
        """Drop all sequences but `rows`."""
        self.layers = [(k.index_select(0, rows), v.index_select(0, rows)) for k, v in self.layers]
        self.bias_BL = self.bias_BL.index_select(0, rows)


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """Called by transformers in each layer: attention by the `layout`, PyTorch's without one."""
    layout = kwargs.pop("layout", None)
    if layout is None:
        out: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return out
    scaling = kwargs.get("scaling")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    return layout.attend(module, query, key, value, scale), None


ALL_ATTENTION_FUNCTIONS.register(NAME, _attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, sdpa_mask)


def packed_inputs(model: Any) -> dict[str, Any]:
    """Keyword arguments of every packed forward pass.

    transformers uses a four-dimensional mask as it is and builds none of its own; the real mask is in the layout.
    """
    return {"use_cache": False, "attention_mask": torch.empty(1, 1, 1, 1, device=model.device)}
