"""The reference of the KL where it follows the policy: ProRL's reset (arXiv:2505.24864).

After every rl.kl.reset_every steps the reference gets the policy's weights, so that the KL goes on to hold an update
back without holding the run at its start. Unlike ProRL, the optimizer keeps its state. Once it has been reset, a
checkpoint has the reference's weights too.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from mathrl.learners.checkpoint import Checkpoint
from mathrl.learners.shards import Part, fill_parts, open_shards, write_shards
from mathrl.models.sharding import own_part, own_range, whole, with_whole_weights

NAME = "reference"


class MovingReference:
    """The reference, which `reset` makes equal to the policy; `tensors`, `write` and `load` are as a learner's.

    `policy` and `weights` are the weights of both by name, taken before a pass gathers those that are divided.
    """

    def __init__(self, policy: Mapping[str, Tensor], weights: Mapping[str, Tensor], *, sharded: bool) -> None:
        self.policy, self.weights, self.sharded = policy, weights, sharded

    @torch.no_grad()
    def reset(self) -> None:
        """Give the reference the policy's weights as they are now; called at every rank."""
        for name, weight in self.weights.items():
            policy = self.policy[name]
            if self.sharded:
                own_part(weight).copy_(own_part(policy))
            else:
                with with_whole_weights([policy]):
                    weight.copy_(whole(policy, weight.dtype))

    def tensors(self) -> dict[str, Tensor]:
        """The weights by name, where every rank has them whole."""
        return {} if self.sharded else {f"{NAME}/{name}": weight.detach() for name, weight in self.weights.items()}

    def write(self, folder: Path) -> None:
        """Write this rank's shard, where the weights are divided."""
        if self.sharded:
            write_shards(folder / NAME, self._parts())

    def load(self, saved: Checkpoint) -> None:
        """Take over the weights of a checkpoint.

        Raises:
            UserError: the checkpoint is one of another training backend, or incomplete.
        """
        if self.sharded:
            return fill_parts(open_shards(saved, NAME), self._parts(), saved, NAME)
        for name, weight in self.weights.items():
            weight.detach().copy_(saved.tensors[f"{NAME}/{name}"])

    def _parts(self) -> Iterator[Part]:
        for name, weight in self.weights.items():
            begin, count = own_range(weight)
            yield name, begin, own_part(weight).view(-1)[:count]
