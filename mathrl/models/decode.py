"""Prefill and token-by-token decoding of a batch, in three forms with the same four methods.

- `prefill` runs the prompts and returns logits [P samples, V] of each sequence's first token; of a prompt whose first
  tokens are kept from an earlier batch, only the others are run;
- `step` appends a token to each sequence and returns logits [B, V] of the next;
- `keep` continues with the given sequences only;
- `kept` copies the keys and values of a sequence, None where the form cannot continue from them.

`PackedDecoder` runs the prompts without padding, once each, and decodes from a preallocated cache of its own.
`CachedDecoder` does the same with the model's own attention and cache, for models that cannot be packed.
`RecomputingDecoder` runs all tokens of a sequence for each new one, for models whose cache gives other numbers.

Shapes: P prompts; B sequences (P times samples at first); K key heads, d head width; C cache columns.
"""

import inspect
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from mathrl.models.attention import DecodeCache, packed_inputs
from mathrl.models.continuation import ContinuedLayout, KeptKeys, kept_keys, place_kept
from mathrl.models.kernels import attention_kernel
from mathrl.models.packing import pack_prompts
from mathrl.models.transformers_import import PreTrainedConfig

FIRST_COLUMNS = 128  # new tokens that the cache has room for at first; doubled when it is full
MOST_PROMPT_TOKENS = 65_536  # of one pass: responses that are continued are prompts of thousands of tokens
Prompts = Sequence[Sequence[int]]
Kept = Sequence[KeptKeys | None]  # of each prompt; empty: of none


class Decoder(Protocol):
    """See this module."""

    def prefill(self, prompts: Prompts, samples: int, max_tokens: int, kept: Kept = ()) -> Tensor: ...

    def step(self, tokens_B: Tensor) -> Tensor: ...

    def keep(self, rows: Tensor) -> None: ...

    def kept(self, row: int) -> KeptKeys | None: ...


class PackedDecoder:
    """Packed prompts, with mathrl's attention and cache."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def prefill(self, prompts: Prompts, samples: int, max_tokens: int, kept: Kept = ()) -> Tensor:
        if any(kept):
            return self._continue(prompts, samples, max_tokens, kept)
        device = self.model.device
        passes = [self._read(piece) for piece in _pieces(prompts)]
        starts = [0, *accumulate(len(captured[0][0]) for captured, _, _ in passes)]
        last_P = torch.cat([last + start for (_, last, _), start in zip(passes, starts, strict=False)])
        captured = [
            [torch.cat(parts) if len(passes) > 1 else parts[0] for parts in zip(*pairs, strict=True)]
            for pairs in zip(*(captured for captured, _, _ in passes), strict=True)
        ]
        lengths_P = torch.tensor([len(prompt) for prompt in prompts], device=device)
        longest = int(lengths_P.max())
        # Prompts end at column `longest`, so that all sequences write their next key to the same column.
        column_PC = torch.arange(longest, device=device)[None] - (longest - lengths_P[:, None])
        rows_PC = torch.where(column_PC >= 0, (last_P - lengths_P + 1)[:, None] + column_PC, 0)
        room = _room(longest, max_tokens)
        layers = [
            (self._spread(key, rows_PC, samples, room), self._spread(value, rows_PC, samples, room))
            for key, value in captured
        ]
        self._fill(layers, column_PC, lengths_P, samples)
        return torch.cat([logits for _, _, logits in passes]).repeat_interleave(samples, 0)

    def _fill(self, layers: list[tuple[Tensor, Tensor]], column_PC: Tensor, lengths_P: Tensor, samples: int) -> None:
        """The cache, with every sequence's prompt in its columns of 0 and more."""
        longest = column_PC.shape[1]
        bias_PC = torch.full((len(lengths_P), layers[0][0].shape[2]), -torch.inf, device=lengths_P.device)
        bias_PC[:, :longest].masked_fill_(column_PC >= 0, 0.0)
        self.cache = DecodeCache(layers, bias_PC.repeat_interleave(samples, 0), longest)
        self.positions_B = lengths_P.repeat_interleave(samples)

    def _continue(self, prompts: Prompts, samples: int, max_tokens: int, kept: Kept) -> Tensor:
        """`prefill` that runs only the tokens whose keys are not kept."""
        lengths = [len(prompt) for prompt in prompts]
        longest = max(lengths)
        new = [prompt[keys.tokens if keys else 0 :] for prompt, keys in zip(prompts, kept, strict=True)]
        layers = place_kept(kept, lengths, _room(longest, max_tokens))
        logits, start = [], 0
        for piece in _pieces(new):
            rows = slice(start, start + len(piece))
            layout = ContinuedLayout([(k[rows], v[rows]) for k, v in layers], piece, lengths[rows], longest)
            ids_1T, positions_1T = layout.inputs(piece)
            out = self.model(
                input_ids=ids_1T,
                position_ids=positions_1T,
                layout=layout,
                logits_to_keep=layout.last_P,
                **packed_inputs(self.model),
            )
            logits.append(out.logits[0])
            start = rows.stop
        lengths_P = torch.tensor(lengths, device=self.model.device)
        column_PC = torch.arange(longest, device=self.model.device)[None] - (longest - lengths_P[:, None])
        if samples > 1:
            layers = [(k.repeat_interleave(samples, 0), v.repeat_interleave(samples, 0)) for k, v in layers]
        self._fill(layers, column_PC, lengths_P, samples)
        return torch.cat(logits).repeat_interleave(samples, 0)

    def _read(self, prompts: Prompts) -> tuple[list[tuple[Tensor, Tensor]], Tensor, Tensor]:
        """One packed pass: keys and values of each layer, the rows of the prompts' last tokens, and their logits."""
        ids, positions, layout, last_P = pack_prompts(prompts, self.model.device, attention_kernel(self.model))
        out = self.model(
            input_ids=ids, position_ids=positions, layout=layout, logits_to_keep=last_P, **packed_inputs(self.model)
        )
        return layout.captured, last_P, out.logits[0]

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

    def kept(self, row: int) -> KeptKeys:
        return kept_keys(self.cache, row, int(self.positions_B[row]))


