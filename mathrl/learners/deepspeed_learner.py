"""The DeepSpeed backend: ZeRO divides optimizer states, gradients and weights among the ranks.

The optimizer is torch's own AdamW in its fused form, on the CPU too where it is offloaded: nothing is
compiled. DeepSpeed averages gradients over the ranks, so a loss is multiplied by their number first: the
gradient is that of the sum, as with the torch backend. In bfloat16 (model.precision) the model has that
type, and ZeRO keeps float32 weights beside it for the optimizer.
"""

import importlib.util
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mathrl.core.environment import install_command
from mathrl.core.errors import UserError, memory_part
from mathrl.learners.checkpoint import Checkpoint
from mathrl.learners.deepspeed_config import deepspeed_config
from mathrl.learners.deepspeed_internals import (
    make_engine,
    make_moments,
    own_state,
    release,
    round_masters,
    without_hooks,
    without_trace,
)
from mathrl.learners.distributed import Ranks
from mathrl.learners.optimizer import optimizer_arguments, schedule
from mathrl.learners.root_passes import RootPasses
from mathrl.learners.shards import Part, fill_parts, open_shards, write_shards
from mathrl.learners.torch_learner import check_bad
from mathrl.models.device import hardware_of
from mathrl.models.lora import weight_parts
from mathrl.models.scores import prepare
from mathrl.models.sharding import gathered_weights, own_part, own_range, with_whole_weights
from mathrl.models.weights import with_head
from mathrl.params.optimizer import Optimizer


