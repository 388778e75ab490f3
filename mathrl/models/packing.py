"""Pack groups of responses into one row of tokens without padding, with the prompt of a group once.

Shapes: T packed tokens; N response tokens that have a log-prob (see `Group.sampled`); R rows whose logits are needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mathrl.core.types import Sampled, TokenIds
from mathrl.models.attention import Block, CausalLayout, Layout, LayoutsInTurn, RowLayout, VarlenLayout
from mathrl.models.device import Device, to_device
from mathrl.models.prepared import Kernel
from mathrl.models.shapes import LONG, rounded_up

# Sequences share a block as long as at least this share of the block's queries are real tokens.
FULL_ENOUGH = 0.7
FEWEST = 16  # smaller blocks are not split off


@dataclass(frozen=True)
class Group:
    """A prompt and responses to it, as token ids.

    Example:
        Group(prompt=(7, 10, 5, 14), responses=((5, 9, 2), (3, 2)))

    `sampled` says for each response which of its tokens have a log-prob; empty: all of all responses. The others, the
    outputs of tools, are only read.
    """

    prompt: Sequence[int]
    responses: Sequence[TokenIds]
    sampled: Sequence[Sampled] = ()

    @property
    def masks(self) -> list[Sampled]:
        """`sampled`, written out where it is empty."""
        return [*self.sampled] or [np.ones(len(response), np.bool_) for response in self.responses]

    @property
    def counts(self) -> list[int]:
        """How many tokens of each response have a log-prob.

        >>> Group((1,), ((5, 9, 2), (3, 2)), (np.array([True, False, True]), np.array([True, True]))).counts
        [2, 2]
        """
        return [int(mask.sum()) for mask in self.sampled] or [len(response) for response in self.responses]

    def alone(self) -> list["Group"]:
        """Each response with the prompt as a group of its own."""
        return [self.some(place, place + 1) for place in range(len(self.responses))]

    def some(self, first: int, last: int) -> "Group":
        """The group with the responses `first` to `last` (exclusive) alone."""
        return Group(self.prompt, self.responses[first:last], self.sampled[first:last])

    @property
    def packed_tokens(self) -> int:
        """Tokens in a packed row by any kernel (see `tokens_by`); so a dataset is divided alike on every device."""
        return self.tokens_by("cpu")

    def tokens_by(self, kernel: Kernel) -> int:
        """Tokens in a row packed for a kernel: the last token of a response is predicted but never an input.

        >>> long = Group(range(1000), [range(101), range(51)])
        >>> long.tokens_by("cpu"), long.tokens_by("varlen")
        (2150, 1150)
        """
        prompts = len(self.responses) if self.long and kernel != "varlen" else 1
        return len(self.prompt) * prompts + sum(len(response) - 1 for response in self.responses)

    @property
    def long(self) -> bool:
        """Whether a response with its prompt is so long that only the kernel varlen shares the prompt."""
        return len(self.prompt) + max(len(response) for response in self.responses) > LONG

    def cut_places(self, budget: int, kernel: Kernel = "cpu") -> list[int]:
        """Where the responses are cut so that each part has at most `budget` packed tokens: 0, …, their number.

        The prompt stands in each part; a response that is longer alone stands alone.

        >>> Group((1, 2), ((3, 4), (5, 6), (7, 8))).cut_places(4)
        [0, 2, 3]
        """
        places = [0]
        if self.tokens_by(kernel) > budget:
            for place in range(1, len(self.responses)):
                if Group(self.prompt, self.responses[places[-1] : place + 1]).tokens_by(kernel) > budget:
                    places.append(place)
        return [*places, len(self.responses)]

    def cut(self, budget: int, kernel: Kernel) -> list["Group"]:
        """The group in parts (see `cut_places`)."""
        places = self.cut_places(budget, kernel)
        return [self.some(start, end) for start, end in pairwise(places)]


@dataclass(frozen=True)
class PackedBatch:
    """Inputs of one forward pass.

    `rows_R` are the packed tokens whose logits are needed; the n-th response token (groups, responses,
    tokens in order) is `targets_N[n]` and is predicted by logits row `row_of_N[n]`. The first tokens of all
    responses of a group share the row of the prompt's last token.
    """

    input_ids_1T: Tensor
    position_ids_1T: Tensor
    layout: RowLayout
    rows_R: Tensor
    row_of_N: Tensor
    targets_N: Tensor


@dataclass(frozen=True)
class _Sequence:
    """Tokens start to start + length of the row, which also see the `prefix` tokens at `prefix_start`."""

    start: int
    length: int
    prefix_start: int = 0
    prefix: int = 0


def pack(groups: Sequence[Group], device: Device = "cpu", kernel: Kernel = "cpu") -> PackedBatch:
    """Pack groups into one row; every group has a non-empty prompt and non-empty responses.

    Only the kernel varlen shares the prompt of groups that are `long`; with another these come first in the row.
    """
    long = [kernel != "varlen" and group.long for group in groups]
    if len(set(long)) < 2:
        return _pack_alike(groups, any(long), device, kernel)
    ahead = [group for group, is_long in zip(groups, long, strict=True) if is_long]
    behind = [group for group, is_long in zip(groups, long, strict=True) if not is_long]
    first = _pack_alike(ahead, True, device, kernel, padded=False)
    tokens = first.input_ids_1T.shape[1]
    second = _pack_alike(behind, False, device, kernel, ahead=tokens)
    counts = [sum(group.counts) for group in groups]
    return PackedBatch(
        input_ids_1T=torch.cat([first.input_ids_1T, second.input_ids_1T], 1),
        position_ids_1T=torch.cat([first.position_ids_1T, second.position_ids_1T], 1),
        layout=LayoutsInTurn([first.layout, second.layout], [tokens, second.input_ids_1T.shape[1]]),
        rows_R=torch.cat([first.rows_R, second.rows_R + tokens]),
        row_of_N=_merge(long, counts, first.row_of_N, second.row_of_N + len(first.rows_R)),
        targets_N=_merge(long, counts, first.targets_N, second.targets_N),
    )


def _merge(in_first: Sequence[bool], counts: Sequence[int], first_N: Tensor, second_N: Tensor) -> Tensor:
    """The values of groups in the groups' order; each has as many as it counts, in one of two tensors."""
    parts = {}
    for kind, values_N in ((True, first_N), (False, second_N)):
        sizes = [count for count, is_first in zip(counts, in_first, strict=True) if is_first == kind]
        parts[kind] = iter(torch.split(values_N, sizes))
    return torch.cat([next(parts[is_first]) for is_first in in_first])


