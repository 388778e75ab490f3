"""Elementwise parts of a model as one kernel each on a GPU: SwiGLU, rotary positions, and what follows the logits.

torch.compile makes these kernels and those of their gradients, so no package beside torch is needed (Liger Kernel
has them as Triton programs of its own). They compute in float32 inside and round once. A CPU keeps the functions of
transformers. `TORCH_COMPILE_DISABLE=1` switches them off.
"""

import copy
import logging
import subprocess
import sys
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch
from torch import Tensor, nn

ROTARY = "apply_rotary_pos_emb"  # of transformers' modeling files, called by attention layers
LAYERS = ("gate_proj", "up_proj", "down_proj")
TOLERANCE = 2e-2  # bfloat16: some roundings against one
# Variants of a function that torch compiles at most; a process with models in float32 and bfloat16 has 16 of both (by
# gradient mode, and for length 1), and from torch's own limit of 8 on they would run without fusion.
MOST_VARIANTS = 64


def use_fused_elementwise(network: nn.Module) -> None:
    """Have a network on a GPU use these kernels wherever its own functions compute the same, in place.

    Trials decide: on the functions, since names do not tell, and on the compiler, since without one the plain
    functions serve; that is logged.
    """
    if compiles(next(network.parameters()).device.type):
        exchange_elementwise(network)


def exchange_elementwise(network: nn.Module) -> None:
    """Exchange the class of every SwiGLU, and the rotary function of the layers' modeling files."""
    for module in list(network.modules()):
        if _is_swiglu(module):
            module.__class__ = FusedSwiGLU
    for name in {type(module).__module__ for module in network.modules()}:
        plain = getattr(sys.modules[name], ROTARY, None)
        if plain is not None and not hasattr(plain, "__wrapped__") and _is_rotary(plain):
            setattr(sys.modules[name], ROTARY, _fused_unless_on_cpu(plain))


class FusedSwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)); layers and their names are those of the replaced class."""

    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))
        return out


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up, of equal shapes."""
    out: Tensor = _compile_once(_swiglu)(_with_fixed(gate, -1), _with_fixed(up, -1))
    return out


