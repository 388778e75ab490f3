"""A model that learns, the policy or a critic: its weights as one buffer, its optimizer, its average."""

import math
from typing import Any

from torch import Tensor

from mathrl.core.errors import UserError
from mathrl.params.train import Optimizer
from mathrl.trainers.optimizer import FlatParameters, OptimizerSet

MOST_BAD_UPDATES = 10


class Learner:
    """Takes one update after another from the gradients in `flat`.

    `averaged` is the exponential average of the weights where there is a decay; `updates` and `bad` count
    what was done and what was skipped since it was not a number; `norm` and `factor` are the gradient's norm
    before clipping and the schedule's factor of the last update (0 if it was skipped).
    """

    def __init__(
        self,
        model: Any,
        params: Optimizer,
        lr: float,
        updates: int,
        ema: float | None = None,
        name: str = "rl",
    ) -> None:
        self.model, self.ema, self.name = model, ema, name
        self.flat = FlatParameters(model)
        self.optimizer = OptimizerSet(model, self.flat, params, lr, updates)
        self.averaged = self.flat.weights.clone() if ema else None
        self.updates, self.bad, self.norm, self.factor = 0, 0, 0.0, 0.0

    def update(self, loss: float) -> None:
        """One step of the optimizer; none if the loss or the gradient is not a number.

        Raises:
            UserError: that was so more than ten times.
        """
        self.norm, self.factor = self.optimizer.clip(), 0.0
        if math.isfinite(self.norm) and math.isfinite(loss):
            self.factor = self.optimizer.step(self.updates)
            if self.averaged is not None and self.ema:
                self.averaged.lerp_(self.flat.weights, 1 - self.ema)
        else:
            self.bad += 1
            if self.bad > MOST_BAD_UPDATES:
                raise UserError(
                    f"{self.name}: {self.bad} updates had a loss or gradient that is not a number; "
                    f"lower {self.name}.lr or {self.name}.optimizer.muon_lr"
                )
        self.updates += 1

    def evaluated_weights(self) -> Tensor:
        """Those that are evaluated and exported: the averaged ones where there are any."""
        return self.flat.weights if self.averaged is None else self.averaged

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds of it, by names that begin with its own."""
        own = {"weights": self.flat.weights}
        if self.averaged is not None:
            own["averaged"] = self.averaged
        own |= {f"optimizer.{name}": value for name, value in self.optimizer.state().items()}
        return {f"{self.name}/{name}": value for name, value in own.items()}

    def load(self, tensors: dict[str, Tensor], counts: dict[str, int]) -> None:
        """Take over what `tensors` and `counts` gave; names of others are passed over."""
        own = {
            name.partition("/")[2]: value
            for name, value in tensors.items()
            if name.startswith(f"{self.name}/")
        }
        self.flat.set_weights(own["weights"].to(self.flat.weights.device))
        if self.averaged is not None:
            self.averaged.copy_(own["averaged"])
        states = {name.removeprefix("optimizer."): own[name] for name in own if name.startswith("optimizer.")}
        self.optimizer.load_state(states)
        self.updates, self.bad = counts["updates"], counts["bad"]

    @property
    def counts(self) -> dict[str, int]:
        return {"updates": self.updates, "bad": self.bad}
