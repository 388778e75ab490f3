"""What a rank of the FSDP backend steps: its rows of the weights, by AdamW, and whole matrices by turns, by Muon.

AdamW computes each element alone, so rows are enough. Muon needs a matrix whole: the ranks take turns. The owner of a
matrix is sent its gradient, keeps its momentum, computes the update and sends the others their rows of it.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from mathrl.learners.distributed import Ranks
from mathrl.learners.optimizer import optimizer_arguments, schedule, split_parameters
from mathrl.learners.shards import Part
from mathrl.models.sharding import own_part, own_range, row_range
from mathrl.params.optimizer import Muon, Optimizer

Named = tuple[str, nn.Parameter]


class LocalWeights:
    """This rank's float32 rows of the weights that learn, as `masters`, by name.

    A divided weight of the model and its master are the same memory. Weights that are not divided (adapters that were
    added to a divided model) are whole at every rank; a bfloat16 one is a rounded copy of its master.
    """

    def __init__(self, model: nn.Module, ranks: Ranks) -> None:
        self.ranks = ranks
        self.named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self.masters: dict[str, nn.Parameter] = {}
        for name, weight in self.named.items():
            if isinstance(weight, DTensor):
                self.masters[name] = nn.Parameter(own_part(weight))
            elif weight.dtype in (torch.float32, torch.float64):
                self.masters[name] = weight
            else:
                weight.grad_dtype = torch.float32  # type: ignore[attr-defined]  # since torch 2.10
                self.masters[name] = nn.Parameter(weight.detach().float())
        self.divided = [name for name, weight in self.named.items() if isinstance(weight, DTensor)]
        self.whole = [name for name in self.named if name not in set(self.divided)]

    def clear_gradients(self) -> None:
        for name, weight in self.named.items():
            weight.grad = self.masters[name].grad = None

    def take_gradients(self) -> float:
        """Give each master its rows of the gradient, summed over the ranks; the norm of all of it."""
        for name, master in self.masters.items():
            gradient = self.named[name].grad
            if gradient is None:
                gradient = torch.zeros_like(master)
            master.grad = gradient.to_local() if isinstance(gradient, DTensor) else gradient
        if self.whole:  # FSDP has added up the others
            gradients = [self.gradient(name) for name in self.whole]
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            self.ranks.sum_(flat)
            parts = torch.split(flat, [gradient.numel() for gradient in gradients])
            for gradient, part in zip(gradients, parts, strict=True):
                gradient.copy_(part.view_as(gradient))
        here = self._squares(self.divided)
        self.ranks.sum_(here)
        return float((here + self._squares(self.whole)).sqrt())

    def gradient(self, name: str) -> Tensor:
        """A master's gradient, once `take_gradients` has given it."""
        gradient = self.masters[name].grad
        assert gradient is not None
        return gradient

    def _squares(self, names: Sequence[str]) -> Tensor:
        gradients = [self.gradient(name) for name in names]
        norm = nn.utils.get_total_norm(gradients).double() if gradients else torch.zeros((), dtype=torch.float64)
        return norm.square().to(self.ranks.device)

    @torch.no_grad()
    def scale_gradients(self, factor: float) -> None:
        torch._foreach_mul_([self.gradient(name) for name in self.masters], factor)

    @torch.no_grad()
    def round_weights(self) -> None:
        """Give the model the masters' values where it has rounded copies."""
        for name in self.whole:
            if self.named[name] is not self.masters[name]:
                self.named[name].copy_(self.masters[name])

    def copies(self, place: torch.device | str | None = None) -> dict[str, Tensor]:
        """Copies of the masters, on the device `place` or where they are."""
        return {name: master.detach().clone().to(place or master.device) for name, master in self.masters.items()}

    @torch.no_grad()
    def set_values(self, values: dict[str, Tensor]) -> None:
        for name, master in self.masters.items():
            master.copy_(values[name])
        self.round_weights()

    def parts(self, kind: str, values: dict[str, Tensor]) -> Iterator[Part]:
        """Tensors like the masters, as parts of a checkpoint (`mathrl.learners.shards`)."""
        for name, value in values.items():
            yield f"{kind}/{name}", own_range(self.named[name])[0], value.detach().view(-1)


