"""The passes of a learner whose library divides the weights: they all go through a root, whose hooks gather them."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ParamSpec

from torch import Tensor

from mathrl.learners.distributed import Ranks
from mathrl.learners.micro_batches import Figures, LossOf, own_micro_batches, smallest

Inputs = ParamSpec("Inputs")


class RootPasses:
    """What DeepSpeed's learner and FSDP's have in common; see `mathrl.learners.learner.Learner`.

    `engine` is the root: called with a function that runs the network, it gives that function's loss.
    """

    engine: Any
    ranks: Ranks
    updates: int
    bad: int
    _gathered = False

    def micro_batches(
        self, sizes: Sequence[int], tokens: int, chosen: Sequence[int] | None = None
    ) -> Iterator[tuple[list[int], float]]:
        return self.ranks.even_out(own_micro_batches(sizes, tokens, self.ranks, chosen), smallest(sizes))

    def through_root(self, loss_of: LossOf[Inputs]) -> LossOf[Inputs]:
        def forward(*inputs: Inputs.args, **named: Inputs.kwargs) -> tuple[Tensor, Figures]:
            figures: dict[str, Tensor] = {}

            def compute() -> Tensor:
                loss, values = loss_of(*inputs, **named)
                figures.update(values)
                return loss

            return self.engine(compute), figures

        return forward

    @contextmanager
    def whole(self) -> Iterator[None]:
        if self._gathered:
            yield
            return
        with self.gather_all():
            self._gathered = True
            try:
                yield
            finally:
                self._gathered = False

    def gather_all(self) -> AbstractContextManager[None]:
        """Context in which every rank has all weights."""
        raise NotImplementedError

    def tensors(self) -> dict[str, Tensor]:
        return {}

    @property
    def counts(self) -> dict[str, int]:
        return {"updates": self.updates, "bad": self.bad}
