"""Matrix products in bfloat16, with weights, activations and gradients kept in float32.

On a CPU with AVX512-bf16 a bfloat16 product is four times as fast as a float32 one; autocast, which also
makes attention and the rest bfloat16, gains far less (its casts, and small batched products get slower).

Shapes: ... any; I inputs, O outputs of a layer.
"""

from typing import Any

import torch
from torch import Tensor, nn


def use_bfloat16_products(network: Any) -> None:
    """Give every linear layer but the output head bfloat16 products, in place.

    The layers' class changes, their parameters do not: state dicts, optimizers and export see what they saw.
    """
    head = network.get_output_embeddings()
    for module in network.modules():
        if type(module) is nn.Linear and module is not head:
            module.__class__ = BFloat16Linear


class BFloat16Linear(nn.Linear):
    """A linear layer whose three products (output, input gradient, weight gradient) are in bfloat16."""

    def forward(self, input: Tensor) -> Tensor:
        weight = self.bfloat16_weight()
        if torch.is_grad_enabled() and (input.requires_grad or self.weight.requires_grad):
            out: Tensor = _Product.apply(input, self.weight, weight)  # type: ignore[no-untyped-call]
        else:
            out = nn.functional.linear(input.to(torch.bfloat16), weight).to(input.dtype)
        return out if self.bias is None else out.add_(self.bias)

    def bfloat16_weight(self) -> Tensor:
        """The weight rounded to bfloat16, made anew when the weight has changed."""
        key = (self.weight.data_ptr(), self.weight._version)
        cached: tuple[Any, Tensor] | None = self.__dict__.get("_rounded")
        if cached is None or cached[0] != key:
            cached = (key, self.weight.detach().to(torch.bfloat16))
            self.__dict__["_rounded"] = cached
        return cached[1]


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, weight_OI: Tensor, rounded_OI: Tensor) -> Tensor:  # type: ignore[override]
        rounded_input = input.to(torch.bfloat16)
        ctx.save_for_backward(rounded_input, rounded_OI)
        ctx.dtype = input.dtype
        return nn.functional.linear(rounded_input, rounded_OI).to(input.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        input, weight_OI = ctx.saved_tensors
        grad_NO = grad.reshape(-1, grad.shape[-1]).to(torch.bfloat16)
        grad_input = (grad_NO @ weight_OI).to(ctx.dtype).view(input.shape)
        grad_weight = (grad_NO.t() @ input.reshape(-1, input.shape[-1])).float()
        return grad_input, grad_weight, None
