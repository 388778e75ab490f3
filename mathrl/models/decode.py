"""Prefill and token-by-token decoding of a batch, in three forms with the same four methods.

- `prefill` runs the prompts and returns logits [P samples, V] of each sequence's first token; of a prompt whose first
  tokens are kept from an earlier batch, only the others are run;
- `step` appends a token to each sequence and returns logits [B, V] of the next;
- `keep` continues with the given sequences only;
- `join` (the packed form alone) continues with the given sequences and those of new prompts;
- `keys_of_row` copies the keys and values of a sequence, None where the form cannot continue from them.

`PackedDecoder` runs the prompts without padding, once each, and decodes from a preallocated cache of its own.
`CachedDecoder` does the same with the model's own attention and cache, for models that cannot be packed.
`RecomputingDecoder` runs all tokens of a sequence for each new one, for models whose cache gives other numbers.

Shapes: P prompts; B sequences (P times samples at first); K key heads, d head width; C cache columns.

Prompts that continue sequences of an earlier batch, whose keys and values were kept: only the new tokens are run.

Shapes: P prompts; N new tokens of all of them, T with padding; S the most new tokens of a prompt; C cache columns;
K key heads, R query heads per key head, d head width.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from mathrl.models.attention import DecodeCache, packed_inputs
from mathrl.models.kernels import attention_kernel
from mathrl.models.packing import pack_prompts
from mathrl.models.shapes import rounded_up
from mathrl.models.transformers_import import PreTrainedConfig


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


FIRST_COLUMNS = 128  # new tokens that the cache has room for at first; doubled when it is full
MOST_PROMPT_TOKENS = 65_536  # of one pass: responses that are continued are prompts of thousands of tokens
Prompts = Sequence[Sequence[int]]
Kept = Sequence[KeptKeys | None]  # of each prompt; empty: of none


class Decoder(Protocol):
    """See this module."""

    def prefill(self, prompts: Prompts, samples: int, max_tokens: int, kept: Kept = ()) -> Tensor: ...

    def step(self, tokens_B: Tensor) -> Tensor: ...

    def keep(self, rows: Tensor) -> None: ...

    def keys_of_row(self, row: int) -> KeptKeys | None: ...


class PackedDecoder:
    """Packed prompts, with mathrl's attention and cache."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def prefill(self, prompts: Prompts, samples: int, max_tokens: int, kept: Kept = ()) -> Tensor:
        if any(kept):
            return self._continue(prompts, samples, max_tokens, kept)
        device = self.model.device
        captured, last_P, logits_PV = self._read_all(prompts)
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
        return logits_PV.repeat_interleave(samples, 0)

    def join(self, rows: Tensor, prompts: Prompts, prompt_N: Tensor, max_tokens: int) -> Tensor:
        """Go on with the sequences `rows` and with new ones, `prompt_N` saying of which prompt each of them is.

        Returns:
            The logits [N, V] of the new sequences' first tokens. The next `step` is of the rows, then of the new ones.
        """
        device = self.model.device
        captured, last_P, logits_PV = self._read_all(prompts)
        lengths_P = torch.tensor([len(prompt) for prompt in prompts], device=device)
        old_B = self.positions_B.index_select(0, rows) if len(rows) else lengths_P[:0]
        lengths_B = torch.cat([old_B, lengths_P[prompt_N]])
        longest = int(lengths_B.max())
        columns = torch.arange(longest, device=device)[None]
        column_PC = columns - (longest - lengths_P[:, None])
        rows_PC = torch.where(column_PC >= 0, (last_P - lengths_P + 1)[:, None] + column_PC, 0)
        room = _room(longest, max_tokens)
        layers: list[tuple[Tensor, Tensor]] = []
        for number, pair in enumerate(captured):
            spread = [self._spread(packed, rows_PC, 1, room).index_select(0, prompt_N) for packed in pair]
            if len(rows):
                before = [self._columns_so_far(number, part, rows, longest, room) for part in (0, 1)]
                spread = [torch.cat(pair) for pair in zip(before, spread, strict=True)]
            layers.append((spread[0], spread[1]))
        self._fill(layers, columns - (longest - lengths_B[:, None]), lengths_B, 1)
        return logits_PV.index_select(0, prompt_N)

    def _columns_so_far(self, layer: int, part: int, rows: Tensor, longest: int, room: int) -> Tensor:
        """Keys (part 0) or values of the rows [R, K, room, d], such that they end at column `longest`."""
        column = self.cache.column
        seen = min(longest, column)
        kept = self.cache.layers[layer][part][:, :, column - seen : column].index_select(0, rows)
        return torch.nn.functional.pad(kept, (0, 0, longest - seen, room - longest))

    def _read_all(self, prompts: Prompts) -> tuple[list[list[Tensor]], Tensor, Tensor]:
        """Keys and values [T, K, d] of each layer, the rows [P] of the last tokens, and the logits [P, V] of these."""
        passes = [self._read(piece) for piece in _pieces(prompts)]
        starts = [0, *accumulate(len(captured[0][0]) for captured, _, _ in passes)]
        last_P = torch.cat([last + start for (_, last, _), start in zip(passes, starts, strict=False)])
        captured = [
            [torch.cat(parts) if len(passes) > 1 else parts[0] for parts in zip(*pairs, strict=True)]
            for pairs in zip(*(captured for captured, _, _ in passes), strict=True)
        ]
        return captured, last_P, torch.cat([logits for _, _, logits in passes])

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

    def keys_of_row(self, row: int) -> KeptKeys:
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

    def keys_of_row(self, row: int) -> None:
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

    def keys_of_row(self, row: int) -> None:
        return None
