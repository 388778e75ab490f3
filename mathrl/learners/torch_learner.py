"""The torch backend: every rank holds all weights, as one buffer, and gradients are summed over the ranks."""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec

import torch
from torch import Tensor

from mathrl.core.errors import UserError, memory_part
from mathrl.learners.checkpoint import Checkpoint
from mathrl.learners.distributed import Ranks
from mathrl.learners.micro_batches import LossOf, own_micro_batches
from mathrl.learners.optimizer import FlatParameters, OptimizerSet
from mathrl.models.load import precision_of
from mathrl.models.weights import full_weights
from mathrl.params.optimizer import Optimizer

Inputs = ParamSpec("Inputs")
GROWS_AFTER = 2000  # updates


class TorchLearner:
    """See `mathrl.learners.learner.Learner`.

    `averaged` is the exponential average of the weights where there is a decay, `best` a copy of what was
    evaluated best.
    """

    def __init__(
        self,
        model: Any,
        params: Optimizer,
        updates: int,
        ranks: Ranks | None = None,
        *,
        name: str = "rl",
        ema: float | None = None,
    ) -> None:
        self.model, self.ema, self.name = model, ema, name
        self.ranks = ranks or Ranks(torch.device("cpu"))
        with memory_part("gradients and averaged weights", self._advice()):
            self.flat = FlatParameters(model)
            self.averaged = self.flat.weights.clone() if ema else None
        self.optimizer = OptimizerSet(model, self.flat, params, updates, self.ranks)
        self.loss_scale = LossScale() if precision_of(model) == "float16" else None
        self.best: Tensor | None = None
        self.updates, self.bad, self.norm, self.factor = 0, 0, 0.0, 0.0

    def _advice(self) -> str:
        return (
            f"set training.backend to deepspeed with deepspeed.offload_optimizer, or {self.name}.lora, "
            "or take a smaller model (model.base)"
        )

    def micro_batches(
        self, sizes: Sequence[int], tokens: int, chosen: Sequence[int] | None = None
    ) -> Iterator[tuple[list[int], float]]:
        self.flat.gradients.zero_()
        yield from ((micro, 1.0) for micro in own_micro_batches(sizes, tokens, self.ranks, chosen))

    def through_root(self, loss_of: LossOf[Inputs]) -> LossOf[Inputs]:
        return loss_of

    def backward(self, loss: Tensor) -> None:
        scaled = loss * self.loss_scale.value if self.loss_scale else loss
        scaled.backward()  # type: ignore[no-untyped-call]

    def reduce(self) -> None:
        """Sum the gradient over the ranks, and undo the loss's scale."""
        self.ranks.sum_(self.flat.gradients)
        if self.loss_scale:
            self.flat.gradients.div_(self.loss_scale.value)

    def update(self, loss: float) -> None:
        self.reduce()
        self.norm, self.factor = self.optimizer.clip(), 0.0
        if math.isfinite(self.norm) and math.isfinite(loss):
            with memory_part("optimizer states", self._advice()):  # allocated at the first step
                self.factor = self.optimizer.step(self.updates)
            if self.averaged is not None and self.ema:
                self.averaged.lerp_(self.flat.weights, 1 - self.ema)
        elif self.loss_scale and math.isfinite(loss) and self.loss_scale.value > 1:
            pass  # the gradient overflowed at this scale
        else:
            self.bad += 1
            check_bad(self.bad, self.ranks.training.most_bad_updates, self.name)
        if self.loss_scale:
            self.loss_scale.follow(math.isfinite(self.norm))
        self.updates += 1

    def drop(self) -> None:
        """The next update starts from a zero gradient anyway."""

    def whole(self) -> AbstractContextManager[None]:
        return nullcontext()

    def while_scoring(self) -> AbstractContextManager[None]:
        return nullcontext()

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        return full_weights(self.model)

    @contextmanager
    def with_evaluated_weights(self) -> Iterator[None]:
        if self.averaged is None:  # then the trained weights are those that are evaluated
            yield
            return
        with memory_part("trained weights, while the averaged ones are evaluated", self._advice()):
            trained = self.flat.weights.clone()
        try:
            self.flat.set_weights(self.evaluated_weights())
            yield
        finally:
            self.flat.set_weights(trained)

    def evaluated_weights(self) -> Tensor:
        """The weights that are evaluated and exported: the averaged ones where there are any."""
        return self.flat.weights if self.averaged is None else self.averaged

    def keep_best(self) -> None:
        with memory_part("best weights", f"set {self.name}.dev.export to last"):
            self.best = self.evaluated_weights().clone()

    def finish(self) -> None:
        self.flat.set_weights(self.evaluated_weights() if self.best is None else self.best)

    def tensors(self) -> dict[str, Tensor]:
        tensors = {"weights": self.flat.weights}
        if self.averaged is not None:
            tensors["averaged"] = self.averaged
        if self.best is not None:
            tensors["best"] = self.best
        if self.loss_scale:
            tensors["loss_scale"] = torch.tensor([self.loss_scale.value, self.loss_scale.good], dtype=torch.float64)
        tensors |= {f"optimizer.{name}": value for name, value in self.optimizer.state().items()}
        return {f"{self.name}/{name}": value for name, value in tensors.items()}

    def write(self, folder: Path) -> None:
        """Rank 0's `tensors` are all there is."""

    def load(self, saved: Checkpoint, counts: dict[str, int]) -> None:
        prefix = f"{self.name}/"
        tensors = {name.removeprefix(prefix): value for name, value in saved.tensors.items() if name.startswith(prefix)}
        self.flat.set_weights(tensors["weights"].to(self.flat.weights.device))
        if self.averaged is not None:
            self.averaged.copy_(tensors["averaged"])
        if "best" in tensors:
            self.best = tensors["best"].to(self.flat.weights.device)
        if self.loss_scale:
            value, good = tensors["loss_scale"].tolist()
            self.loss_scale = LossScale(value, int(good))
        states = {name.removeprefix("optimizer."): tensors[name] for name in tensors if name.startswith("optimizer.")}
        self.optimizer.load_state(states)
        self.updates, self.bad = counts["updates"], counts["bad"]

    @property
    def counts(self) -> dict[str, int]:
        return {"updates": self.updates, "bad": self.bad}


