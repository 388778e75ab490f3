"""Log-probs of several tokens at each place of responses: the most probable ones, or candidates with a gradient.

Of all logits only some rows exist at a time where the head is plain (`mathrl.models.head`). Those of another model,
which are capped or scaled, are all there for a micro-batch.

Shapes: N response tokens (groups, responses, tokens in order), K tokens at each; D the width, V the vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mathrl.core.errors import memory_part
from mathrl.models.attention import packed_inputs
from mathrl.models.context_parallel import RowShare, own_share
from mathrl.models.device import to_device
from mathrl.models.kernels import attention_kernel
from mathrl.models.logprobs import pad, prepare_language_model
from mathrl.models.packing import Group, pack


@dataclass(frozen=True)
class TopTokens:
    """The K most probable tokens at each place, the most probable first, beside the sampled token's log-prob.

    Example: with K = 2, a place where token 7 has probability 1/2, token 3 has 1/4 and 5 was sampled with 1/8 is
    logprobs_NK [-0.69, -1.39], ids_NK [7, 3], sampled_N -2.08.
    """

    sampled_N: Tensor
    logprobs_NK: Tensor
    ids_NK: Tensor


@torch.no_grad()
def top_tokens(model: Any, groups: Sequence[Group], temperature: float, most: int, vocabulary: int) -> TopTokens:
    """The `most` most probable of the first `vocabulary` tokens, without a gradient.

    Log-probs are those of softmax(logits / temperature) over all tokens of the model, in float32.
    """
    places = _places(model, groups)
    with memory_part("logits", "lower the stage's tokens_per_microbatch"):
        if places.head is not None:
            found = places.head(places.states_NX, places.targets_N, temperature, top=(most, vocabulary))
        else:
            logp_NV = (places.states_NX.float() / temperature).log_softmax(-1)
            sampled_N = logp_NV.gather(1, places.targets_N[:, None])[:, 0]
            found = (sampled_N, *logp_NV[:, :vocabulary].topk(most))
    return TopTokens(*map(places.join, found))


def candidate_logprobs(
    model: Any, groups: Sequence[Group], temperature: float, ids_NK: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs of the sampled tokens [N], entropies [N] and log-probs of the candidates [N, K], with a gradient.

    As `response_logprobs`, whose values these are; no two candidates of a place are alike.
    """
    places = _places(model, groups)
    own_NK = places.own(to_device(ids_NK, places.targets_N.device)).long()
    with memory_part("logits", "lower the stage's tokens_per_microbatch"):
        if places.head is not None:
            found = places.head(places.states_NX, places.targets_N, temperature, candidates_NK=own_NK)
        else:
            logp_NV = (places.states_NX.float() / temperature).log_softmax(-1)
            sampled_N = logp_NV.gather(1, places.targets_N[:, None])[:, 0]
            found = sampled_N, -(logp_NV.exp() * logp_NV).sum(-1), logp_NV.gather(1, own_NK)
    sampled_N, entropies_N, candidates_NK = map(places.join, found)
    return sampled_N, entropies_N, candidates_NK


@dataclass(frozen=True)
class _Places:
    """The places of this rank: their tokens and, with a head, hidden states [N, D] to give it, else logits [N, V]."""

    states_NX: Tensor
    targets_N: Tensor
    head: Callable[..., Any] | None
    share: RowShare | None = None

    def join(self, values_n: Tensor) -> Tensor:
        """Of a rank's own places → of all, where ranks share rows."""
        return values_n if self.share is None else self.share.join(values_n)

    def own(self, values_N: Tensor) -> Tensor:
        """Of all places → of this rank's."""
        places_n = None if self.share is None else self.share.places_n
        return values_N if places_n is None else values_N[places_n]


def _places(model: Any, groups: Sequence[Group]) -> _Places:
    way = prepare_language_model(model)
    head = model.get_output_embeddings() if way.plain_head else None
    if not way.packed:
        ids_BL, real_BL, chosen = pad(groups, model.device)
        inputs = {"input_ids": ids_BL, "attention_mask": real_BL, "use_cache": False}
        states_BLX = model(**inputs).logits if head is None else model.get_decoder()(**inputs).last_hidden_state
        return _Places(states_BLX[:, :-1][chosen], ids_BL[:, 1:][chosen], head)
    share = own_share(model, pack(groups, model.device, attention_kernel(model)))
    batch = share.batch
    inputs = {
        "input_ids": batch.input_ids_1T,
        "position_ids": batch.position_ids_1T,
        "layout": batch.layout,
        **packed_inputs(model),
    }
    if head is None:
        return _Places(
            model(**inputs, logits_to_keep=batch.rows_R).logits[0][batch.row_of_N], batch.targets_N, None, share
        )
    hidden_TD = model.get_decoder()(**inputs).last_hidden_state.squeeze(0)
    # The gradient of an embedding adds up rows in a fixed order and in float32, as in `mathrl.models.logprobs`.
    hidden_ND = nn.functional.embedding(batch.rows_R[batch.row_of_N], hidden_TD)
    return _Places(hidden_ND, batch.targets_N, head, share)
