"""Log-probs of response tokens, with a gradient: packed where the model allows it, padded where not.

Shapes: N response tokens (groups, responses, tokens in order); R rows of logits, D the width of the model, V
tokens in the vocabulary; B responses padded to L tokens.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mathrl.core.out_of_memory import memory_part
from mathrl.models.attention import NAME, packed_inputs
from mathrl.models.packing import Group, pack

Outputs = Callable[[Sequence[Group]], Tensor]
# More logits than this (256 MiB in float32) are computed a part at a time, and again in the backward pass.
MOST_LOGITS = 1 << 26
PROBE_TOLERANCE = 1e-2  # of log-probs; a wrong mask differs by more than 0.1, bfloat16 products by less


def response_logprobs(model: Any, groups: Sequence[Group], temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies (nats) of every response token under softmax(logits / temperature).

    Returns:
        logprobs_N and entropies_N, float32, in the order of groups, responses, tokens.
    """
    packed = takes_packed(model)
    return (_packed_logprobs if packed else _padded_logprobs)(model, groups, temperature)


def _packed_logprobs(model: Any, groups: Sequence[Group], temperature: float) -> tuple[Tensor, Tensor]:
    batch = pack(groups, model.device)
    inputs = {
        "input_ids": batch.input_ids_1T,
        "position_ids": batch.position_ids_1T,
        "layout": batch.layout,
        **packed_inputs(model),
    }
    if _in_parts(model, len(batch.rows_R)):
        hidden_RD = model.get_decoder()(**inputs).last_hidden_state[0].index_select(0, batch.rows_R)
        return _logprobs_in_parts(model, hidden_RD, batch.row_of_N, batch.targets_N, temperature)
    logits_RV = model(**inputs, logits_to_keep=batch.rows_R).logits[0]
    return token_logprobs(logits_RV, batch.row_of_N, batch.targets_N, temperature)


def token_logprobs(logits_RV: Tensor, row_of_N: Tensor, targets_N: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    with memory_part("logits", "lower the stage's tokens_per_microbatch"):
        logprobs_and_entropies: tuple[Tensor, Tensor] = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
            logits_RV, row_of_N, targets_N, temperature
        )
    return logprobs_and_entropies