class DeepSpeedLearner(RootPasses):
    """See `mathrl.learners.learner.Learner`."""

    def __init__(
        self, model: Any, params: Optimizer, updates: int, ranks: Ranks, *, name: str, ema: float | None = None
    ) -> None:
        check_supported(params, name, ema)
        self.model, self.params, self.planned = model, params, updates
        self.name, self.ranks, self.stage = name, ranks, ranks.training.deepspeed.stage
        self.advice = (
            f"set training.deepspeed.stage to 3, training.deepspeed.offload_optimizer or {name}.lora, run "
            "more processes, or take a smaller model (model.base)"
        )
        prepare(model)  # before its weights are divided
        trainable = [weight for weight in model.parameters() if weight.requires_grad]
        optimizer = torch.optim.AdamW(trainable, **optimizer_arguments(params, fused=True)["AdamW"])
        with memory_part("divided weights, gradients and optimizer states", self.advice):
            self.engine = make_engine(model, optimizer, self._config(), ranks)
        self.updates, self.bad, self.norm, self.factor = 0, 0, 0.0, 0.0
        self.best: dict[str, Tensor] = {}

    def _config(self) -> dict[str, Any]:
        return deepspeed_config(
            self.ranks.training.deepspeed,
            self.params,
            half=self.model.dtype == torch.bfloat16,
            hardware=hardware_of(self.ranks.device),
        )

    def backward(self, loss: Tensor) -> None:
        self.engine.backward(loss * self.ranks.world, scale_wrt_gas=False)

    def update(self, loss: float) -> None:
        factor = schedule(self.params, self.updates, self.planned)
        for group in self.engine.optimizer.param_groups:
            group["lr"] = self.params.lr * factor
        if math.isfinite(loss):
            with memory_part("optimizer states", self.advice):  # allocated at the first step
                self.engine.step()  # which skips itself if the gradient is non-finite
        else:
            self.drop()
        self.norm, self.factor = float(self.engine.get_global_grad_norm()), factor
        if not (math.isfinite(self.norm) and math.isfinite(loss)):
            self.factor, self.bad = 0.0, self.bad + 1
            check_bad(self.bad, self.ranks.training.most_bad_updates, self.name)
        self.updates += 1

    def drop(self) -> None:
        # DeepSpeed only discards its gradient buffers on overflow, so feed it a NaN gradient.
        ids = torch.zeros(1, 1, dtype=torch.long, device=self.ranks.device)
        self.backward(self.engine(lambda: self.model(input_ids=ids, use_cache=False).logits.sum() * math.nan))
        self.engine.step()

    @contextmanager
    def gather_all(self) -> Iterator[None]:
        if self.stage < 3:
            yield
            return
        with with_whole_weights(self.model.parameters()), without_hooks(self.engine):
            yield

    def while_scoring(self) -> AbstractContextManager[None]:
        return nullcontext() if self.stage < 3 or self._gathered else without_trace(self.engine)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        parts = list(weight_parts(self.model))
        return with_head(((name, make()) for name, _, make in parts) if self._gathered else gathered_weights(parts))

    def with_evaluated_weights(self) -> AbstractContextManager[None]:
        return nullcontext()

    def keep_best(self) -> None:
        state = self.model.state_dict(keep_vars=True)
        self.best = {name: own_part(weight).cpu().clone() for name, weight in state.items()}

    def finish(self) -> None:
        if self.stage == 3:
            release(self.engine, self.model)
        else:
            copies: dict[int, nn.Parameter] = {}
            parameters = {
                module: {
                    key: weight if weight is None else _own_copy(weight, copies)
                    for key, weight in module._parameters.items()
                }
                for module in self.model.modules()
            }
            self.engine.destroy()
            for module, weights in parameters.items():
                module._parameters = weights
        del self.engine
        state = self.model.state_dict(keep_vars=True)
        for name, value in self.best.items():
            own_part(state[name]).copy_(value)

    def write(self, folder: Path) -> None:
        """Write a shard per rank (`mathrl.learners.shards`): any number of ranks resumes from them."""
        best = self._best_parts() if self.stage == 3 or self.ranks.rank == 0 else ()  # else every rank has all of it
        write_shards(folder / self.name, chain(self._parts(), best))

    def load(self, saved: Checkpoint, counts: dict[str, int]) -> None:
        shards = open_shards(saved, self.name)
        self.updates, self.bad = counts["updates"], counts["bad"]
        if steps := self.updates - self.bad:
            make_moments(self.engine, steps)
        state = self.model.state_dict(keep_vars=True)
        self.best = {name: torch.zeros_like(own_part(state[name]), device="cpu") for name in shards.names("best/")}
        fill_parts(shards, chain(self._parts(), self._best_parts()), saved, self.name)
        round_masters(self.engine)

    def _parts(self) -> Iterator[Part]:
        """This rank's parts of the weights that learn and of their moments, as views."""
        names = {id(weight): name for name, weight in self.model.named_parameters()}
        for weight, begin, tensors in own_state(self.engine):
            yield from ((f"{kind}/{names[id(weight)]}", begin, values) for kind, values in tensors.items())

    def _best_parts(self) -> Iterator[Part]:
        """This rank's parts of the best weights, as views."""
        state = self.model.state_dict(keep_vars=True)
        for name, value in self.best.items():
            begin, size = own_range(state[name])
            yield f"best/{name}", begin, value.view(-1)[:size]


def check_supported(params: Optimizer, name: str, ema: float | None) -> None:
    """Raises UserError: DeepSpeed is not installed, or does not support the optimizer or the average."""
    if importlib.util.find_spec("deepspeed") is None:
        raise UserError(
            f"training.backend is deepspeed, which is not installed: `{install_command('deepspeed')}` installs it; "
            "or set training.backend to torch"
        )
    changes = []
    if params.type != "adamw":
        changes.append(f"{name}.optimizer.type to adamw")
    if ema:
        changes.append(f"{name}.ema to null")
    if changes:
        raise UserError(
            "training.backend deepspeed has neither Muon, 8-bit AdamW nor averaged weights: "
            f"set {' and '.join(changes)}, or training.backend to torch"
        )


def _own_copy(weight: nn.Parameter, copies: dict[int, nn.Parameter]) -> nn.Parameter:
    """A copy without DeepSpeed's attributes, made once for tied weights."""
    if id(weight) not in copies:
        copies[id(weight)] = nn.Parameter(weight.detach().clone(), requires_grad=weight.requires_grad)
    return copies[id(weight)]
