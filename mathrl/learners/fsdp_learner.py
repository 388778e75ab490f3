"""The FSDP backend: PyTorch's `fully_shard` divides weights, gradients and optimizer states among the ranks.

Weights are float32 and stepped where they are; in bfloat16 (`model.precision`) they are rounded as they are gathered,
and gradients are summed over the ranks in float32. What the torch backend has works here too: Muon, averaged weights.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from mathrl.core.errors import UserError, memory_part
from mathrl.learners.checkpoint import Checkpoint
from mathrl.learners.distributed import Ranks
from mathrl.learners.eight_bit import EightBitAdamW
from mathrl.learners.optimizer import MatrixMuon, make_adamw, optimizer_arguments, schedule, split_parameters
from mathrl.learners.root_passes import RootPasses
from mathrl.learners.shards import Part, Shards, fill_parts, open_shards, write_shards
from mathrl.learners.torch_learner import check_bad
from mathrl.models.fsdp import all_gathered, divide, fsdp_root, is_divided, layer_by_layer, rank_mesh, widen
from mathrl.models.linear import FastProducts
from mathrl.models.lora import weight_parts
from mathrl.models.scores import prepare
from mathrl.models.sharding import gathered_weights, own_part, own_range, row_range
from mathrl.models.weights import with_head
from mathrl.params.optimizer import Muon, Optimizer


class FsdpLearner(RootPasses):
    """See `mathrl.learners.learner.Learner`."""

    def __init__(
        self, model: Any, params: Optimizer, updates: int, ranks: Ranks, *, name: str, ema: float | None = None
    ) -> None:
        self.model, self.params, self.name, self.ranks, self.ema = model, params, name, ranks, ema
        self.advice = f"run more processes, set {name}.lora, or take a smaller model (model.base)"
        prepare(model, ranks.context)  # before its weights are divided
        with memory_part("divided weights", self.advice):
            if not is_divided(model):
                divide(model, rank_mesh(ranks.device))
            widen(model)
        self.engine = fsdp_root(model)
        self.local = LocalWeights(model, ranks)
        self.averaged = self.local.copies() if ema else None
        self.best: dict[str, Tensor] = {}
        self.optimizer = DividedOptimizer(model, self.local, params, updates)
        self.updates, self.bad, self.norm, self.factor = 0, 0, 0.0, 0.0

    def backward(self, loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def update(self, loss: float) -> None:
        self.norm, self.factor = self.local.take_gradients(), 0.0
        if math.isfinite(self.norm) and math.isfinite(loss):
            limit = self.params.clip_norm
            if limit is not None and self.norm > limit:
                self.local.scale_gradients(limit / self.norm)
            with memory_part("optimizer states", self.advice):  # allocated at the first step
                self.factor = self.optimizer.step(self.updates)
            if self.averaged is not None and self.ema:
                masters = [self.local.masters[name].detach() for name in self.averaged]
                torch._foreach_lerp_(list(self.averaged.values()), masters, 1 - self.ema)
        else:
            self.bad += 1
            check_bad(self.bad, self.ranks.training.most_bad_updates, self.name)
        self.local.clear_gradients()
        self.updates += 1

    def drop(self) -> None:
        self.local.clear_gradients()

    def gather_all(self) -> AbstractContextManager[None]:
        return all_gathered(self.model)

    def while_scoring(self) -> AbstractContextManager[None]:
        return nullcontext() if self._gathered else layer_by_layer(self.model)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        return with_head(gathered_weights(list(weight_parts(self.model))))

    @contextmanager
    def with_evaluated_weights(self) -> Iterator[None]:
        if self.averaged is None:  # then the trained weights are those that are evaluated
            yield
            return
        with memory_part("trained weights, while the averaged ones are evaluated", self.advice):
            trained = self.local.copies()
        try:
            self.local.set_values(self.averaged)
            yield
        finally:
            self.local.set_values(trained)

    def keep_best(self) -> None:
        values = self.local.masters if self.averaged is None else self.averaged
        self.best = {name: value.detach().to("cpu", copy=True) for name, value in values.items()}

    def finish(self) -> None:
        """The model stays divided; only what trains it is freed."""
        self.local.set_values(self.best or self.averaged or dict(self.local.masters))
        self.local.clear_gradients()
        self.averaged = None
        del self.optimizer

    def write(self, folder: Path) -> None:
        """Write a shard per rank (`mathrl.learners.shards`): any number of ranks resumes from them."""
        write_shards(folder / self.name, self._parts())

    def load(self, saved: Checkpoint, counts: dict[str, int]) -> None:
        shards = open_shards(saved, self.name)
        check_same_division(shards, self.ranks, saved.step)
        self.updates, self.bad = counts["updates"], counts["bad"]
        if steps := self.updates - self.bad:
            self.optimizer.make_moments(steps)
        if shards.names("best/"):
            self.best = self.local.copies("cpu")
        fill_parts(shards, self._parts(), saved, self.name)
        self.local.round_weights()

    def _parts(self) -> Iterator[Part]:
        """This rank's parts of all that a checkpoint has, as views."""
        kinds: dict[str, dict[str, Tensor]] = {
            "value": {**self.local.masters},
            "averaged": self.averaged or {},
            "best": self.best,
        }
        return chain(self.optimizer.parts(), *(self.local.parts(kind, values) for kind, values in kinds.items()))


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
        self.adamw = make_adamw(params, list(self.stepped.values()), self.arguments["AdamW"])
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
        if isinstance(self.adamw, EightBitAdamW):
            yield from self._eight_bit_parts(self.adamw)
            return
        for moment in ("exp_avg", "exp_avg_sq"):
            held = {name: self.adamw.state[master] for name, master in self.stepped.items()}
            yield from self.local.parts(moment, {name: state[moment] for name, state in held.items() if state})
        if self.muon is not None:
            yield from self.muon.parts()

    def make_moments(self, steps: int) -> None:
        """Make the moments as after `steps` steps; their values are still to come."""
        if isinstance(self.adamw, EightBitAdamW):
            for master in self.stepped.values():
                self.adamw.make_state(master, steps)
            return
        for master in self.stepped.values():
            state = self.adamw.state[master]
            state["step"] = torch.tensor(float(steps), device=master.device if master.is_cuda else "cpu")
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(master), torch.zeros_like(master)
        if self.muon is not None:
            self.muon.make_momentum()

    def _eight_bit_parts(self, adamw: EightBitAdamW) -> Iterator[Part]:
        """Codes and scales under the rank's own names: blocks of 256 begin where a rank's rows do."""
        for name, master in self.stepped.items():
            for key, value in adamw.state_of(master).items():
                if isinstance(value, Tensor):
                    yield f"{eight_bit_prefix(self.local.ranks)}{key}/{name}", 0, value.view(-1)


