"""Prompts that continue sequences of an earlier batch, whose keys and values were kept: only the new tokens are run.

Shapes: P prompts; N new tokens of all of them, T with padding; S the most new tokens of a prompt; C cache columns;
K key heads, R query heads per key head, d head width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mathrl.models.attention import DecodeCache
from mathrl.models.limits import rounded_up


@dataclass(frozen=True, eq=False)
class KeptKeys:
    """Keys and values [K, tokens, d] of each layer, of a sequence's first `tokens` tokens; to be continued once."""

    layers: list[tuple[Tensor, Tensor]]

    @property
    def tokens(self) -> int:
        """How many tokens they are of."""
        return self.layers[0][0].shape[1]


def kept_keys(cache: DecodeCache, row: int, tokens: int) -> KeptKeys:
    """Copies of what the cache has of the sequence in `row`, which has come to `tokens` tokens."""
    columns = slice(cache.column - tokens, cache.column)
    return KeptKeys([(k[row, :, columns].clone(), v[row, :, columns].clone()) for k, v in cache.layers])


def place_kept(kept: Sequence[KeptKeys | None], lengths: Sequence[int], room: int) -> list[tuple[Tensor, Tensor]]:
    """Keys and values [P, K, room, d] of each layer: the kept ones, in columns such that all prompts end together.

    The kept ones release their memory one after the other.
    """
    layers = [
        (k.new_zeros(len(kept), len(k), room, k.shape[-1]), v.new_zeros(len(kept), len(v), room, v.shape[-1]))
        for k, v in next(filter(None, kept)).layers
    ]
    longest = max(lengths)
    for row, (keys, length) in enumerate(zip(kept, lengths, strict=True)):
        if keys:
            columns = slice(longest - length, longest - length + keys.tokens)
            for (key, value), (kept_key, kept_value) in zip(layers, keys.layers, strict=True):
                key[row, :, columns], value[row, :, columns] = kept_key, kept_value
            keys.layers.clear()
    return layers


class ContinuedLayout:
    """Attention of the new tokens to themselves and to what the caches hold, into which their keys are written.

    `layers` are rows of the batch's caches [P, K, C, d], whose prompts have `lengths` tokens and end at column
    `longest`; `new` are their last tokens, without keys as yet.
    """

    def __init__(
        self, layers: list[tuple[Tensor, Tensor]], new: Sequence[Sequence[int]], lengths: Sequence[int], longest: int
    ) -> None:
        self.layers, device = layers, layers[0][0].device
        counts_P = torch.tensor([len(tokens) for tokens in new], device=device)
        lengths_P = torch.tensor(lengths, device=device)
        self.prompts, self.most = len(new), max(map(len, new))
        self.seen = min(rounded_up(longest), layers[0][0].shape[2])
        # New tokens end together too: the last of each prompt in the last of S places.
        real_PS = torch.arange(self.most, device=device)[None] >= self.most - counts_P[:, None]
        self.rows_N, self.places_N = real_PS.nonzero(as_tuple=True)
        self.columns_N = longest - self.most + self.places_N
        self.positions_N = self.columns_N - (longest - lengths_P)[self.rows_N]
        self.last_P = counts_P.cumsum(0) - 1
        column_C = torch.arange(self.seen, device=device)
        begun_PC = column_C[None] >= (longest - lengths_P)[:, None]
        earlier_SC = column_C[None] <= torch.arange(longest - self.most, longest, device=device)[:, None]
        self.visible_PSC = begun_PC[:, None] & earlier_SC[None]

    def inputs(self, new: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Token ids and positions [1, T]; those of the padding are zeros."""
        ids_N = torch.tensor([token for tokens in new for token in tokens], device=self.rows_N.device)
        padding = (0, rounded_up(len(ids_N)) - len(ids_N))
        ids_T, positions_T = (torch.nn.functional.pad(row_N, padding) for row_N in (ids_N, self.positions_N))
        return ids_T[None], positions_T[None]

    def attend(self, module: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """[1, K R, T, d] and the new keys and values [1, K, T, d] → [1, T, K R, d]."""
        count = len(self.rows_N)
        keys, values = self.layers[module.layer_idx]
        for cached, fresh in ((keys, key), (values, value)):
            cached[self.rows_N, :, self.columns_N] = fresh[0, :, :count].transpose(0, 1).to(cached.dtype)
        heads, key_heads, width = query.shape[1], key.shape[1], query.shape[-1]
        repeats = heads // key_heads
        q_PSHd = keys.new_zeros(self.prompts, self.most, heads, width)
        q_PSHd[self.rows_N, self.places_N] = query[0, :, :count].transpose(0, 1).to(keys.dtype)
        # The R query heads of a key head one after the other, as R S queries.
        q = q_PSHd.view(self.prompts, self.most, key_heads, repeats, width).permute(0, 2, 3, 1, 4).flatten(2, 3)
        visible = self.visible_PSC.repeat(1, repeats, 1)[:, None]
        k, v = keys[:, :, : self.seen], values[:, :, : self.seen]
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=scale)
        out_PKRSd = out.view(self.prompts, key_heads, repeats, self.most, -1)
        out_PSHd = out_PKRSd.permute(0, 3, 1, 2, 4).flatten(2, 3)
        out_THd = out.new_zeros(query.shape[2], heads, out.shape[-1])
        out_THd[:count] = out_PSHd[self.rows_N, self.places_N]
        return out_THd[None].to(query.dtype)
