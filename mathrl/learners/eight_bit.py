"""AdamW with moments of 8 bits, by bitsandbytes (docs/explanation/small_hardware.md has why this library)."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mathrl.models.four_bit import import_bitsandbytes

TABLES = ("qmap1", "qmap2")  # the values of the 256 codes: the same for every weight


class EightBitAdamW:
    """bitsandbytes' AdamW8bit over weights of any shape (arXiv:2110.02861, block-wise dynamic quantisation).

    A moment is a code of 8 bits per weight and a float32 scale per 256 weights, the largest magnitude among them. An
    update computes in float32 and rounds the moments afterwards. A tensor of fewer than 4,096 weights keeps float32.

    It has the part of torch's optimizers that mathrl uses: `param_groups`, `step`, `state_dict`, `load_state_dict`.
    """

    def __init__(self, weights: Sequence[nn.Parameter], **arguments: Any) -> None:
        self.weights = list(weights)
        library = import_bitsandbytes("optimizer.type adamw_8bit")
        self.inner = library.optim.AdamW8bit(self.weights, **arguments)
        self.param_groups: list[dict[str, Any]] = self.inner.param_groups

    def step(self) -> None:
        self.inner.step()
        # It writes past autograd's counter, by which mathrl knows that rounded copies of a weight are old.
        torch.autograd.graph.increment_version(self.weights)

    def state_of(self, weight: nn.Parameter) -> dict[str, Any]:
        """The number of steps, and the moments (state1, state2) with their scales (absmax1, absmax2); empty at first.

        Example: {"step": 3, "state1": uint8 [96, 64], "absmax1": float32 [24], "state2": …, "absmax2": …}
        """
        return {name: value for name, value in self.inner.state[weight].items() if name not in TABLES}

    def make_state(self, weight: nn.Parameter, steps: int) -> dict[str, Any]:
        """Make a weight's moments as after `steps` steps; their values are still to come."""
        self.inner.init_state(self.param_groups[0], weight, 0, 0)  # the place is read for settings that no weight has
        self.inner.state[weight]["step"] = steps
        return self.state_of(weight)

    def state_dict(self) -> dict[str, Any]:
        """As torch's: the state of each weight by its index."""
        states = {index: self.state_of(weight) for index, weight in enumerate(self.weights)}
        return {"state": {index: state for index, state in states.items() if state}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave, to the bit."""
        for index, saved in state_dict["state"].items():
            state = self.make_state(self.weights[index], int(saved["step"]))
            for name, value in state.items():
                if isinstance(value, Tensor):
                    value.copy_(saved[name])