def eight_bit_prefix(ranks: Ranks) -> str:
    """What the names of a rank's 8-bit moments begin with, such as "8bit/1of2/"."""
    return f"8bit/{ranks.rank}of{ranks.world}/"


def check_same_division(shards: Shards, ranks: Ranks, step: int) -> None:
    """Raises UserError: the checkpoint has 8-bit moments of another number of processes."""
    held = shards.names("8bit/")
    if held and not shards.names(eight_bit_prefix(ranks)):
        world = held[0].partition("/")[0].partition("of")[2]
        raise UserError(
            f"the checkpoint after step {step} has the 8-bit moments of {world} processes, in blocks of their own "
            f"rows: set run.processes to {world}, or remove its folder"
        )


class OwnedMatrices:
    """Muon on matrices of which each is owned by one rank, in turn, which alone has its momentum.

    torch's Muon steps a matrix of zeros, so that what it becomes is the update; the weight decay is each rank's own.
    """

    def __init__(self, named: Sequence[Named], local: LocalWeights, arguments: dict[str, Any]) -> None:
        self.local, self.decay, ranks = local, arguments["weight_decay"], local.ranks
        self.turns = [named[first : first + ranks.world] for first in range(0, len(named), ranks.world)]
        self.owned = dict(turn[ranks.rank] for turn in self.turns if ranks.rank < len(turn))
        self.optimizers: dict[str, MatrixMuon] = {}
        for name in self.owned:
            matrix = nn.Parameter(local.masters[name].new_empty(0, 0))  # has its size only while it is stepped
            self.optimizers[name] = MatrixMuon([matrix], **(arguments | {"weight_decay": 0.0}))

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
        with FastProducts():
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
