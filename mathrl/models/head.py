"""Log-probs and entropies of tokens straight from hidden states, without ever keeping their logits.

The head's logits are made some rows at a time, in the backward pass again, so memory does not grow with the number of
tokens. Liger Kernel's fused losses do the same but end in losses of their own; what is needed here is a log-prob and an
entropy per token with a gradient, to which the trainer's loss is applied.

Everything after the product is float32 (float64 for float64 weights). On a GPU the product of bfloat16 hidden states
and weights has a float32 result too, so that no logit is rounded to bfloat16. The same inputs give the same bits on a
CPU and, as far as cuBLAS promises them (one stream, one version), on a GPU: nothing here adds atomically.

Shapes: N tokens, D width, V vocabulary, K candidates of each token; n tokens of a slice.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from mathrl.models import fused
from mathrl.models.shapes import MOST_LOGITS


def most_logits(device: torch.device) -> int:
    """The most logits that are computed at a time: on a GPU a table of them is a 64th of its memory in float32."""
    if device.type != "cuda":
        return MOST_LOGITS
    return max(MOST_LOGITS, torch.cuda.get_device_properties(device).total_memory // 256)


class LogprobHead(nn.Linear):
    """An output head that also gives log-probs and entropies; weights and their names are those of nn.Linear.

    They come from its own forward pass so that hooks on it, such as DeepSpeed's, which gather its weights under ZeRO 3,
    run once around all slices in the forward pass and once in the backward pass.
    """

    def forward(  # type: ignore[override]
        self,
        hidden: Tensor,
        targets_N: Tensor | None = None,
        temperature: float = 1.0,
        entropy: bool = False,
        candidates_NK: Tensor | None = None,
        top: tuple[int, int] | None = None,
    ) -> Any:
        """Logits of `hidden`; with targets, their log-probs [N] and entropies [N] (empty unless asked for).

        Hidden states are then [N, D]; both are nats under softmax(logits / temperature), in float32. With candidates
        (token ids, no two of a row alike) the entropies and the candidates' log-probs [N, K] come with them. `top`
        (K, V) gives the K most probable of the first V tokens without a gradient: log-probs and ids, [N, K] each.
        """
        if targets_N is not None and candidates_NK is not None:
            return _CandidateLogprobs.apply(  # type: ignore[no-untyped-call]
                hidden, self.weight, self.bias, targets_N, candidates_NK, temperature
            )
        if targets_N is not None and top is not None:
            return _top_logprobs(hidden, self.weight, self.bias, targets_N, temperature, *top)
        if targets_N is None:
            if hidden.device.type != "cpu" and hidden.dtype.itemsize < 4 and not torch.is_grad_enabled():
                # For sampling, whose log-probs are compared with the trainer's: near 20 bfloat16 has steps of 0.125.
                wide_nV = logits(hidden.flatten(0, -2), self.weight, self.bias)
                return wide_nV.view(*hidden.shape[:-1], len(self.weight))
            return super().forward(hidden)
        return _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
            hidden, self.weight, self.bias, targets_N, temperature, entropy
        )


class _TokenLogprobs(torch.autograd.Function):
    """With p = softmax(z / T) and H its entropy: d log p_y / dz = (1_y - p)/T and dH / dz = -p (log p + H)/T."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        temperature: float,
        entropy: bool,
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(weight_VD.dtype, torch.float32)
        logprobs_N = torch.empty(len(hidden_ND), dtype=wide, device=hidden_ND.device)
        entropies_N = torch.empty_like(logprobs_N if entropy else logprobs_N[:0])
        sums_N = torch.empty_like(logprobs_N if _is_fused(hidden_ND) else logprobs_N[:0])
        score = fused.score_tokens if len(sums_N) else _score_tokens
        for part in _slices(hidden_ND, weight_VD):
            logits_nV = logits(hidden_ND[part], weight_VD, bias_V)
            logprobs_N[part], sums_N[part], entropies_N[part] = score(logits_nV, targets_N[part], temperature, entropy)
            del logits_nV  # before the next slice's are made
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, targets_N, entropies_N, sums_N)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        return logprobs_N, entropies_N

    @staticmethod
    def backward(ctx: Any, grad_N: Tensor | None, grad_entropy_N: Tensor | None) -> Any:  # type: ignore[override]
        hidden_ND, weight_VD, bias_V, targets_N, entropies_N, sums_N = ctx.saved_tensors
        scale_N = (entropies_N.new_zeros(len(hidden_ND)) if grad_N is None else grad_N) / -ctx.temperature
        entropy_scale_N = None if grad_entropy_N is None else grad_entropy_N / -ctx.temperature
        slopes = fused.logit_slopes if len(sums_N) else _logit_slopes

        def slope_of(part: slice, logits_nV: Tensor) -> Tensor:
            above_n = None if entropy_scale_N is None else entropy_scale_N[part]
            return slopes(
                logits_nV, targets_N[part], ctx.temperature, sums_N[part], scale_N[part], entropies_N[part], above_n,
                weight_VD.dtype,
            )  # fmt: skip

        return *_gradients(ctx, hidden_ND, weight_VD, bias_V, slope_of), None, None, None


