"""Optimizers, learning-rate schedules and the flat buffers that hold weights and gradients."""

import math
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mathrl.learners.distributed import Ranks
from mathrl.learners.eight_bit import EightBitAdamW
from mathrl.learners.micro_batches import balance, fill
from mathrl.models.linear import FastProducts
from mathrl.params.optimizer import AdamW8Bit, Muon, Optimizer

SENT = 2**26  # weights that ranks exchange at a time, beside a larger matrix: 256 MiB


class FlatParameters:
    """All trainable weights as views of one buffer, and their gradients of another.

    So clearing, summing over processes and measuring the gradient is one operation each, and so is an
    average of the weights. Tied weights are there once.

    Both buffers are at least float32. The weights of a bfloat16 model (a GPU's) are rounded copies of them, made once
    per update; autograd adds the gradient of each micro-batch in float32. `named` are the model's weights, `masters`
    under the same names what the optimizer steps: for a float32 model the same parameters.
    """

    def __init__(self, model: nn.Module) -> None:
        self.named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        first = next(iter(self.named.values()))
        total = sum(weight.numel() for weight in self.named.values())
        wide = torch.promote_types(first.dtype, torch.float32)
        self.weights = torch.empty(total, dtype=wide, device=first.device)
        self.masters: dict[str, nn.Parameter] = {}
        for (name, weight), (_, view) in zip(self.named.items(), self._views(self.weights), strict=True):
            view.copy_(weight.detach())
            if weight.dtype == wide:
                weight.data = view
                self.masters[name] = weight
            else:
                weight.grad_dtype = wide  # type: ignore[attr-defined]  # since torch 2.10
                self.masters[name] = nn.Parameter(view)
        self.put_gradients(torch.zeros_like(self.weights))

    def put_gradients(self, buffer: Tensor) -> None:
        """Keep the gradients at the beginning of `buffer`, which holds at least as many numbers."""
        self.gradients = buffer[: len(self.weights)]
        for (name, weight), (_, view) in zip(self.named.items(), self._views(self.gradients), strict=True):
            weight.grad = self.masters[name].grad = view

    def set_weights(self, values: Tensor) -> None:
        """Overwrite all weights; through the parameters, so that what is cached of them is computed again."""
        with torch.no_grad():
            for master, (_, view) in zip(self.masters.values(), self._views(values), strict=True):
                master.copy_(view)
        self.round_weights()

    @torch.no_grad()
    def round_weights(self) -> None:
        """Give the model the masters' values; of a float32 model they are the same tensors."""
        pairs = [(weight, self.masters[name]) for name, weight in self.named.items()]
        pairs = [(weight, master) for weight, master in pairs if weight is not master]
        if pairs:
            torch._foreach_copy_([weight for weight, _ in pairs], [master for _, master in pairs])

    def _views(self, flat: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Each weight with its part of a flat tensor, in its shape."""
        start = 0
        for weight in self.named.values():
            end = start + weight.numel()
            yield weight, flat[start:end].view(weight.shape)
            start = end


class MatrixMuon(torch.optim.Muon):
    """torch's Muon, also on experts' weights of three dimensions, [experts, out, in]: each expert is a matrix.

    Each rank steps its share of the matrices, whose products take longer than sending the others their weights.
    The state is one momentum per weight, the same at every rank.
    """

    def __init__(self, weights: Sequence[nn.Parameter], ranks: Ranks | None = None, **arguments: Any) -> None:
        super().__init__([nn.Parameter(weight.new_empty(0, 0)) for weight in weights], **arguments)
        self.param_groups[0]["params"] = list(weights)  # torch's check refuses three dimensions
        self.ranks, self.matrices = ranks, [matrix for weight in weights for matrix in _matrices(weight)]
        costs = [matrix.numel() * min(matrix.shape) for matrix in self.matrices]
        self.share = {*(balance(costs, ranks.world)[ranks.rank] if ranks else range(len(costs)))}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)  # type: ignore[no-untyped-call]
        if self.ranks and self.ranks.world > 1:
            for number, matrix in enumerate(self.matrices):
                if number not in self.share:
                    matrix.zero_()
            for matrices in fill(self.matrices, [matrix.numel() for matrix in self.matrices], SENT):
                sent = torch.cat([matrix.flatten() for matrix in matrices])
                self.ranks.sum_(sent)
                parts = torch.split(sent, [matrix.numel() for matrix in matrices])
                for matrix, part in zip(matrices, parts, strict=True):
                    matrix.copy_(part.view_as(matrix))

    def _init_group(
        self,
        group: MutableMapping[str, Any],
        params_with_grad: list[Tensor],
        grads: list[Tensor],
        muon_momentum_bufs: list[Tensor],
    ) -> bool:
        held: tuple[list[Tensor], ...] = ([], [], [])
        super()._init_group(group, *held)
        columns = [[matrix for tensor in tensors for matrix in _matrices(tensor)] for tensors in held]
        for number, (matrix, gradient, momentum) in enumerate(zip(*columns, strict=True)):
            if number in self.share:
                params_with_grad.append(matrix)
                grads.append(gradient)
                muon_momentum_bufs.append(momentum)
            else:
                momentum.lerp_(gradient, 1 - group["momentum"])
        return False


def _matrices(weight: Tensor) -> Sequence[Tensor]:
    return weight.detach().unbind() if weight.dim() == 3 else [weight]


class OptimizerSet:
    """Muon on the hidden matrices at `lr` and AdamW on the rest at `lr * adamw_scale`, or AdamW on all at `lr`,
    with float32 moments or those of 8 bits.

    Every rate follows one schedule.
    """

    def __init__(
        self, model: nn.Module, flat: FlatParameters, params: Optimizer, steps: int, ranks: Ranks | None = None
    ) -> None:
        self.params, self.steps, self.flat = params, steps, flat
        matrices, rest = (
            split_parameters(model, flat.named) if isinstance(params, Muon) else ([], [*flat.named.values()])
        )
        master = {id(weight): flat.masters[name] for name, weight in flat.named.items()}
        muons, adamws = [master[id(weight)] for weight in matrices], [master[id(weight)] for weight in rest]
        arguments = optimizer_arguments(params, fused=flat.weights.is_cuda)  # fused: no copies of the moments
        adamw = make_adamw(params, adamws, arguments["AdamW"])
        self.parts: list[tuple[torch.optim.Optimizer | EightBitAdamW, float]] = [(adamw, params.adamw_lr)]
        if muons:
            muon = MatrixMuon(muons, ranks, **arguments["Muon"])
            self.parts.append((muon, params.lr))

    def step(self, step: int) -> float:
        """One update with the gradients as they stand; `step` counts from 0; returns the lr's factor."""
        factor = schedule(self.params, step, self.steps)
        for optimizer, lr in self.parts:
            for group in optimizer.param_groups:
                group["lr"] = lr * factor
            with FastProducts():
                optimizer.step()
        self.flat.round_weights()
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
                part, index, key = name.split(".")
                if int(part) == number:
                    states.setdefault(int(index), {})[key] = value
            state_dict["state"] = states
            optimizer.load_state_dict(state_dict)


def optimizer_arguments(params: Optimizer, *, fused: bool) -> dict[str, dict[str, Any]]:
    """The arguments of each optimizer by its name; `fused` is one kernel per step, without copies of the moments.

    Example: {"AdamW": {"lr": 5e-4, "betas": (0.9, 0.95), …}, "Muon": {"lr": 0.01, "weight_decay": 0.0}}
    """
    adamw: dict[str, Any] = {
        "lr": params.adamw_lr,
        "betas": (params.beta1, params.beta2),
        "eps": params.eps,
        "weight_decay": params.weight_decay,
    }
    if not isinstance(params, AdamW8Bit):
        adamw |= {"foreach": not fused, "fused": fused}
    muon = {"Muon": {"lr": params.lr, "weight_decay": params.weight_decay}} if isinstance(params, Muon) else {}
    return {"AdamW": adamw, **muon}


def make_adamw(
    params: Optimizer, weights: Sequence[nn.Parameter], arguments: Mapping[str, Any]
) -> torch.optim.AdamW | EightBitAdamW:
    """torch's AdamW or that of 8 bits, with `optimizer_arguments`.

    Raises:
        UserError: bitsandbytes is not installed.
    """
    if isinstance(params, AdamW8Bit):
        return EightBitAdamW(weights, **arguments)
    return torch.optim.AdamW(weights, **arguments)


def split_parameters(model: nn.Module, named: Mapping[str, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Hidden matrices (for Muon), and the rest (for AdamW): embeddings, heads, biases, norms, convolutions, adapters.

    Tables of positions are embeddings too. Weights of experts have three dimensions, a matrix per expert; their biases,
    and Mamba's A_log, have two and are no matrices.
    """
    owners = {id(weight): module for module in model.modules() for weight in module.parameters(recurse=False)}
    outer = [getattr(model, name)() for name in ("get_input_embeddings", "get_output_embeddings")]
    outer_ids = {id(module.weight) for module in outer if module is not None}

    def is_matrix(name: str, weight: Tensor) -> bool:
        owner = owners[id(weight)]
        if weight.dim() == 3:
            return "Experts" in type(owner).__name__
        outside = id(weight) in outer_ids or isinstance(owner, nn.Embedding) or name.startswith("score.")
        return weight.dim() == 2 and not outside and ".lora_" not in name and not name.endswith(("bias", "A_log"))

    matrices = [weight for name, weight in named.items() if is_matrix(name, weight)]
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
