"""Matrix products in bfloat16, with weights, activations and gradients kept in float32.

On a CPU with AVX512-bf16 a bfloat16 product is four times as fast as a float32 one; autocast, which also
makes attention and the rest bfloat16, gains far less (its casts, and small batched products get slower).
Layers that are given the same input one after the other (queries, keys and values; gate and up) are computed
by one product.

Shapes: ... any; I inputs, O outputs of a layer, or of several side by side.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn


def use_bfloat16_products(network: Any) -> None:
    """Give every linear layer but the output head bfloat16 products, in place.

    The layers' class changes, their parameters do not: state dicts, optimizers and export see what they saw.
    """
    head = network.get_output_embeddings()
    layers = [each for each in network.modules() if type(each) is nn.Linear and each is not head]
    for together in siblings(network, layers):
        shared = Together(together)
        for place, layer in enumerate(together):
            layer.__class__ = BFloat16Linear
            # Not an attribute: the module would register it as a part of itself.
            layer.__dict__["_together"], layer.__dict__["_place"] = shared, place


@torch.no_grad()
def keep_rounded_only(network: Any) -> None:
    """Let go of the float32 weights behind bfloat16 products, in place: for a model that never learns again.

    It computes the same, bit for bit, with two bytes a weight instead of six.
    """
    for each in network.modules():
        if isinstance(each, BFloat16Linear) and each.weight.dtype != torch.bfloat16:
            together: Together = each.__dict__["_together"]
            rounded_OI = together._rounded([layer.weight for layer in together.layers])
            for layer, part in zip(together.layers, torch.split(rounded_OI, together.sizes), strict=True):
                layer.weight = nn.Parameter(part, requires_grad=False)
            key = tuple((layer.weight.data_ptr(), layer.weight._version) for layer in together.layers)
            together.rounded = (key, rounded_OI)


@torch.no_grad()
def siblings(network: Any, layers: list[nn.Linear]) -> list[list[nn.Linear]]:
    """The layers, those together that a forward pass gives the same tensor in one row; found by a trial."""
    calls: list[tuple[nn.Linear, Tensor]] = []
    hooks = [
        layer.register_forward_pre_hook(lambda module, inputs: calls.append((module, inputs[0]))) for layer in layers
    ]
    training = network.training
    try:
        network.eval()
        network(input_ids=torch.zeros(1, 2, dtype=torch.long, device=network.device), use_cache=False)
    finally:
        network.train(training)
        for hook in hooks:
            hook.remove()
    out: list[list[nn.Linear]] = []
    before: Tensor | None = None
    for layer, given in calls:
        if before is given:
            out[-1].append(layer)
        else:
            out.append([layer])
        before = given
    once = len({id(layer) for layer, _ in calls}) == len(calls)
    seen = {id(layer) for group in out for layer in group}
    # A layer that is called twice, or only for some tokens (experts), stands alone.
    return [*out, *([each] for each in layers if id(each) not in seen)] if once else [[each] for each in layers]


class Together:
    """Linear layers that get the same input: one product for all, handed out to each in turn."""

    def __init__(self, layers: list[nn.Linear]) -> None:
        self.layers = layers
        self.sizes = [layer.out_features for layer in layers]
        self.rounded: tuple[tuple[Any, ...], Tensor] | None = None
        self.given: Tensor | None = None
        self.waiting: list[Tensor | None] = []

    def take(self, place: int, input: Tensor) -> Tensor:
        """The output of the layer at `place`, without its bias."""
        if self.given is not input or place == 0 or self.waiting[place] is None:
            self.given, self.waiting = input, list(self._product(input))
        out = self.waiting[place]
        assert out is not None
        self.waiting[place] = None
        if place == len(self.layers) - 1:
            self.given, self.waiting = None, []  # keep nothing alive
        return out

    def _product(self, input: Tensor) -> tuple[Tensor, ...]:
        weights = [layer.weight for layer in self.layers]
        rounded = self._rounded(weights)
        if torch.is_grad_enabled() and (input.requires_grad or weights[0].requires_grad):
            parts = _Product.apply(input, rounded, self.sizes, *weights)  # type: ignore[no-untyped-call]
            return tuple(parts)
        product = nn.functional.linear(input.to(torch.bfloat16), rounded)
        return tuple(part.to(input.dtype) for part in torch.split(product, self.sizes, dim=-1))

    def _rounded(self, weights: list[Tensor]) -> Tensor:
        """The weights side by side in bfloat16, [O, I], made anew when one of them has changed."""
        key = tuple((weight.data_ptr(), weight._version) for weight in weights)
        if self.rounded is None or self.rounded[0] != key:
            self.rounded = (key, torch.cat([weight.detach().to(torch.bfloat16) for weight in weights]))
        return self.rounded[1]

    def __deepcopy__(self, memo: dict[int, Any]) -> "Together":
        made = Together([])
        memo[id(self)] = made  # first, since each layer holds this object too
        made.layers, made.sizes = [copy.deepcopy(layer, memo) for layer in self.layers], list(self.sizes)
        return made


class BFloat16Linear(nn.Linear):
    """A linear layer whose three products (output, input gradient, weight gradient) are in bfloat16."""

    def forward(self, input: Tensor) -> Tensor:
        out: Tensor = self.__dict__["_together"].take(self.__dict__["_place"], input)
        return out if self.bias is None else out + self.bias


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, input: Tensor, rounded_OI: Tensor, sizes: list[int], *weights: Tensor
    ) -> tuple[Tensor, ...]:
        rounded_input = input.to(torch.bfloat16)
        ctx.save_for_backward(rounded_input, rounded_OI)
        ctx.dtype, ctx.sizes = input.dtype, sizes
        product = nn.functional.linear(rounded_input, rounded_OI)
        return tuple(part.to(input.dtype) for part in torch.split(product, sizes, dim=-1))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        input, rounded_OI = ctx.saved_tensors
        rows_NI = input.reshape(-1, input.shape[-1])
        grad_NO = torch.empty(rows_NI.shape[0], rounded_OI.shape[0], dtype=torch.bfloat16, device=input.device)
        for part, grad in zip(torch.split(grad_NO, ctx.sizes, dim=1), grads, strict=True):
            part.copy_(grad.reshape(part.shape))
        grad_input = (grad_NO @ rounded_OI).to(ctx.dtype).view(input.shape)
        if not any(ctx.needs_input_grad[3:]):  # frozen beside adapters
            return grad_input, None, None, *(None for _ in grads)
        grad_weights = torch.split((grad_NO.t() @ rows_NI).float(), ctx.sizes)
        return grad_input, None, None, *grad_weights