def _pack_alike(
    groups: Sequence[Group], long: bool, device: Device, kernel: Kernel, *, ahead: int = 0, padded: bool = True
) -> PackedBatch:
    """Pack groups of which all or none are `long`, the row padded so that it has a usual size with those `ahead`."""
    if long:
        groups = [single for group in groups for single in group.alone()]
    tokens: list[TokenIds] = []
    positions: list[np.ndarray[Any, Any]] = []
    sequences: list[_Sequence] = []
    rows: list[np.ndarray[Any, Any]] = []
    row_of: list[np.ndarray[Any, Any]] = []
    targets: list[TokenIds] = []
    row_count = total = 0
    for group in groups:
        start, prompt = total, len(group.prompt)
        tokens.append(group.prompt)
        total += prompt
        positions.append(np.arange(prompt))
        rows.append(np.array([start + prompt - 1]))
        last_of_prompt = row_count
        row_count += 1
        single = len(group.responses) == 1
        if not single:
            sequences.append(_Sequence(start, prompt))
        for number, response in enumerate(group.responses):
            first, inputs = total, len(response) - 1
            tokens.append(response[:-1])
            total += inputs
            positions.append(np.arange(prompt, prompt + inputs))
            rows.append(np.arange(first, first + inputs))
            predicted_by = np.append(last_of_prompt, np.arange(row_count, row_count + inputs))
            row_of.append(predicted_by[group.sampled[number]] if group.sampled else predicted_by)
            targets.append(np.asarray(response)[group.sampled[number]] if group.sampled else response)
            row_count += inputs
            if single:
                sequences.append(_Sequence(start, prompt + inputs))
            elif inputs:
                sequences.append(_Sequence(first, inputs, start, prompt))
    # Padding tokens, which no token sees and which have no loss.
    padding = rounded_up(ahead + total) - ahead - total if padded else 0
    if padding and (long or kernel == "varlen"):
        sequences.append(_Sequence(total, padding))
    elif padding:
        sequences.extend(_Sequence(total + extra, 1) for extra in range(padding))
    tokens.append([0] * padding)
    positions.append(np.zeros(padding, int))
    ids_T, positions_T, rows_R, row_of_N, targets_N = (
        _move(np.concatenate([[], *parts], dtype=np.int64, casting="unsafe"), device)
        for parts in (tokens, positions, rows, row_of, targets)
    )
    layout: RowLayout
    if kernel == "varlen":
        layout = varlen_layout(sequences, len(ids_T), device)
    elif long:
        layout = CausalLayout([sequence.length for sequence in sequences])
    else:
        layout = make_layout(sequences, len(ids_T), device)
    return PackedBatch(
        input_ids_1T=ids_T[None],
        position_ids_1T=positions_T[None],
        layout=layout,
        rows_R=rows_R,
        row_of_N=row_of_N,
        targets_N=targets_N,
    )


