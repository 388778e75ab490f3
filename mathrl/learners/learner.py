"""A model that learns, the policy or a critic, whichever backend holds its weights and optimizer."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ParamSpec, Protocol

from torch import Tensor

from mathrl.learners.checkpoint import Checkpoint
from mathrl.learners.deepspeed_learner import DeepSpeedLearner
from mathrl.learners.distributed import Ranks
from mathrl.learners.fsdp_learner import FsdpLearner
from mathrl.learners.micro_batches import LossOf
from mathrl.learners.torch_learner import TorchLearner
from mathrl.params.optimizer import Optimizer

Inputs = ParamSpec("Inputs")
BACKENDS: dict[str, Callable[..., "Learner"]] = {
    "torch": TorchLearner,
    "deepspeed": DeepSpeedLearner,
    "fsdp": FsdpLearner,
}


class Learner(Protocol):
    """Takes one update after another, each with the sum of the gradients of its micro-batches.

    `updates` counts the updates taken and `bad` those of them that were skipped for a non-finite loss or
    gradient; `norm` and `factor` are the last update's gradient norm before clipping and learning-rate factor
    (0 if skipped). All ranks call the same methods in the same order.

    Example:
        forward = learner.through_root(loss_of)
        for micro, counts in learner.micro_batches(sizes, tokens=4096):
            figures += add_gradient(learner.backward, forward([items[i] for i in micro]), counts)
        learner.update(total_loss)
    """

    model: Any
    ranks: Ranks
    updates: int
    bad: int
    norm: float
    factor: float

    def micro_batches(
        self, sizes: Sequence[int], tokens: int, chosen: Sequence[int] | None = None
    ) -> Iterator[tuple[list[int], float]]:
        """Begin an update: the micro-batches of this rank's share of the items, as numbers into `sizes`.

        Each holds at most `tokens` packed tokens; `chosen` items only, where they are given. The factor
        multiplies the loss: it is 1, or 0 for a pass that this rank only makes because others need it.
        """
        ...

    def through_root(self, loss_of: LossOf[Inputs]) -> LossOf[Inputs]:
        """`loss_of`, which runs `model`, with divided weights gathered meanwhile: a scalar loss, and figures of it."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a loss from `through_root`."""
        ...

    def update(self, loss: float) -> None:
        """Sum the gradient over the ranks and take an optimizer step; none if it or the loss is non-finite.

        Raises:
            UserError: more than `training.most_bad_updates` updates were skipped.
        """
        ...

    def drop(self) -> None:
        """Discard the gradient instead of an update."""
        ...

    def whole(self) -> AbstractContextManager[None]:
        """Context in which every rank has all weights and samples from the model independently."""
        ...

    def while_scoring(self) -> AbstractContextManager[None]:
        """Context for forward passes without a gradient; divided weights are gathered layer by layer.

        All ranks make the same number of passes (see `Ranks.even_out`).
        """
        ...

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """All weights as `full_weights` gives them, at every rank, some at a time."""
        ...

    def with_evaluated_weights(self) -> AbstractContextManager[None]:
        """Context in which the model holds the evaluated weights: the averaged ones if there are any."""
        ...

    def keep_best(self) -> None:
        """Keep a copy of the evaluated weights for `finish`."""
        ...

    def finish(self) -> None:
        """End training; return a torch model with the best weights if they were kept, else the evaluated ones."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Its tensors for a checkpoint, by names that begin with its own."""
        ...

    def write(self, folder: Path) -> None:
        """Write the files that the backend itself adds to a checkpoint; called at every rank."""
        ...

    def load(self, saved: Checkpoint, counts: dict[str, int]) -> None:
        """Restore the results of `tensors`, `write` and `counts`; tensors of other learners are ignored."""
        ...

    @property
    def counts(self) -> dict[str, int]: ...


def make_learner(
    model: Any, params: Optimizer, updates: int, ranks: Ranks, *, name: str, ema: float | None = None
) -> Learner:
    """A learner of the backend that `training.backend` names, for `updates` updates.

    `name` is the section of `params`, for messages and checkpoints.

    Raises:
        UserError: DeepSpeed is not installed, or does not support what the parameters ask for.
    """
    return BACKENDS[ranks.training.backend](model, params, updates, ranks, name=name, ema=ema)