def _logprobs_in_parts(
    model: Any, hidden_RD: Tensor, row_of_N: Tensor, targets_N: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """`token_logprobs` without a table of all logits: some rows at a time, recomputed in the backward pass.

    At most `MOST_LOGITS` logits exist at a time, instead of R V (8,192 rows of Qwen2.5: 5 GB, three times).
    """
    head = model.get_output_embeddings()
    rows = max(1, MOST_LOGITS // head.out_features)
    order_N = torch.argsort(row_of_N, stable=True)
    part_of_N = row_of_N[order_N] // rows
    sizes = torch.bincount(part_of_N, minlength=-(-len(hidden_RD) // rows)).tolist()

    def part(hidden: Tensor, row_of_n: Tensor, targets_n: Tensor) -> tuple[Tensor, Tensor]:
        return token_logprobs(head(hidden), row_of_n, targets_n, temperature)

    parts = [
        checkpoint(
            part,
            hidden,
            row_of_N[chosen] - number * rows,
            targets_N[chosen],
            use_reentrant=False,
            preserve_rng_state=False,
        )
        for number, (hidden, chosen) in enumerate(
            zip(torch.split(hidden_RD, rows), torch.split(order_N, sizes), strict=True)
        )
    ]
    back_N = torch.argsort(order_N)
    logprobs_N, entropies_N = (torch.cat(values).index_select(0, back_N) for values in zip(*parts, strict=True))
    return logprobs_N, entropies_N


def _in_parts(model: Any, rows: int) -> bool:
    """Whether these rows have too many logits to compute at a time, and `plain_head` allows parts."""
    head = model.get_output_embeddings()
    if head is None or rows * head.out_features <= MOST_LOGITS:
        return False
    return plain_head(model)


def plain_head(model: Any) -> bool:
    """Whether the logits are the head's output, neither scaled nor capped after it; tried once per model."""
    head = model.get_output_embeddings()
    if head is None:
        return False
    if "_plain_head" not in model.__dict__:
        ids = torch.arange(min(8, head.weight.shape[0]), device=model.device)[None]
        with torch.no_grad():
            hidden = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
            same = torch.allclose(head(hidden), model(input_ids=ids, use_cache=False).logits, atol=1e-4)
        model.__dict__["_plain_head"] = same
    return bool(model.__dict__["_plain_head"])


class _TokenLogprobs(torch.autograd.Function):
    """log softmax(z/T)[target] and the entropy of softmax(z/T), keeping one [R, V] table for the backward.

    With p the softmax and H its entropy: d log p_y / dz = (1_y - p)/T and dH / dz = -p (log p + H)/T.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, logits_RV: Tensor, row_of_N: Tensor, targets_N: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        logp_RV = torch.log_softmax(logits_RV.float() / temperature, dim=-1)
        entropy_R = -(logp_RV.exp() * logp_RV).nan_to_num_(0.0).sum(-1)
        ctx.save_for_backward(logp_RV, entropy_R, row_of_N, targets_N)
        ctx.temperature, ctx.dtype = temperature, logits_RV.dtype
        flat_N = row_of_N * logits_RV.shape[-1] + targets_N
        return logp_RV.view(-1).index_select(0, flat_N), entropy_R.index_select(0, row_of_N)

    @staticmethod
    def backward(ctx: Any, grad_N: Tensor, grad_entropy_N: Tensor) -> Any:  # type: ignore[override]
        logp_RV, entropy_R, row_of_N, targets_N = ctx.saved_tensors
        grad_R = torch.zeros_like(entropy_R).index_add_(0, row_of_N, grad_N)
        slope_RV = logp_RV.exp()
        if grad_entropy_N.any():
            grad_entropy_R = torch.zeros_like(entropy_R).index_add_(0, row_of_N, grad_entropy_N)
            surprise_RV = (logp_RV + entropy_R[:, None]).mul_(grad_entropy_R[:, None])
            slope_RV *= (surprise_RV + grad_R[:, None]).neg_()
            slope_RV.nan_to_num_(0.0)
        else:
            slope_RV *= grad_R.neg()[:, None]
        flat_N = row_of_N * logp_RV.shape[-1] + targets_N
        slope_RV.view(-1).index_add_(0, flat_N, grad_N)
        return slope_RV.div_(ctx.temperature).to(ctx.dtype), None, None, None


def _padded_logprobs(model: Any, groups: Sequence[Group], temperature: float) -> tuple[Tensor, Tensor]:
    """Without packing: every response with its own copy of the prompt, padded on the right."""
    ids_BL, real_BL, chosen = padded(groups, model.device)
    inputs = {"input_ids": ids_BL, "attention_mask": real_BL, "use_cache": False}
    if _in_parts(model, ids_BL.numel()):
        hidden_ND = model.get_decoder()(**inputs).last_hidden_state[:, :-1][chosen]
        row_of_N = torch.arange(len(hidden_ND), device=model.device)
        return _logprobs_in_parts(model, hidden_ND, row_of_N, ids_BL[:, 1:][chosen], temperature)
    logits = model(**inputs).logits[:, :-1]
    logp_NV = torch.log_softmax(logits[chosen].float() / temperature, dim=-1)
    entropies_N = -(logp_NV.exp() * logp_NV).sum(-1)
    return logp_NV.gather(1, ids_BL[:, 1:][chosen][:, None])[:, 0], entropies_N


def padded(groups: Sequence[Group], device: torch.device | str) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids [B, L], the mask of real tokens [B, L], and where a response token is next [B, L - 1]."""
    pairs = [(list(group.prompt), list(response)) for group in groups for response in group.responses]
    longest = max(len(prompt) + len(response) for prompt, response in pairs)
    ids_BL = torch.zeros(len(pairs), longest, dtype=torch.long)
    real_BL = torch.zeros(len(pairs), longest, dtype=torch.long)
    next_BL = torch.zeros(len(pairs), longest - 1, dtype=torch.bool)
    for row, (prompt, response) in enumerate(pairs):
        end = len(prompt) + len(response)
        ids_BL[row, :end] = torch.tensor(prompt + response)
        real_BL[row, :end] = 1
        next_BL[row, len(prompt) - 1 : end - 1] = True
    return ids_BL.to(device), real_BL.to(device), next_BL.to(device)


def takes_packed(model: Any) -> bool:
    """Whether the model computes the same with packed attention as with its own; tried once per model.

    If so it keeps packed attention, which without a layout is PyTorch's. False for a model without an
    exchangeable attention, with sliding windows, or whose attention does more than softmax(q k^T) v
    (soft-capping, sinks, position biases): a short trial finds the difference.
    """
    return same_when_packed(
        model,
        lambda groups: _padded_logprobs(model, groups, 1.0)[0],
        lambda groups: _packed_logprobs(model, groups, 1.0)[0],
    )


def same_when_packed(model: Any, by_padding: Outputs, by_packing: Outputs) -> bool:
    """The trial behind `takes_packed`, for any outputs per response token."""
    if "_takes_packed" not in model.__dict__:
        exchangeable = bool(getattr(model, "_supports_attention_backend", False))
        model.__dict__["_takes_packed"] = (
            exchangeable and _full_attention(model.config) and _trial(model, by_padding, by_packing)
        )
    return bool(model.__dict__["_takes_packed"])


def _full_attention(config: Any) -> bool:
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    return all(kind == "full_attention" for kind in kinds) if kinds else window is None


@torch.no_grad()
def _trial(model: Any, by_padding: Outputs, by_packing: Outputs) -> bool:
    size = int(model.get_input_embeddings().weight.shape[0])
    ids = torch.randint(0, size, (24,), generator=torch.Generator().manual_seed(0)).tolist()
    groups = [Group(ids[:5], (ids[5:9], ids[9:16])), Group(ids[16:19], (ids[19:24],))]
    training, own_attention = model.training, model.config._attn_implementation
    model.eval()
    expected = by_padding(groups)
    model.config._attn_implementation = NAME
    try:
        packed = by_packing(groups)
        same = bool(((packed - expected).abs() <= PROBE_TOLERANCE * (1 + expected.abs())).all())
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, RuntimeError):
        same = False  # its forward does not pass the layout on, or expects other shapes
    if not same:
        model.config._attn_implementation = own_attention
    model.train(training)
    return same