def _move(array: np.ndarray[Any, Any], device: Device) -> Tensor:
    tensor = torch.from_numpy(array)
    return tensor if torch.device(device).type == "cpu" else to_device(tensor, device)


def pack_prompts(
    prompts: Sequence[Sequence[int]], device: Device = "cpu", kernel: Kernel = "cpu"
) -> tuple[Tensor, Tensor, Layout | VarlenLayout, Tensor]:
    """Prompts in one row: input_ids [1, T], position_ids [1, T], a capturing layout, last tokens' rows."""
    real = sum(len(prompt) for prompt in prompts)
    padding = rounded_up(real) - real
    lengths = np.array([len(prompt) for prompt in prompts] + [1] * padding)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    sequences = [_Sequence(int(start), int(length)) for start, length in zip(starts, lengths, strict=True)]
    make = varlen_layout if kernel == "varlen" else make_layout
    layout: Layout | VarlenLayout = make(sequences, int(lengths.sum()), device)
    layout.capture = True
    ids = torch.tensor([token for prompt in prompts for token in prompt] + [0] * padding, device=device)
    positions = torch.from_numpy(np.concatenate([np.arange(length) for length in lengths])).to(device)
    last = torch.from_numpy(starts + lengths - 1)[: len(prompts)]
    return ids[None], positions[None], layout, last.to(device)


