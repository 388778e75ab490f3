"""The FSDP backend: PyTorch's `fully_shard` divides weights, gradients and optimizer states among the ranks.

Weights are float32 and stepped where they are; in bfloat16 (`model.precision`) they are rounded as they are gathered,
and gradients are summed over the ranks in float32. What the torch backend has works here too: Muon, averaged weights.
"""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mathrl.core.out_of_memory import memory_part
from mathrl.learners.checkpoint import Checkpoint
from mathrl.learners.distributed import Ranks
from mathrl.learners.fsdp_optimizer import DividedOptimizer, LocalWeights
from mathrl.learners.root_passes import RootPasses
from mathrl.learners.shards import Part, fill_parts, open_shards, write_shards
from mathrl.learners.torch_learner import check_bad
from mathrl.models.fsdp import all_gathered, divide, fsdp_root, is_divided, layer_by_layer, rank_mesh, widen
from mathrl.models.lora import weight_parts
from mathrl.models.scores import prepare
from mathrl.models.sharding import gathered_weights
from mathrl.models.weights import with_head
from mathrl.params.optimizer import Optimizer


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

    def scoring(self) -> AbstractContextManager[None]:
        return nullcontext() if self._gathered else layer_by_layer(self.model)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        return with_head(gathered_weights(list(weight_parts(self.model))))

    @contextmanager
    def evaluated(self) -> Iterator[None]:
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