@dataclass
class LossScale:
    """What a float16 loss is multiplied by, so that small gradients are not rounded to zero (arXiv:1710.03740, 3.2).

    The rule of torch's GradScaler: half as large after an overflow, whose update is skipped, and twice as large after
    2,000 updates without one. `good` counts those.

    >>> scale = LossScale(1024.0, 1999); scale.follow(True); scale
    LossScale(value=2048.0, good=0)
    >>> scale.follow(False); scale
    LossScale(value=1024.0, good=0)
    """

    value: float = 65536.0
    good: int = 0

    def follow(self, finite: bool) -> None:
        """Take note of an update; `finite`: its gradient did not overflow."""
        self.good = self.good + 1 if finite else 0
        if not finite:
            self.value = max(1.0, self.value / 2)
        elif self.good == GROWS_AFTER:
            self.value, self.good = self.value * 2, 0


def share_gradients(learners: Sequence[Any]) -> None:
    """Give the torch learners among these one buffer of gradients: each updates before the next begins."""
    flats = [learner.flat for learner in learners if isinstance(learner, TorchLearner)]
    if len({(flat.weights.dtype, flat.weights.device) for flat in flats}) == 1:
        buffer = max((flat.gradients for flat in flats), key=len)
        for flat in flats:
            flat.put_gradients(buffer)


def check_bad(bad: int, most: int, name: str) -> None:
    """Raises UserError: more than `most` updates were skipped."""
    if bad > most:
        raise UserError(
            f"{name}: {bad} updates were skipped for a non-finite loss or gradient; lower {name}.optimizer.lr, or "
            "raise training.most_bad_updates"
        )