class DividedOptimizer:
    """The optimizers of `params` over the masters, at one schedule of rates (see `optimizer.OptimizerSet`)."""

    def __init__(self, model: nn.Module, local: LocalWeights, params: Optimizer, steps: int) -> None:
        self.local, self.params, self.steps = local, params, steps
        matrices = split_parameters(model, local.named)[0] if isinstance(params, Muon) else []
        chosen = {id(weight) for weight in matrices}
        self.arguments = optimizer_arguments(params, fused=local.ranks.device.type == "cuda")
        self.stepped = {name: local.masters[name] for name, weight in local.named.items() if id(weight) not in chosen}
        self.adamw = torch.optim.AdamW(list(self.stepped.values()), **self.arguments["AdamW"])
        named = [(name, weight) for name, weight in local.named.items() if id(weight) in chosen]
        self.muon = OwnedMatrices(named, local, self.arguments["Muon"]) if named else None

    def step(self, step: int) -> float:
        """One update with the masters' gradients; `step` counts from 0; returns the rates' factor."""
        factor = schedule(self.params, step, self.steps)
        for group in self.adamw.param_groups:
            group["lr"] = self.arguments["AdamW"]["lr"] * factor
        self.adamw.step()
        if self.muon is not None:
            self.muon.step(self.params.lr * factor)
        self.local.round_weights()
        return factor

    def parts(self) -> Iterator[Part]:
        """This rank's parts of the moments, as views; none before the first step."""
        for moment in ("exp_avg", "exp_avg_sq"):
            held = {name: self.adamw.state[master] for name, master in self.stepped.items()}
            yield from self.local.parts(moment, {name: state[moment] for name, state in held.items() if state})
        if self.muon is not None:
            yield from self.muon.parts()

    def make_moments(self, steps: int) -> None:
        """Make the moments as after `steps` steps; their values are still to come."""
        for master in self.stepped.values():
            state = self.adamw.state[master]
            state["step"] = torch.tensor(float(steps), device=master.device if master.is_cuda else "cpu")
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(master), torch.zeros_like(master)
        if self.muon is not None:
            self.muon.make_momentum()


class OwnedMatrices:
    """Muon on matrices of which each is owned by one rank, in turn, which alone has its momentum.

    torch's Muon steps a matrix of zeros, so that what it becomes is the update; the weight decay is each rank's own.
    """

    def __init__(self, named: Sequence[Named], local: LocalWeights, arguments: dict[str, Any]) -> None:
        self.local, self.decay, ranks = local, arguments["weight_decay"], local.ranks
        self.turns = [named[first : first + ranks.world] for first in range(0, len(named), ranks.world)]
        self.owned = dict(turn[ranks.rank] for turn in self.turns if ranks.rank < len(turn))
        self.optimizers: dict[str, torch.optim.Muon] = {}
        for name in self.owned:
            matrix = nn.Parameter(local.masters[name].new_empty(0, 0))  # has its size only while it is stepped
            self.optimizers[name] = torch.optim.Muon([matrix], **(arguments | {"weight_decay": 0.0}))

    @torch.no_grad()
    def step(self, lr: float) -> None:
        for turn in self.turns:
            for (name, _), update in zip(turn, self._own_rows(turn, lr), strict=True):
                master = self.local.masters[name]
                master.mul_(1 - lr * self.decay)
                master.view(-1).add_(update)

    def _own_rows(self, turn: Sequence[Named], lr: float) -> Sequence[Tensor]:
        """This rank's rows, flat, of the update of each matrix of the turn; one matrix per rank at most."""
        ranks = self.local.ranks
        rows = [self.local.gradient(name).reshape(-1) for name, _ in turn]
        rows_of_owners = [len(rows_of_owner) for rows_of_owner in rows] + [0] * (ranks.world - len(turn))
        rows_of_ranks = [0] * ranks.world
        if ranks.rank < len(turn):
            ranges = [row_range(turn[ranks.rank][1], rank) for rank in range(ranks.world)]
            rows_of_ranks = [end - begin for begin, end in ranges]
        matrix = rows[0].new_empty(sum(rows_of_ranks))
        dist.all_to_all_single(matrix, torch.cat(rows), rows_of_ranks, rows_of_owners)
        if ranks.rank < len(turn):
            name, weight = turn[ranks.rank]
            matrix = self._update(name, matrix.view(weight.shape), lr).reshape(-1)
        updates = matrix.new_empty(sum(rows_of_owners))
        dist.all_to_all_single(updates, matrix, rows_of_owners, rows_of_ranks)
        return torch.split(updates, rows_of_owners[: len(turn)])

    def _update(self, name: str, gradient: Tensor, lr: float) -> Tensor:
        group = self.optimizers[name].param_groups[0]
        (matrix,) = group["params"]
        matrix.data, matrix.grad, group["lr"] = torch.zeros_like(gradient), gradient, lr
        self.optimizers[name].step()  # type: ignore[no-untyped-call]
        update: Tensor = matrix.data
        matrix.grad, matrix.data = None, gradient.new_empty(0, 0)
        return update

    def make_momentum(self) -> None:
        """Make the momentum of the owned matrices; its values are still to come."""
        for name, weight in self.owned.items():
            (matrix,) = self.optimizers[name].param_groups[0]["params"]
            momentum = self.local.masters[name].new_zeros(weight.shape)
            self.optimizers[name].state[matrix]["momentum_buffer"] = momentum

    def parts(self) -> Iterator[Part]:
        for name, optimizer in self.optimizers.items():
            for state in optimizer.state.values():
                yield f"momentum_buffer/{name}", 0, state["momentum_buffer"].view(-1)