class _CandidateLogprobs(torch.autograd.Function):
    """Log-probs of the targets and of K candidates of each token, and entropies.

    With g the gradients of a row's log-probs: d / dz = (Σ g 1_y - p Σ g)/T, and the entropy's as above.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        candidates_NK: Tensor,
        temperature: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        wide = torch.promote_types(weight_VD.dtype, torch.float32)
        logprobs_N = torch.empty(len(hidden_ND), dtype=wide, device=hidden_ND.device)
        entropies_N, chosen_NK = torch.empty_like(logprobs_N), logprobs_N.new_empty(candidates_NK.shape)
        sums_N = torch.empty_like(logprobs_N if _is_fused(hidden_ND) else logprobs_N[:0])
        for part in _slices(hidden_ND, weight_VD):
            targets_n, logits_nV = targets_N[part], logits(hidden_ND[part], weight_VD, bias_V)
            if len(sums_N):
                logprobs_N[part], sums_N[part], entropies_N[part] = fused.score_tokens(
                    logits_nV, targets_n, temperature, True
                )
                chosen_NK[part] = logits_nV.gather(1, candidates_NK[part]) / temperature - sums_N[part, None]
            else:
                p_nV = _cool(logits_nV, temperature).log_softmax(-1)
                logprobs_N[part] = p_nV.gather(1, targets_n[:, None])[:, 0]
                chosen_NK[part] = p_nV.gather(1, candidates_NK[part])
                entropies_N[part] = torch.special.entr(p_nV.exp_(), out=p_nV).sum(-1)
                del p_nV
            del logits_nV  # before the next slice's are made
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, targets_N, candidates_NK, entropies_N, sums_N)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        return logprobs_N, entropies_N, chosen_NK

    @staticmethod
    def backward(ctx: Any, grad_N: Tensor | None, grad_entropy_N: Tensor | None, grad_NK: Tensor | None) -> Any:  # type: ignore[override]
        hidden_ND, weight_VD, bias_V, targets_N, candidates_NK, entropies_N, sums_N = ctx.saved_tensors
        grad_N1 = (torch.zeros_like(entropies_N) if grad_N is None else grad_N)[:, None]
        grad_NK = entropies_N.new_zeros(candidates_NK.shape) if grad_NK is None else grad_NK
        sums_of_grads_N1 = grad_N1 + grad_NK.sum(-1, keepdim=True)

        def slope_of(part: slice, logits_nV: Tensor) -> Tensor:
            logp_nV = _cool(logits_nV, ctx.temperature)
            logp_nV = logp_nV.sub_(sums_N[part, None]) if len(sums_N) else logp_nV.log_softmax(-1)
            if grad_entropy_N is None:
                slope_nV = logp_nV.exp_().mul_(-sums_of_grads_N1[part])
            else:
                above_nV = (logp_nV + entropies_N[part, None]).mul_(grad_entropy_N[part, None])
                slope_nV = logp_nV.exp_().mul_(above_nV.add_(sums_of_grads_N1[part]).neg_()).nan_to_num_(0.0)
            # Two calls, each without equal ids in a row: nothing is added in an order of chance.
            slope_nV.scatter_add_(1, targets_N[part, None], grad_N1[part])
            slope_nV.scatter_add_(1, candidates_NK[part], grad_NK[part])
            return slope_nV.div_(ctx.temperature).to(weight_VD.dtype)

        return *_gradients(ctx, hidden_ND, weight_VD, bias_V, slope_of), None, None, None


@torch.no_grad()
def _top_logprobs(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    temperature: float,
    most: int,
    vocabulary: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs of the targets [N], and the `most` highest among the first `vocabulary` tokens: [N, K], ids [N, K]."""
    wide = torch.promote_types(weight_VD.dtype, torch.float32)
    logprobs_N = torch.empty(len(hidden_ND), dtype=wide, device=hidden_ND.device)
    top_NK, ids_NK = logprobs_N.new_empty(len(hidden_ND), most), targets_N.new_empty(len(hidden_ND), most)
    for part in _slices(hidden_ND, weight_VD):
        targets_n, logits_nV = targets_N[part], logits(hidden_ND[part], weight_VD, bias_V)
        if _is_fused(hidden_ND):
            logprobs_N[part], sums_n, _ = fused.score_tokens(logits_nV, targets_n, temperature, False)
            top_nK, ids_NK[part] = logits_nV[:, :vocabulary].topk(most)
            top_NK[part] = top_nK / temperature - sums_n[:, None]
        else:
            logp_nV = _cool(logits_nV, temperature).log_softmax(-1)
            logprobs_N[part] = logp_nV.gather(1, targets_n[:, None])[:, 0]
            top_NK[part], ids_NK[part] = logp_nV[:, :vocabulary].topk(most)
            del logp_nV
        del logits_nV  # before the next slice's are made
    return logprobs_N, top_NK, ids_NK


