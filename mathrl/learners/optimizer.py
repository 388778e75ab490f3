"""Optimizers, learning-rate schedules and the flat buffers that hold weights and gradients."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mathrl.params.train import Optimizer


class FlatParameters:
    """All trainable weights as views of one buffer, and their gradients of another.

    So clearing, summing over processes and measuring the gradient is one operation each, and so is an
    average of the weights. Tied weights are there once.
    """

    def __init__(self, model: nn.Module) -> None:
        self.named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        first = next(iter(self.named.values()))
        total = sum(weight.numel() for weight in self.named.values())
        self.weights = torch.empty(total, dtype=first.dtype, device=first.device)
        for weight, view in self._views(self.weights):
            view.copy_(weight.detach())
            weight.data = view
        self.put_gradients(torch.zeros_like(self.weights))

    def put_gradients(self, buffer: Tensor) -> None:
        """Keep the gradients at the beginning of `buffer`, which holds at least as many numbers."""
        self.gradients = buffer[: len(self.weights)]
        for weight, view in self._views(self.gradients):
            weight.grad = view

    def set_weights(self, values: Tensor) -> None:
        """Overwrite all weights; through the parameters, so that what is cached of them is computed again."""
        with torch.no_grad():
            for weight, view in self._views(values):
                weight.copy_(view)

    def _views(self, flat: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Each weight with its part of a flat tensor, in its shape."""
        start = 0
        for weight in self.named.values():
            end = start + weight.numel()
            yield weight, flat[start:end].view(weight.shape)
            start = end


class OptimizerSet:
    """Muon on the hidden matrices at `lr` and AdamW on the rest at `lr * adamw_scale`, or AdamW on all at `lr`.

    Every rate follows one schedule.
    """

    def __init__(self, model: nn.Module, flat: FlatParameters, params: Optimizer, lr: float, steps: int) -> None:
        self.params, self.steps, self.flat = params, steps, flat
        everything = list(flat.named.values())
        matrices, rest = split_parameters(model, flat.named) if params.type == "muon" else ([], everything)
        on_gpu = flat.weights.is_cuda  # one kernel, no copies of the moments
        adamw_lr = params.adamw_lr(lr)
        self.parts: list[tuple[torch.optim.Optimizer, float]] = [
            (
                torch.optim.AdamW(
                    rest,
                    lr=adamw_lr,
                    betas=(params.beta1, params.beta2),
                    eps=params.eps,
                    weight_decay=params.weight_decay,
                    foreach=not on_gpu,
                    fused=on_gpu,
                ),
                adamw_lr,
            )
        ]
        if matrices:
            muon = torch.optim.Muon(matrices, lr=lr, weight_decay=params.weight_decay)
            self.parts.append((muon, lr))

    def step(self, step: int) -> float:
        """One update with the gradients as they stand; `step` counts from 0; returns the lr's factor."""
        factor = schedule(self.params, step, self.steps)
        for optimizer, lr in self.parts:
            for group in optimizer.param_groups:
                group["lr"] = lr * factor
            optimizer.step()
        return factor

    def clip(self) -> float:
        """Scale the gradients down to `clip_norm`; returns their norm before."""
        norm = float(self.flat.gradients.norm())
        limit = self.params.clip_norm
        if limit is not None and norm > limit:
            self.flat.gradients.mul_(limit / norm)
        return norm

    def state(self) -> dict[str, Tensor]:
        """Every tensor of the optimizers' states by name."""
        out: dict[str, Tensor] = {}
        for number, (optimizer, _) in enumerate(self.parts):
            for index, state in optimizer.state_dict()["state"].items():
                for name, value in state.items():
                    out[f"{number}.{index}.{name}"] = value if isinstance(value, Tensor) else torch.tensor(value)
        return out

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Take over what `state` gave."""
        for number, (optimizer, _) in enumerate(self.parts):
            state_dict = optimizer.state_dict()
            states: dict[int, dict[str, Any]] = {}
            for name, value in tensors.items():
                part, index, key = name.split(".", 2)
                if int(part) == number:
                    states.setdefault(int(index), {})[key] = value
            state_dict["state"] = states
            optimizer.load_state_dict(state_dict)


def split_parameters(model: nn.Module, named: Mapping[str, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Hidden matrices (for Muon), and the rest (for AdamW): embedding, heads, biases, norms, adapters."""
    outer = [getattr(model, name)() for name in ("get_input_embeddings", "get_output_embeddings")]
    outer_ids = {id(module.weight) for module in outer if module is not None}
    matrices = [
        weight
        for name, weight in named.items()
        if weight.dim() == 2 and id(weight) not in outer_ids and ".lora_" not in name and not name.startswith("score.")
    ]
    chosen = {id(weight) for weight in matrices}
    return matrices, [weight for weight in named.values() if id(weight) not in chosen]


def schedule(params: Optimizer, step: int, steps: int) -> float:
    """The factor of the learning rate at `step` of `steps` (from 0): warm-up times decay.

    The last step still learns: decay reaches zero one step after it.
    """
    warm = min(1.0, (step + 1) / params.warmup_steps) if params.warmup_steps else 1.0
    left = 1.0 - step / max(1, steps)
    if params.schedule == "linear":
        return warm * left
    if params.schedule == "flat_linear":
        return warm * min(1.0, 2 * left)
    if params.schedule == "cosine":
        return warm * 0.5 * (1 + math.cos(math.pi * (1 - left)))
    return warm