def rotate(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Query and key [B, H, T, D] turned by their positions' angles, whose cosines and sines are [B, T, D]."""
    heads = (_with_fixed(x, 1, -1) for x in (query, key))
    pair: tuple[Tensor, Tensor] = _compile_once(_rotate_eager)(*heads, *(_with_fixed(x, -1) for x in (cos, sin)))
    return pair


def score_tokens(
    logits_nV: Tensor, targets_n: Tensor, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs of the targets, log of the sum of exp(logits / temperature), and entropies (empty unless asked for)."""
    scores: tuple[Tensor, Tensor, Tensor] = _compile_once(_score_tokens)(
        _with_fixed(logits_nV, 1), targets_n, temperature, entropy
    )
    return scores


def logit_slopes(
    logits_nV: Tensor,
    targets_n: Tensor,
    temperature: float,
    sums_n: Tensor,
    scale_n: Tensor,
    entropies_n: Tensor,
    entropy_scale_n: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """The gradient of the logits, rounded once: (p - 1_y) scale + p (log p + H) entropy_scale, with the sums' logs."""
    slopes_nV: Tensor = _compile_once(_logit_slopes)(
        _with_fixed(logits_nV, 1), targets_n, temperature, sums_n, scale_n, entropies_n, entropy_scale_n, dtype
    )
    return slopes_nV


def _with_fixed(x: Tensor, *dimensions: int) -> Tensor:
    """The tensor; a kernel is made for its own size of these dimensions, and for any size of the others.

    Where it does not know that rows are a multiple of 16 long, Triton reads bfloat16 numbers one by one: SwiGLU then
    took 22 % of an update of 0.5B on an H200, six times what its bytes take (benchmarks/gpu/README.md).
    """
    for dimension in dimensions:
        torch._dynamo.mark_static(x, dimension % x.dim())
    return x


def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return nn.functional.silu(gate) * up


def _rotate_eager(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = cos[:, None], sin[:, None]
    return query * cos + _quarter_turn(query) * sin, key * cos + _quarter_turn(key) * sin


def _score_tokens(
    logits_nV: Tensor, targets_n: Tensor, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor, Tensor]:
    z_nV = logits_nV / temperature
    sums_n = z_nV.logsumexp(-1)
    logprobs_n = z_nV.gather(1, targets_n[:, None])[:, 0] - sums_n
    if not entropy:
        return logprobs_n, sums_n, sums_n[:0].clone()
    minus_nV = sums_n[:, None] - z_nV
    return logprobs_n, sums_n, torch.where(minus_nV < torch.inf, minus_nV * (-minus_nV).exp(), 0.0).sum(-1)


def _logit_slopes(
    logits_nV: Tensor,
    targets_n: Tensor,
    temperature: float,
    sums_n: Tensor,
    scale_n: Tensor,
    entropies_n: Tensor,
    entropy_scale_n: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    logp_nV = logits_nV / temperature - sums_n[:, None]
    p_nV = logp_nV.exp()
    chosen_nV = torch.arange(logits_nV.shape[1], device=logits_nV.device) == targets_n[:, None]
    slopes_nV = torch.where(chosen_nV, p_nV - 1, p_nV) * scale_n[:, None]  # p - 1_y, before anything is rounded
    if entropy_scale_n is not None:
        above_nV = torch.where(p_nV > 0, logp_nV + entropies_n[:, None], 0.0)
        slopes_nV = slopes_nV + p_nV * above_nV * entropy_scale_n[:, None]
    return slopes_nV.to(dtype)


def _quarter_turn(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


@cache
def _compile_once(function: Callable[..., Any]) -> Callable[..., Any]:
    settings = torch._dynamo.config
    settings.recompile_limit = max(settings.recompile_limit, MOST_VARIANTS)
    return torch.compile(function, dynamic=True)


def _fused_unless_on_cpu(plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def apply(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
        if q.device.type == "cpu" or unsqueeze_dim != 1:
            pair: tuple[Tensor, Tensor] = plain(q, k, cos, sin, unsqueeze_dim)
            return pair
        return rotate(q, k, cos, sin)

    return apply


@torch.no_grad()
def _is_swiglu(module: nn.Module) -> bool:
    """Whether a module computes SwiGLU; tried on small layers in the place of its own."""
    if any(not isinstance(getattr(module, name, None), nn.Module) for name in LAYERS):
        return False
    gate, up, down = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 4)
    probe = copy.copy(module)
    probe.__dict__["_modules"] = module._modules | dict(zip(LAYERS, (gate, up, down), strict=True))
    x = torch.linspace(-3, 3, 12).view(3, 4)
    try:
        return torch.allclose(probe(x), down(_swiglu(gate(x), up(x))))
    except (AttributeError, RuntimeError, TypeError):  # experts, whose layers have other shapes
        return False


def _is_rotary(function: Callable[..., Any]) -> bool:
    query, key = torch.linspace(-1, 1, 48).view(1, 2, 3, 8), torch.linspace(1, 2, 24).view(1, 1, 3, 8)
    angles = torch.linspace(0, 5, 24).view(1, 3, 8)
    arguments = query, key, angles.cos(), angles.sin()
    try:
        return all(map(torch.allclose, function(*arguments), _rotate_eager(*arguments)))
    except (RuntimeError, TypeError):  # other arguments
        return False


@cache
def compiles(device: str) -> bool:
    """Whether all compile here, with their gradients, and give what the plain functions give."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, torch.bfloat16).requires_grad_()

    query, key = random(1, 5, 4, 8).transpose(1, 2), random(1, 5, 2, 8).transpose(1, 2)
    angles, logits = random(1, 5, 8).detach(), random(3, 17).detach().float()
    targets, numbers = torch.tensor([0, 16, 4], device=device), logits[:, 0]
    cases: tuple[tuple[Any, Any, tuple[Any, ...]], ...] = (
        (_swiglu, swiglu, (random(1, 5, 12), random(1, 5, 12))),
        (_rotate_eager, rotate, (query, key, angles.cos(), angles.sin())),
        (_score_tokens, score_tokens, (logits, targets, 0.7, True)),
        (_logit_slopes, logit_slopes, (logits, targets, 0.7, *[numbers] * 4, torch.bfloat16)),
    )
    try:
        for plain, compiled, arguments in cases:
            pairs = [_values_and_gradients(function, arguments) for function in (plain, compiled)]
            if not all(torch.allclose(a, b, TOLERANCE, TOLERANCE) for a, b in zip(*pairs, strict=True)):
                raise RuntimeError("its results differ")
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:  # the last two: the C compiler's
        logging.getLogger(__name__).warning(
            "SwiGLU, rotary positions and log-probs are not fused: torch.compile failed (%s); `mathrl doctor` checks "
            "the compiler",
            " ".join(str(error).split())[:300],
        )
        return False
    return True


def _values_and_gradients(function: Callable[..., Any], arguments: tuple[Any, ...]) -> list[Tensor]:
    out = function(*arguments)
    outputs = list(out) if isinstance(out, tuple) else [out]
    learning = [each for each in arguments if isinstance(each, Tensor) and each.requires_grad]
    if not learning:
        return outputs
    return [*outputs, *torch.autograd.grad(outputs, learning, [output.detach() for output in outputs])]