def _room(longest: int, max_tokens: int) -> int:
    """Columns of a cache at first."""
    return -(-(longest + min(max_tokens, FIRST_COLUMNS)) // 16) * 16


def _pieces(prompts: Prompts) -> list[Prompts]:
    """Consecutive prompts of at most `MOST_PROMPT_TOKENS` tokens together; a longer prompt stands alone."""
    pieces: list[list[Sequence[int]]] = []
    room = 0
    for prompt in prompts:
        if not pieces or len(prompt) > room:
            pieces.append([])
            room = MOST_PROMPT_TOKENS
        pieces[-1].append(prompt)
        room -= len(prompt)
    return list(pieces)


class CachedDecoder:
    """The model's own attention and cache, prompts padded on the left; inputs as its `generate` prepares them."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def prefill(self, prompts: Prompts, samples: int, max_tokens: int, kept: Kept = ()) -> Tensor:
        device, longest = self.model.device, max(len(prompt) for prompt in prompts)
        self.ids_BC = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device)
        real_BC = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
        self.inputs: dict[str, Any] = {"attention_mask": real_BC, "use_cache": True}
        if "position_ids" in inspect.signature(self.model.forward).parameters:
            self.inputs["position_ids"] = (real_BC.cumsum(-1) - 1).clamp(min=0)
        logits = self._forward(is_first_iteration=True)
        rows = torch.arange(len(prompts), device=device).repeat_interleave(samples)
        self.keep(rows)
        return logits.index_select(0, rows)

    def step(self, tokens_B: Tensor) -> Tensor:
        self.ids_BC = torch.cat([self.ids_BC, tokens_B[:, None]], dim=1)
        return self._forward(next_sequence_length=1)

    def _forward(self, **options: Any) -> Tensor:
        inputs = self.model.prepare_inputs_for_generation(self.ids_BC, **self.inputs, **options)
        out = self.model(**inputs, return_dict=True)
        self.inputs = self.model._update_model_kwargs_for_generation(out, self.inputs)
        logits: Tensor = out.logits[:, -1]
        return logits

    def keep(self, rows: Tensor) -> None:
        copies: dict[int, tuple[Any, Any]] = {}
        self.inputs = {name: _select(value, rows, len(self.ids_BC), copies) for name, value in self.inputs.items()}
        self.ids_BC = self.ids_BC.index_select(0, rows)

    def kept(self, row: int) -> None:
        return None


def _select(value: Any, rows: Tensor, batch: int, copies: dict[int, tuple[Any, Any]]) -> Any:
    """These rows of every tensor with `batch` rows in a cache, whatever its class; objects are changed in place.

    transformers' caches have `batch_repeat_interleave`, `batch_select_indices` and `reorder_cache`, but no class of a
    hybrid model has all of them, and some leave states of their own out.
    """
    if id(value) in copies:
        return copies[id(value)][1]
    selected = value
    if isinstance(value, Tensor):
        if value.dim() > 0 and value.shape[0] == batch:
            selected = value.index_select(0, rows)
    elif isinstance(value, dict):
        return {key: _select(entry, rows, batch, copies) for key, entry in value.items()}
    elif isinstance(value, (list, tuple)):
        return type(value)(_select(entry, rows, batch, copies) for entry in value)
    elif hasattr(value, "__dict__") and not isinstance(value, type | nn.Module | PreTrainedConfig):
        copies[id(value)] = (value, value)  # first, should it hold itself
        vars(value).update(_select(vars(value), rows, batch, copies))
    copies[id(value)] = (value, selected)  # with the value, whose id is free when it is gone
    return selected


class RecomputingDecoder:
    """No cache: every token costs a forward pass over its whole sequence, padded on the right as in training."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def prefill(self, prompts: Prompts, samples: int, max_tokens: int, kept: Kept = ()) -> Tensor:
        lengths = [len(prompt) for prompt in prompts for _ in range(samples)]
        self.lengths_B = torch.tensor(lengths, device=self.model.device)
        ids = [list(prompt) + [0] * (max(lengths) - len(prompt)) for prompt in prompts for _ in range(samples)]
        self.ids_BC = torch.tensor(ids, device=self.model.device)
        return self._forward()

    def step(self, tokens_B: Tensor) -> Tensor:
        self.ids_BC = torch.nn.functional.pad(self.ids_BC, (0, 1))
        self.ids_BC.scatter_(1, self.lengths_B[:, None], tokens_B[:, None])
        self.lengths_B = self.lengths_B + 1
        return self._forward()

    def _forward(self) -> Tensor:
        columns = torch.arange(self.ids_BC.shape[1], device=self.ids_BC.device)
        real_BC = (columns < self.lengths_B[:, None]).long()
        logits: Tensor = self.model(input_ids=self.ids_BC, attention_mask=real_BC, use_cache=False).logits
        return logits[torch.arange(len(logits), device=logits.device), self.lengths_B - 1]

    def keep(self, rows: Tensor) -> None:
        self.ids_BC, self.lengths_B = self.ids_BC.index_select(0, rows), self.lengths_B.index_select(0, rows)

    def kept(self, row: int) -> None:
        return None
