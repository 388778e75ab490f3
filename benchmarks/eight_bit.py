"""Moments of 8 bits by bitsandbytes and by torchao, beside torch's AdamW in float32, on the same gradients.

    python -m benchmarks.eight_bit [--steps 300]

A fresh model of the demo's size learns sums by torch's AdamW; every optimizer steps its own copy of the weights with
the gradients of that run. Without torchao (`pip install torchao`) its column is left out.
"""

import argparse
import importlib
import importlib.util
import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.small_hardware import sums
from mathrl.learners.eight_bit import EightBitAdamW
from mathrl.models.base import character_tokenizer, fresh_network
from mathrl.models.logprobs import response_logprobs
from mathrl.models.packing import Group
from mathrl.params.run import FreshModel

ARGUMENTS: dict[str, Any] = {"lr": 2e-3, "weight_decay": 0.01}


def optimizer_of(library: str, weights: list[nn.Parameter]) -> Any:
    if library == "torch":
        return torch.optim.AdamW(weights, **ARGUMENTS)
    if library == "bitsandbytes":
        return EightBitAdamW(weights, **ARGUMENTS)
    return importlib.import_module("torchao.optim").AdamW8bit(weights, **ARGUMENTS)


class Copy:
    """Weights of their own with an optimizer, and the same resumed from its state after half of the steps."""

    def __init__(self, library: str, weights: list[Tensor]) -> None:
        self.library, self.seconds, self.first = library, 0.0, 0.0
        self.weights = [nn.Parameter(weight.detach().clone()) for weight in weights]
        self.optimizer = optimizer_of(library, self.weights)
        self.resumed: Copy | None = None

    def step(self, gradients: list[Tensor]) -> None:
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.grad = gradient.clone()
        began = time.process_time()
        self.optimizer.step()
        seconds = time.process_time() - began
        self.first = self.first or seconds
        self.seconds += seconds
        if self.resumed is not None:
            self.resumed.step(gradients)

    def resume(self) -> None:
        self.resumed = Copy(self.library, [weight.data for weight in self.weights])
        self.resumed.optimizer.load_state_dict(copied(self.optimizer.state_dict()))

    def moment_bytes(self) -> int:
        """Bytes of all that the optimizer holds per weight, but its number of steps."""
        states = self.optimizer.state_dict()["state"].values()
        return sum(bytes_of(value) for state in states for name, value in state.items() if name != "step")

    def distance(self, others: list[nn.Parameter], start: list[Tensor]) -> float:
        """The distance to other weights, as a share of what those have moved."""
        off = sum(float((own - other).detach().square().sum()) for own, other in zip(self.weights, others, strict=True))
        moved = sum(float((other - first).detach().square().sum()) for other, first in zip(others, start, strict=True))
        return (off / moved) ** 0.5

    def same_bits(self) -> bool:
        assert self.resumed is not None
        return all(torch.equal(own, other) for own, other in zip(self.weights, self.resumed.weights, strict=True))


def copied(value: Any) -> Any:
    """A state with tensors of its own; torchao's have no copy, but say what they are made of."""
    if isinstance(value, dict):
        return {name: copied(each) for name, each in value.items()}
    if isinstance(value, list):
        return [copied(each) for each in value]
    if hasattr(value, "__tensor_flatten__"):
        names, context = value.__tensor_flatten__()
        parts = {name: getattr(value, name).clone() for name in names}
        return type(value).__tensor_unflatten__(parts, context, value.shape, value.stride())
    return value.clone() if isinstance(value, Tensor) else value


def bytes_of(value: Any) -> int:
    """Bytes of a tensor, or of the tensors that a subclass is made of."""
    if hasattr(value, "__tensor_flatten__"):
        return sum(bytes_of(getattr(value, name)) for name in value.__tensor_flatten__()[0])
    return value.nbytes if isinstance(value, Tensor) else 0


def batches(groups: list[Group], steps: int) -> Iterator[list[Group]]:
    for step in range(steps):
        yield [groups[(step * 48 + place) % len(groups)] for place in range(48)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    base = FreshModel(alphabet="arithmetic")
    tokenizer = character_tokenizer(base)
    network = fresh_network(base, tokenizer, 0)
    weights: list[Tensor] = list(network.parameters())
    start = [weight.detach().clone() for weight in weights]
    libraries = ["torch", "bitsandbytes", *(["torchao"] if importlib.util.find_spec("torchao") else [])]
    copies = {library: Copy(library, weights) for library in libraries}
    for step, batch in enumerate(batches(sums(tokenizer, 4000, 0), steps)):
        logprobs, _ = response_logprobs(network, batch, 1.0)
        gradients = list(torch.autograd.grad(-logprobs.mean(), weights))
        for each in copies.values():
            if step == steps // 2:
                each.resume()
            each.step(gradients)
        with torch.no_grad():
            for weight, stepped in zip(weights, copies["torch"].weights, strict=True):
                weight.copy_(stepped)
    count, exact = sum(weight.numel() for weight in weights), copies["torch"]
    print(f"{count:,} weights, {steps} steps")
    print(f"{'':<24}{'distance':>10}{'bytes/weight':>14}{'first step':>12}{'all steps':>11}  resumed")
    for library, each in copies.items():
        figures = f"{each.distance(exact.weights, start):>10.3f}{each.moment_bytes() / count:>14.2f}"
        resumed = "same bits" if each.same_bits() else "other bits"
        print(f"{library + ' ' + version(library):<24}{figures}{each.first:>10.1f} s{each.seconds:>9.1f} s  {resumed}")


if __name__ == "__main__":
    main()