def _gradients(
    ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, slope_of: Callable[[slice, Tensor], Tensor]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of the hidden states, the weights and the bias, from that of each slice's logits."""
    needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
    wide = torch.promote_types(weight_VD.dtype, torch.float32)
    grad_hidden_ND = torch.empty_like(hidden_ND) if needs_hidden else None
    grad_weight_VD = torch.zeros_like(weight_VD, dtype=wide) if needs_weight else None
    grad_bias_V = torch.zeros_like(bias_V, dtype=wide) if needs_bias and bias_V is not None else None
    for part in _slices(hidden_ND, weight_VD):
        logits_nV = logits(hidden_ND[part], weight_VD, bias_V)
        slope_nV = slope_of(part, logits_nV)
        del logits_nV
        if grad_hidden_ND is not None:
            grad_hidden_ND[part] = slope_nV @ weight_VD
        if grad_weight_VD is not None:
            grad_weight_VD += slope_nV.t() @ hidden_ND[part].to(weight_VD.dtype)
        if grad_bias_V is not None:
            grad_bias_V += slope_nV.sum(0)
        del slope_nV
    return grad_hidden_ND, grad_weight_VD, grad_bias_V


def _score_tokens(
    logits_nV: Tensor, targets_n: Tensor, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """`fused.score_tokens` step by step, without the sums; the logits are divided by the temperature in place."""
    logp_nV = _cool(logits_nV, temperature).log_softmax(-1)
    logprobs_n = logp_nV.gather(1, targets_n[:, None])[:, 0]
    if not entropy:
        return logprobs_n, logprobs_n[:0], logprobs_n[:0]
    p_nV = logp_nV.exp_()
    return logprobs_n, logprobs_n[:0], torch.special.entr(p_nV, out=p_nV).sum(-1)


def _logit_slopes(
    logits_nV: Tensor,
    targets_n: Tensor,
    temperature: float,
    _sums_n: Tensor,
    scale_n: Tensor,
    entropies_n: Tensor,
    entropy_scale_n: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """`fused.logit_slopes` step by step; the logits are divided by the temperature in place."""
    scale_n1, target_n1 = scale_n[:, None], targets_n[:, None]
    _cool(logits_nV, temperature)
    if entropy_scale_n is None:
        minus_nV = torch.softmax(logits_nV, -1)
        ones_n1 = minus_nV.new_ones(()).expand(len(minus_nV), 1)
        minus_nV.scatter_add_(1, target_n1, -ones_n1)  # p - 1_y, before anything is rounded
        return torch.mul(minus_nV, scale_n1, out=torch.empty_like(minus_nV, dtype=dtype))
    logp_nV = logits_nV.log_softmax(-1)
    above_nV = logp_nV + entropies_n[:, None]
    above_nV.mul_(entropy_scale_n[:, None]).add_(scale_n1)
    wide_nV = logp_nV.exp_().mul_(above_nV).nan_to_num_(0.0)
    return wide_nV.scatter_add_(1, target_n1, -scale_n1).to(dtype)


def _is_fused(hidden_ND: Tensor) -> bool:
    """Whether each pass over the logits is one kernel, which on a CPU would bring nothing."""
    return hidden_ND.device.type != "cpu" and fused.compiles(hidden_ND.device.type)


def _slices(hidden_ND: Tensor, weight_VD: Tensor) -> Iterator[slice]:
    rows = max(1, most_logits(hidden_ND.device) // weight_VD.shape[0])
    return (slice(first, first + rows) for first in range(0, len(hidden_ND), rows))


def logits(hidden_nD: Tensor, weight_VD: Tensor, bias_V: Tensor | None) -> Tensor:
    """The head's output, at least in float32."""
    logits_nV = wide_product(hidden_nD.to(weight_VD.dtype), weight_VD)
    if bias_V is not None:
        logits_nV += bias_V
    return logits_nV


def _cool(logits_nV: Tensor, temperature: float) -> Tensor:
    return logits_nV.div_(temperature) if temperature != 1 else logits_nV


def wide_product(hidden_nD: Tensor, weight_VD: Tensor) -> Tensor:
    """hidden weightᵀ with a float32 result (a GPU's tensor cores add in float32; a CPU rounds to bfloat16 first)."""
    wide = torch.promote_types(weight_VD.dtype, torch.float32)
    if weight_VD.device.type != "cpu" and weight_VD.dtype != wide:
        return torch.mm(hidden_nD, weight_VD.t(), out_dtype=wide)
    return (hidden_nD @ weight_VD.t()).to(wide)
