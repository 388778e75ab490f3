"""Prefill and token-by-token decoding of a batch, behind one small interface with two forms.

`PackedDecoder` runs the prompts without padding, once each, and decodes from a preallocated cache of its own.
`PlainDecoder` does the same with the model's own attention and cache, for models that cannot be packed.

Shapes: P prompts; B sequences (P times samples at first); K key heads, d head width; C cache columns.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from mathrl.models.attention import DecodeCache, packed_inputs
from mathrl.models.packing import pack_prompts

FIRST_COLUMNS = 128  # new tokens that the cache has room for at first; doubled when it is full


class Decoder(Protocol):
    """A batch being decoded."""

    def prefill(self, prompts: Sequence[Sequence[int]], samples: int, max_tokens: int) -> Tensor:
        """Run the prompts; logits [P samples, V] of each sequence's first token."""
        ...

    def step(self, tokens_B: Tensor) -> Tensor:
        """Append a token to each sequence; logits [B, V] of the next."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Continue with these sequences only."""
        ...


class PackedDecoder:
    """Packed prompts, with mathrl's attention and cache."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def prefill(self, prompts: Sequence[Sequence[int]], samples: int, max_tokens: int) -> Tensor:
        device = self.model.device
        ids, positions, layout, last_P = pack_prompts(prompts, device)
        out = self.model(
            input_ids=ids, position_ids=positions, layout=layout, logits_to_keep=last_P, **packed_inputs(self.model)
        )
        lengths_P = torch.tensor([len(prompt) for prompt in prompts], device=device)
        longest = int(lengths_P.max())
        # Prompts end at column `longest`, so that all sequences write their next key to the same column.
        column_PC = torch.arange(longest, device=device)[None] - (longest - lengths_P[:, None])
        rows_PC = torch.where(column_PC >= 0, (last_P - lengths_P + 1)[:, None] + column_PC, 0)
        room = -(-(longest + min(max_tokens, FIRST_COLUMNS)) // 16) * 16
        layers = [
            (self._spread(key, rows_PC, samples, room), self._spread(value, rows_PC, samples, room))
            for key, value in layout.captured
        ]
        bias_PC = torch.full((len(prompts), room), -torch.inf, device=device)
        bias_PC[:, :longest].masked_fill_(column_PC >= 0, 0.0)
        self.cache = DecodeCache(layers, bias_PC.repeat_interleave(samples, 0), longest)
        self.positions_B = lengths_P.repeat_interleave(samples)
        logits: Tensor = out.logits[0].repeat_interleave(samples, 0)
        return logits

    def _spread(self, packed_TKd: Tensor, rows_PC: Tensor, samples: int, room: int) -> Tensor:
        """[P samples, K, room, d] with each prompt's keys in its samples' first columns."""
        prompts, longest = rows_PC.shape
        _, heads, width = packed_TKd.shape
        keys_PCKd = packed_TKd.float().index_select(0, rows_PC.view(-1)).view(prompts, longest, heads, width)
        out = packed_TKd.new_zeros(prompts, samples, heads, room, width, dtype=torch.float32)
        out[:, :, :, :longest] = keys_PCKd.transpose(1, 2)[:, None]
        return out.flatten(0, 1)

    def step(self, tokens_B: Tensor) -> Tensor:
        if self.cache.column == self.cache.bias_BL.shape[1]:
            self.cache.grow()
        out = self.model(
            input_ids=tokens_B[None],
            position_ids=self.positions_B[None],
            layout=self.cache,
            **packed_inputs(self.model),
        )
        self.cache.column += 1
        self.positions_B = self.positions_B + 1
        logits: Tensor = out.logits[0]
        return logits

    def keep(self, rows: Tensor) -> None:
        self.cache.keep(rows)
        self.positions_B = self.positions_B.index_select(0, rows)


class PlainDecoder:
    """The model's own attention, its cache, prompts padded on the left."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def prefill(self, prompts: Sequence[Sequence[int]], samples: int, max_tokens: int) -> Tensor:
        device = self.model.device
        longest = max(len(prompt) for prompt in prompts)
        ids_PC = torch.zeros(len(prompts), longest, dtype=torch.long)
        real_PC = torch.zeros(len(prompts), longest, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids_PC[row, longest - len(prompt) :] = torch.tensor(list(prompt))
            real_PC[row, longest - len(prompt) :] = 1
        real_PC = real_PC.to(device)
        out = self.model(
            input_ids=ids_PC.to(device),
            attention_mask=real_PC,
            use_cache=True,
            position_ids=(real_PC.cumsum(-1) - 1).clamp(min=0),
        )
        self.past = out.past_key_values
        self.past.batch_repeat_interleave(samples)
        self.real_BC = real_PC.repeat_interleave(samples, 0)
        logits: Tensor = out.logits[:, -1].repeat_interleave(samples, 0)
        return logits

    def step(self, tokens_B: Tensor) -> Tensor:
        position_B1 = self.real_BC.sum(-1, keepdim=True)
        self.real_BC = torch.cat([self.real_BC, torch.ones_like(position_B1)], dim=1)
        out = self.model(
            input_ids=tokens_B[:, None],
            attention_mask=self.real_BC,
            position_ids=position_B1,
            past_key_values=self.past,
            use_cache=True,
        )
        self.past = out.past_key_values
        logits: Tensor = out.logits[:, -1]
        return logits

    def keep(self, rows: Tensor) -> None:
        self.past.batch_select_indices(rows)
        self.real_BC = self.real_BC.index_select(0, rows)