def make_layout(sequences: list[_Sequence], tokens: int, device: Device) -> Layout:
    """Blocks of sequences of similar length, and for each token its places in them."""
    blocks: list[Block] = []
    place = np.zeros(tokens, np.int64)
    use_rows: list[np.ndarray[Any, Any]] = []
    use_places: list[np.ndarray[Any, Any]] = []
    query_base = key_base = 0
    for members in _by_length(sequences):
        start, length, prefix_start, prefix = (
            np.array([getattr(sequence, name) for sequence in members])[:, None]
            for name in ("start", "length", "prefix_start", "prefix")
        )
        longest, longest_prefix = int(length.max()), int(prefix.max())
        # Softmax over a multiple of sixteen keys is up to eight times as fast on a CPU.
        longest_prefix += -(longest + longest_prefix) % 16
        query = np.arange(longest)[None]
        real_query = query < length
        query_rows = np.where(real_query, start + query, 0)
        # Keys: the prefix, ending at column longest_prefix, then the sequence's own tokens.
        column = np.arange(longest_prefix)[None] - (longest_prefix - prefix)
        key_rows = np.concatenate([np.where(column >= 0, prefix_start + column, 0), query_rows], axis=1)
        real_key = np.concatenate([column >= 0, real_query], axis=1)
        later = np.concatenate(
            [np.zeros((longest, longest_prefix), bool), np.triu(np.ones((longest, longest), bool), 1)], axis=1
        )[None]
        if not (column >= 0).all():
            no_prefix = np.concatenate([column < 0, np.zeros_like(real_query)], axis=1)
            later = later | (no_prefix if (prefix != prefix[0]).any() else no_prefix[:1])[:, None, :]
        place[query_rows[real_query]] = query_base + np.flatnonzero(real_query)
        use_rows.append(key_rows[real_key])
        use_places.append(key_base + np.flatnonzero(real_key))
        query_base += query_rows.size
        key_base += key_rows.size
        blocks.append(
            Block(
                query_rows_Sq=_move(query_rows, device),
                key_rows_Sk=_move(key_rows, device),
                padding_rows=_move(np.flatnonzero(~real_query), device),
                bias_Sqk=_move(np.where(later, np.float32(-np.inf), np.float32(0)), device),
            )
        )
    uses, use_starts_T = _uses(np.concatenate(use_rows), np.concatenate(use_places), tokens, device)
    return Layout(blocks=blocks, place_T=_move(place, device), uses=uses, use_starts_T=use_starts_T)


def varlen_layout(sequences: list[_Sequence], tokens: int, device: torch.device | str) -> VarlenLayout:
    """The sequences, which lie in the row one after the other, for one call of flash attention."""
    lengths = np.array([sequence.length for sequence in sequences])
    key_lengths = lengths + np.array([sequence.prefix for sequence in sequences])
    rows = [
        np.arange(start, start + length)
        for sequence in sequences
        for start, length in ((sequence.prefix_start, sequence.prefix), (sequence.start, sequence.length))
    ]
    key_rows = np.concatenate(rows)
    uses_U, use_starts_T = _uses(key_rows, np.arange(len(key_rows)), tokens, device)
    query_starts_S1, key_starts_S1 = (
        _move(np.concatenate([[0], np.cumsum(values)]).astype(np.int32), device) for values in (lengths, key_lengths)
    )
    return VarlenLayout(
        query_starts_S1=query_starts_S1,
        key_starts_S1=key_starts_S1,
        longest_query=int(lengths.max()),
        longest_key=int(key_lengths.max()),
        key_rows_U=_move(key_rows, device) if len(key_rows) > tokens else None,
        uses_U=uses_U,
        use_starts_T=use_starts_T,
    )


def _uses(
    rows: np.ndarray[Any, Any], places: np.ndarray[Any, Any], tokens: int, device: torch.device | str
) -> tuple[Tensor, Tensor]:
    """Of `places` that hold the tokens `rows`: the places of each token, one token after another, and their starts."""
    order = np.argsort(rows, kind="stable")
    counts = np.bincount(rows, minlength=tokens)
    return _move(places[order], device), _move(np.concatenate([[0], np.cumsum(counts)[:-1]]), device)


def _by_length(sequences: list[_Sequence]) -> list[list[_Sequence]]:
    """Split into blocks of similar length, those with a prefix apart from those without."""
    blocks: list[list[_Sequence]] = []
    for with_prefix in (False, True):
        chosen = [sequence for sequence in sequences if bool(sequence.prefix) == with_prefix]
        chosen.sort(key=lambda sequence: (-sequence.length, sequence.start))
        block: list[_Sequence] = []
        real = 0
        for sequence in chosen:
            filled = (real + sequence.length) / ((len(block) + 1) * block[0].length) if block else 1.0
            if len(block) >= FEWEST and filled < FULL_ENOUGH:
                blocks.append(block)
                block, real = [], 0
            block.append(sequence)
            real += sequence.length
        if block:
            blocks.append(block)
    return blocks
