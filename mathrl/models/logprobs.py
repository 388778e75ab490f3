"""Log-probs of response tokens, with a gradient: packed where the model allows it, padded where not.

Shapes: N response tokens (groups, responses, tokens in order); R rows of logits, D the width of the model, V
tokens in the vocabulary; B responses padded to L tokens.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mathrl.core.errors import UserError, memory_part
from mathrl.models.attention import NAME, packed_inputs
from mathrl.models.context_parallel import own_share
from mathrl.models.decode import Decoder
from mathrl.models.head import LogprobHead, most_logits
from mathrl.models.kernels import attention_kernel
from mathrl.models.packing import Group, PackedBatch, pack
from mathrl.models.prepared import Prepared, compute_as, known_way
from mathrl.models.trial import DECODERS, Trial, known_trial, one_batch_limit


def response_logprobs(
    model: Any, groups: Sequence[Group], temperature: float = 1.0, *, entropy: bool = True
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies (nats) of every sampled token of the responses under softmax(logits / temperature).

    Returns:
        logprobs_N and entropies_N, float32, in the order of groups, responses, tokens. Without `entropy`, which
        saves a third of the time between the logits and the loss, entropies_N is empty.
    """
    packed = prepare_language_model(model).packed
    return (_packed_logprobs if packed else _padded_logprobs)(model, groups, temperature, entropy)


def _packed_logprobs(
    model: Any, groups: Sequence[Group], temperature: float, entropy: bool = True
) -> tuple[Tensor, Tensor]:
    share = own_share(model, pack(groups, model.device, attention_kernel(model)))
    logprobs_n, entropies_n = _batch_logprobs(model, share.batch, temperature, entropy)
    return share.join(logprobs_n), share.join(entropies_n) if entropy else entropies_n


def _batch_logprobs(model: Any, batch: PackedBatch, temperature: float, entropy: bool) -> tuple[Tensor, Tensor]:
    inputs = {
        "input_ids": batch.input_ids_1T,
        "position_ids": batch.position_ids_1T,
        "layout": batch.layout,
        **packed_inputs(model),
    }
    if _without_logits(model, len(batch.rows_R)):
        hidden_TD = model.get_decoder()(**inputs).last_hidden_state.squeeze(0)
        # The gradient of an embedding adds up rows in a fixed order and in float32; index_select's does neither.
        hidden_ND = nn.functional.embedding(batch.rows_R[batch.row_of_N], hidden_TD)
        return _head_logprobs(model, hidden_ND, batch.targets_N, temperature, entropy)
    logits_RV = model(**inputs, logits_to_keep=batch.rows_R).logits[0]
    return token_logprobs(logits_RV, batch.row_of_N, batch.targets_N, temperature, entropy)


def token_logprobs(
    logits_RV: Tensor, row_of_N: Tensor, targets_N: Tensor, temperature: float, entropy: bool = True
) -> tuple[Tensor, Tensor]:
    with memory_part("logits", "lower the stage's tokens_per_microbatch"):
        logprobs_and_entropies: tuple[Tensor, Tensor] = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
            logits_RV, row_of_N, targets_N, temperature, entropy
        )
    return logprobs_and_entropies


def _head_logprobs(
    model: Any, hidden_ND: Tensor, targets_N: Tensor, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor]:
    """`token_logprobs` without a table of all logits (8,192 rows of Qwen2.5: 5 GB, three times)."""
    with memory_part("logits", "lower the stage's tokens_per_microbatch"):
        logprobs_and_entropies: tuple[Tensor, Tensor] = model.get_output_embeddings()(
            hidden_ND, targets_N, temperature, entropy
        )
    return logprobs_and_entropies


def _without_logits(model: Any, rows: int) -> bool:
    """Whether these rows' logits are never kept: always on a GPU, where they are many on a CPU.

    Always, too, where ZeRO 3 has divided the head (it has a `ds_id` then): all ranks must run the same modules.
    """
    head = model.get_output_embeddings()
    if head is None:
        return False
    few = model.device.type == "cpu" and not hasattr(head.weight, "ds_id")
    if few and rows * head.out_features <= most_logits(model.device):
        return False
    return prepare_language_model(model).plain_head


