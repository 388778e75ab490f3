"""A model that learns, the policy or a critic, whichever backend holds its weights and optimizer."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from torch import Tensor

from mathrl.learners.checkpoint import Checkpoint
from mathrl.learners.deepspeed_learner import DeepSpeedLearner
from mathrl.learners.distributed import Backend
from mathrl.learners.torch_learner import TorchLearner
from mathrl.params.train import Optimizer

Micro = TypeVar("Micro")


class Learner(Protocol):
    """Takes one update after another, each the sum of the gradients of its micro-batches.

    `updates` and `bad` count what was done and what was skipped since it was not a number; `norm` and
    `factor` are the last update's gradient norm before clipping and factor of the schedule (0 if skipped).
    All processes call the same methods in the same order.

    Example:
        for micro, counts in learner.rounds(micros, spare):
            learner.descend(lambda: counts * loss_of(micro))
        learner.reduce()
        learner.update(loss)
    """

    model: Any
    updates: int
    bad: int
    norm: float
    factor: float

    def rounds(self, micros: Sequence[Micro], spare: Micro) -> Iterator[tuple[Micro, float]]:
        """Begin an update: this process's micro-batches, each with 1.0.

        Where processes exchange weights or gradients within a pass, all of them make the same number: the
        shorter ones are given `spare` with 0.0, the factor that its loss takes.
        """
        ...

    def descend(self, compute: Callable[[], Tensor]) -> None:
        """Forward and backward: add the gradient of the scalar that `compute` gives of `model`."""
        ...

    def reduce(self) -> None:
        """Sum the gradient over the processes."""
        ...

    def update(self, loss: float) -> None:
        """One step of the optimizer; none if the loss or the gradient is not a number.

        Raises:
            UserError: that was so more than `training.most_bad_updates` times.
        """
        ...

    def drop(self) -> None:
        """Forget the gradient instead of an update."""
        ...

    def whole(self) -> AbstractContextManager[None]:
        """Within it every process has all weights and samples from the model at its own pace."""
        ...

    def scoring(self) -> AbstractContextManager[None]:
        """Within it the model runs without a gradient, where weights are divided layer by layer.

        All processes make the same number of passes of it (see `Backend.evened`).
        """
        ...

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """All weights as `full_weights` gives them, at every process, some at a time."""
        ...

    def evaluated(self) -> AbstractContextManager[None]:
        """Within it the model holds the weights that are evaluated: the averaged ones if there are any."""
        ...

    def keep_best(self) -> None:
        """Remember the evaluated weights, for `finish`."""
        ...

    def finish(self) -> None:
        """The model is a plain one again, with the best weights if they were kept, or the evaluated."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds of it, by names that begin with its own."""
        ...

    def write(self, folder: Path) -> None:
        """What the backend itself writes into a checkpoint, by every process."""
        ...

    def load(self, saved: Checkpoint, counts: dict[str, int]) -> None:
        """Take over what `tensors`, `write` and `counts` gave; what belongs to others is passed over."""
        ...

    @property
    def counts(self) -> dict[str, int]: ...


def make_learner(
    model: Any, params: Optimizer, lr: float, updates: int, backend: Backend, *, name: str, ema: float | None = None
) -> Learner:
    """A learner of the backend that `training.backend` names, for `updates` updates.

    `name` is the section's of `params`, for messages and checkpoints.

    Raises:
        UserError: DeepSpeed is not there, or cannot do what the parameters ask for.
    """
    if backend.training.backend == "deepspeed":
        return DeepSpeedLearner(model, params, lr, updates, backend, name=name, ema=ema)
    return TorchLearner(model, params, lr, updates, ema, name, backend)
