"""The reference of the KL where it follows the policy: ProRL's reset (arXiv:2505.24864).

After every rl.kl.reset_every steps the reference gets the policy's weights, so that the KL goes on to hold an update
back without holding the run at its start. Unlike ProRL, the optimizer keeps its state. Once it has been reset, a
checkpoint has the reference's weights too.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from mathrl.learners.checkpoint import Checkpoint
from mathrl.learners.shards import Part, fill_parts, open_shards, write_shards
from mathrl.models.sharding import copy_shards, is_sharded, own_part, own_range

NAME = "reference"


@dataclass(frozen=True)
class MovingReference:
    """The reference, which `reset` makes equal to the policy; `tensors`, `write` and `load` are as a learner's."""

    policy: Any
    reference: Any

    def reset(self) -> None:
        """Give the reference the policy's weights as they are now."""
        copy_shards(self.policy, self.reference)

    def tensors(self) -> dict[str, Tensor]:
        """The weights by name, where every rank has them whole."""
        if is_sharded(self.reference):
            return {}
        return {f"{NAME}/{name}": weight.detach() for name, weight in self.reference.named_parameters()}

    def write(self, folder: Path) -> None:
        """Write this rank's shard, where the weights are divided."""
        if is_sharded(self.reference):
            write_shards(folder / NAME, self._parts())

    def load(self, saved: Checkpoint) -> None:
        """Take over the weights of a checkpoint.

        Raises:
            UserError: the checkpoint is one of another training backend, or incomplete.
        """
        if is_sharded(self.reference):
            fill_parts(open_shards(saved, NAME), self._parts(), saved, NAME)
        else:
            for name, weight in self.reference.named_parameters():
                weight.detach().copy_(saved.tensors[f"{NAME}/{name}"])

    def _parts(self) -> Iterator[Part]:
        for name, weight in self.reference.named_parameters():
            begin, count = own_range(weight)
            yield name, begin, own_part(weight).view(-1)[:count]
