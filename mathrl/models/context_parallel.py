"""Context parallelism (Ulysses, arXiv:2309.14509): the C ranks of a group share the tokens of each packed row.

A rank runs the model on its T / C consecutive tokens of the row. Around attention the ranks exchange heads for tokens,
so that each computes H / C heads for all T tokens, by the row's layout as it is. All but attention treats each token
alone, so it needs no exchange. The values of the response tokens are then put together at every rank of the group:
the loss is computed at each of them alike, and the gradient of a rank is that of its own tokens.

Shapes: T packed tokens, t = T / C of a rank; H query heads, K key heads of width d; N response tokens, n of a rank.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mathrl.core.errors import UserError
from mathrl.models.attention import RowLayout
from mathrl.models.packing import PackedBatch
from mathrl.models.shapes import check_heads
from mathrl.models.trial import one_batch_limit

MARK = "_context"  # in the model's __dict__


@dataclass(frozen=True)
class ContextGroup:
    """This rank's group: the process group, this rank's place in it, and the number of its ranks."""

    group: Any
    rank: int
    size: int


@dataclass
class SharedLayout:
    """The layout of a whole row, for a model that runs on this rank's tokens of it."""

    whole: RowLayout
    context: ContextGroup

    def attend(self, module: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """[1, H, t, d], [1, K, t, d], [1, K, t, d] → [1, t, H, d]."""
        query, key, value = (self._all_tokens(heads_1ntd) for heads_1ntd in (query, key, value))
        return self._own_tokens(self.whole.attend(module, query, key, value, scale))

    def _all_tokens(self, heads_1ntd: Tensor) -> Tensor:
        """[1, n, t, d] → [1, n / C, T, d]; of fewer than C heads each goes to the ranks with its queries."""
        size, heads = self.context.size, heads_1ntd.shape[1]
        if heads < size:
            heads_1ntd = heads_1ntd.repeat_interleave(size // heads, 1)
        return self._exchange(torch.unflatten(heads_1ntd[0], 0, (size, -1))).transpose(0, 1).flatten(1, 2)[None]

    def _own_tokens(self, out_1Thd: Tensor) -> Tensor:
        """[1, T, H / C, d] → [1, t, H, d]."""
        blocks = self._exchange(torch.unflatten(out_1Thd[0], 0, (self.context.size, -1)))
        return blocks.transpose(0, 1).flatten(1, 2)[None]

    def _exchange(self, blocks_C: Tensor) -> Tensor:
        exchanged: Tensor = _Exchange.apply(blocks_C, self.context.group)  # type: ignore[no-untyped-call]
        return exchanged


class _Exchange(torch.autograd.Function):
    """Block r goes to rank r; what comes from rank r is block r. The backward pass is the same exchange."""

    @staticmethod
    def forward(ctx: Any, blocks_C: Tensor, group: Any) -> Tensor:  # type: ignore[override]
        ctx.group, received = group, torch.empty_like(blocks_C, memory_format=torch.contiguous_format)
        dist.all_to_all_single(received, blocks_C.contiguous(), group=group)
        return received

    @staticmethod
    def backward(ctx: Any, grad_C: Tensor) -> Any:  # type: ignore[override]
        return _Exchange.apply(grad_C, ctx.group), None  # type: ignore[no-untyped-call]


class _Joined(torch.autograd.Function):
    """Values of this rank's tokens → those of all; every rank uses all of them alike, so none is summed backward."""

    @staticmethod
    def forward(ctx: Any, values_n: Tensor, places_n: Tensor, count: int, group: Any) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(places_n)
        values_N = values_n.new_zeros(count, *values_n.shape[1:]).index_copy_(0, places_n, values_n)
        dist.all_reduce(values_N, group=group)  # each has one summand that is not zero
        return values_N

    @staticmethod
    def backward(ctx: Any, grad_N: Tensor) -> Any:  # type: ignore[override]
        (places_n,) = ctx.saved_tensors
        return grad_N.index_select(0, places_n), None, None, None


@dataclass(frozen=True)
class RowShare:
    """What this rank computes of a packed row: the part that predicts the response tokens `places_n`, or all of it."""

    batch: PackedBatch
    places_n: Tensor | None = None
    count: int = 0
    group: Any = None

    def join(self, values_n: Tensor) -> Tensor:
        """A value, or a row of values, per response token of this rank → [N, …]."""
        if self.places_n is None:
            return values_n
        values_N: Tensor = _Joined.apply(values_n, self.places_n, self.count, self.group)  # type: ignore[no-untyped-call]
        return values_N


def own_share(model: Any, batch: PackedBatch) -> RowShare:
    """This rank's share of a row: all of it, unless the model's ranks share rows (`share_rows`)."""
    context: ContextGroup | None = model.__dict__.get(MARK)
    if context is None:
        return RowShare(batch)
    tokens = batch.input_ids_1T.shape[1] // context.size  # a row has a multiple of eight (limits.rounded_up)
    first = context.rank * tokens
    own_T = slice(first, first + tokens)
    own_R = batch.rows_R // tokens == context.rank
    own_N = own_R[batch.row_of_N]
    numbers_R = own_R.cumsum(0) - 1
    share = replace(
        batch,
        input_ids_1T=batch.input_ids_1T[:, own_T],
        position_ids_1T=batch.position_ids_1T[:, own_T],
        layout=SharedLayout(batch.layout, context),
        rows_R=batch.rows_R[own_R] - first,
        row_of_N=numbers_R[batch.row_of_N[own_N]],
        targets_N=batch.targets_N[own_N],
    )
    return RowShare(share, own_N.nonzero()[:, 0], len(batch.targets_N), context.group)


def share_rows(model: Any, context: ContextGroup, packed: bool) -> None:
    """Let the ranks of the group share the rows of a model from now on; all of them compute the same batches.

    Raises:
        UserError: the model is not computed packed, or not exactly in parts.
    """
    check_heads(*heads_of(model.config), context.size)
    kind = model.config.model_type
    if not packed:
        raise UserError(
            f"training.fsdp.context_parallel is {context.size}, but models of type {kind} are computed padded, not "
            "packed (a warning gives the reason): set it to 1"
        )
    if (limit := one_batch_limit(model.config)) is not None:
        raise UserError(
            f"training.fsdp.context_parallel is {context.size}, but each rank would see other positions: {limit}; "
            "set it to 1"
        )
    model.__dict__[MARK] = context


def heads_of(config: Any) -> tuple[int, int]:
    """The numbers of query heads and of key heads, from a Hugging Face configuration."""
    text = config.get_text_config()
    return text.num_attention_heads, getattr(text, "num_key_value_heads", None) or text.num_attention_heads


@contextmanager
def alone(model: Any) -> Iterator[None]:
    """Context in which each rank computes whole rows of its own."""
    context = model.__dict__.pop(MARK, None)
    try:
        yield
    finally:
        if context is not None:
            model.__dict__[MARK] = context