class _TokenLogprobs(torch.autograd.Function):
    """log softmax(z/T)[target] and the entropy of softmax(z/T), keeping one [R, V] table for the backward.

    With p the softmax and H its entropy: d log p_y / dz = (1_y - p)/T and dH / dz = -p (log p + H)/T.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, logits_RV: Tensor, row_of_N: Tensor, targets_N: Tensor, temperature: float, entropy: bool
    ) -> tuple[Tensor, Tensor]:
        logp_RV = torch.log_softmax(logits_RV.float() / temperature, dim=-1)
        flat_N = row_of_N * logits_RV.shape[-1] + targets_N
        logprobs_N = logp_RV.view(-1).index_select(0, flat_N)
        ctx.set_materialize_grads(False)
        ctx.temperature, ctx.dtype = temperature, logits_RV.dtype
        if not entropy:
            entropy_R = logp_RV.new_zeros(0)
            ctx.mark_non_differentiable(entropy_R)
            ctx.save_for_backward(logp_RV, entropy_R, row_of_N, targets_N)
            return logprobs_N, entropy_R
        entropy_R = -(logp_RV.exp() * logp_RV).nan_to_num_(0.0).sum(-1)
        ctx.save_for_backward(logp_RV, entropy_R, row_of_N, targets_N)
        return logprobs_N, entropy_R.index_select(0, row_of_N)

    @staticmethod
    def backward(ctx: Any, grad_N: Tensor | None, grad_entropy_N: Tensor | None) -> Any:  # type: ignore[override]
        logp_RV, entropy_R, row_of_N, targets_N = ctx.saved_tensors
        grad_N = logp_RV.new_zeros(len(row_of_N)) if grad_N is None else grad_N
        grad_R = logp_RV.new_zeros(len(logp_RV)).index_add_(0, row_of_N, grad_N)
        slope_RV = logp_RV.exp()
        if grad_entropy_N is not None:
            grad_entropy_R = torch.zeros_like(entropy_R).index_add_(0, row_of_N, grad_entropy_N)
            surprise_RV = (logp_RV + entropy_R[:, None]).mul_(grad_entropy_R[:, None])
            slope_RV *= (surprise_RV + grad_R[:, None]).neg_()
            slope_RV.nan_to_num_(0.0)
        else:
            slope_RV *= grad_R.neg()[:, None]
        flat_N = row_of_N * logp_RV.shape[-1] + targets_N
        slope_RV.view(-1).index_add_(0, flat_N, grad_N)
        return slope_RV.div_(ctx.temperature).to(ctx.dtype), None, None, None, None


def _padded_logprobs(
    model: Any, groups: Sequence[Group], temperature: float, entropy: bool = True
) -> tuple[Tensor, Tensor]:
    """Without packing: every response with its own copy of the prompt, padded on the right."""
    ids_BL, real_BL, chosen = pad(groups, model.device)
    inputs = {"input_ids": ids_BL, "attention_mask": real_BL, "use_cache": False}
    if _without_logits(model, ids_BL.numel()):
        hidden_ND = model.get_decoder()(**inputs).last_hidden_state[:, :-1][chosen]
        return _head_logprobs(model, hidden_ND, ids_BL[:, 1:][chosen], temperature, entropy)
    logits = model(**inputs).logits[:, :-1]
    logp_NV = torch.log_softmax(logits[chosen].float() / temperature, dim=-1)
    entropies_N = -(logp_NV.exp() * logp_NV).sum(-1) if entropy else logp_NV.new_zeros(0)
    return logp_NV.gather(1, ids_BL[:, 1:][chosen][:, None])[:, 0], entropies_N


def pad(groups: Sequence[Group], device: torch.device | str) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids [B, L], the mask of real tokens [B, L], and where a token with a log-prob is next [B, L - 1]."""
    pairs = [(group.prompt, response) for group in groups for response in group.responses]
    masks = [torch.from_numpy(mask) for group in groups for mask in group.masks]
    longest = max(len(prompt) + len(response) for prompt, response in pairs)
    ids_BL = torch.zeros(len(pairs), longest, dtype=torch.long)
    real_BL = torch.zeros(len(pairs), longest, dtype=torch.long)
    next_BL = torch.zeros(len(pairs), longest - 1, dtype=torch.bool)
    for row, (prompt, response) in enumerate(pairs):
        end = len(prompt) + len(response)
        ids_BL[row, :end] = torch.from_numpy(np.concatenate([prompt, response]))
        real_BL[row, :end] = 1
        next_BL[row, len(prompt) - 1 : end - 1] = masks[row]
    return ids_BL.to(device), real_BL.to(device), next_BL.to(device)


def prepare_language_model(model: Any) -> Prepared:
    """How a causal LM is computed; found out now unless it is known, once per architecture (`mathrl.models.trial`).

    From then on it keeps packed attention where it takes it, which without a layout is PyTorch's, and a `LogprobHead`
    where its head is plain. If it is padded, or samples without a cache, a warning gives the reason and the cost.

    Raises:
        UserError: mathrl cannot compute this architecture at all.
    """
    way = known_way(model)
    if way is not None:
        return way
    trial = architecture_trial(model)
    if trial.refused:
        raise UserError(trial.sentence())
    if trial.costs():
        warnings.warn(f"{trial.sentence()}. {trial.costs()}", stacklevel=3)
    limit = one_batch_limit(model.config)
    if limit is not None:
        warnings.warn(limit, stacklevel=3)
    if not trial.not_packed:
        model.config._attn_implementation = NAME
    head = model.get_output_embeddings() if trial.plain_head else None
    if type(head) is nn.Linear:
        head.__class__ = LogprobHead
    way = Prepared(not trial.not_packed, isinstance(head, LogprobHead), trial.sampling)
    compute_as(model, way)
    return way


def architecture_trial(model: Any) -> Trial:
    """What came out of the trial of a causal LM's architecture, run now unless it is known."""
    return known_trial(
        model,
        lambda network, groups: _padded_logprobs(network, groups, 1.0)[0],
        lambda network, groups: _packed_logprobs(network, groups, 1.0)[0],
    )


def make_decoder(model: Any) -> Decoder:
    """The decoder whose log-probs are those of the model's forward pass."""
    way = prepare_language_model(model)
    return DECODERS["cached" if way.sampling == "packed" and not way.packed else way.sampling](model)
