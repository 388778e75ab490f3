"""Matrix products in bfloat16 or float16, with weights, activations and gradients kept in float32.

On a CPU with AVX512-bf16 a bfloat16 product is four times as fast as a float32 one; autocast, which also
makes attention and the rest bfloat16, gains far less (its casts, and small batched products get slower).
Layers that a forward pass calls in a row with the same input (queries, keys and values; gate and up) are computed by
one product.

Shapes: ... any; I inputs, O outputs of a layer, or of several side by side.
"""

import copy
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


def use_half_products(network: Any, dtype: torch.dtype = torch.bfloat16) -> None:
    """Give every linear layer but the output head products in bfloat16, or in float16, in place.

    Only the layers' class changes: state dicts, optimizers and export see the same parameters.
    """
    head = network.get_output_embeddings()
    layers = [module for module in network.modules() if type(module) is nn.Linear and module is not head]
    for group in siblings(network, layers):
        product = SharedProduct(group, dtype)
        for place, layer in enumerate(group):
            layer.__class__ = HalfLinear
            # Not by setattr, which would register it as a submodule.
            layer.__dict__["_product"], layer.__dict__["_place"] = product, place


@torch.no_grad()
def keep_rounded_only(network: Any) -> None:
    """Drop the float32 weights behind products of half precision, in place, for a model that is not trained again.

    It computes the same to the bit with two bytes per weight instead of six.
    """
    for module in network.modules():
        if isinstance(module, HalfLinear) and module.weight.dtype == torch.float32:
            product: SharedProduct = module.__dict__["_product"]
            rounded_OI = product._rounded_weights([layer.weight for layer in product.layers])
            for layer, part in zip(product.layers, torch.split(rounded_OI, product.sizes), strict=True):
                layer.weight = nn.Parameter(part, requires_grad=False)
            key = tuple((layer.weight.data_ptr(), layer.weight._version) for layer in product.layers)
            product.rounded = (key, rounded_OI)


@torch.no_grad()
def siblings(network: Any, layers: list[nn.Linear]) -> list[list[nn.Linear]]:
    """Groups of layers that a forward pass calls in a row with the same tensor; found by a trial."""
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
    groups: list[list[nn.Linear]] = []
    previous_input: Tensor | None = None
    for layer, layer_input in calls:
        if previous_input is layer_input:
            groups[-1].append(layer)
        else:
            groups.append([layer])
        previous_input = layer_input
    called_once = len({id(layer) for layer, _ in calls}) == len(calls)
    called = {id(layer) for group in groups for layer in group}
    # A layer that is called twice, or only for some tokens (experts), is a group of its own.
    return (
        [*groups, *([layer] for layer in layers if id(layer) not in called)]
        if called_once
        else [[layer] for layer in layers]
    )


@cache
def _has_products(device: str, dtype: torch.dtype) -> bool:
    """Whether PyTorch has products in bfloat16 or float16 for the device; on a CPU it needs AVX512 for them."""
    if device != "cpu":
        return True
    mkldnn = torch.ops.mkldnn
    supported = mkldnn._is_mkldnn_bf16_supported if dtype == torch.bfloat16 else mkldnn._is_mkldnn_fp16_supported
    return bool(supported())


def multiply(left: Tensor, right_IO: Tensor) -> Tensor:
    """left [..., I] times right, both of one precision, in it.

    Where PyTorch would compute it one element after another, it is a float32 product of the same values, rounded once.
    """
    if _has_products(left.device.type, left.dtype):
        return left @ right_IO
    return (left.float() @ right_IO.float()).to(left.dtype)


_PRODUCTS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.addmm)


class FastProducts(TorchFunctionMode):
    """Within it the bfloat16 products of others' code, such as torch's Muon, are those of `multiply`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Calls from within this method do not come back to it.
        is_product = func in _PRODUCTS and args[0].dtype == torch.bfloat16
        if is_product and not _has_products(args[0].device.type, torch.bfloat16):
            return func(*(matrix.float() for matrix in args), **(kwargs or {})).to(torch.bfloat16)
        return func(*args, **(kwargs or {}))


def _linear(input: Tensor, rounded_OI: Tensor) -> Tensor:
    """`nn.functional.linear` of values of half precision (see `multiply`)."""
    if _has_products(input.device.type, input.dtype):
        return nn.functional.linear(input, rounded_OI)
    return multiply(input, rounded_OI.t())


class SharedProduct:
    """One product for linear layers with the same input; each layer takes its part in turn."""

    def __init__(self, layers: list[nn.Linear], dtype: torch.dtype) -> None:
        self.layers, self.dtype = layers, dtype
        self.sizes = [layer.out_features for layer in layers]
        self.rounded: tuple[tuple[Any, ...], Tensor] | None = None
        self.input: Tensor | None = None
        self.outputs: list[Tensor | None] = []

    def take(self, place: int, input: Tensor) -> Tensor:
        """The output of the layer at `place`, without its bias."""
        if self.input is not input or place == 0 or self.outputs[place] is None:
            self.input, self.outputs = input, list(self._product(input))
        out = self.outputs[place]
        assert out is not None
        self.outputs[place] = None
        if place == len(self.layers) - 1:
            self.input, self.outputs = None, []  # keep no tensor alive
        return out

    def _product(self, input: Tensor) -> tuple[Tensor, ...]:
        weights = [layer.weight for layer in self.layers]
        rounded = self._rounded_weights(weights)
        if torch.is_grad_enabled() and (input.requires_grad or weights[0].requires_grad):
            parts = _Product.apply(input, rounded, self.sizes, *weights)  # type: ignore[no-untyped-call]
            return tuple(parts)
        product = _linear(input.to(self.dtype), rounded)
        return tuple(part.to(input.dtype) for part in torch.split(product, self.sizes, dim=-1))

    def _rounded_weights(self, weights: list[Tensor]) -> Tensor:
        """The weights side by side in half precision, [O, I]; rounded again when one of them has changed."""
        key = tuple((weight.data_ptr(), weight._version) for weight in weights)
        if self.rounded is None or self.rounded[0] != key:
            self.rounded = (key, torch.cat([weight.detach().to(self.dtype) for weight in weights]))
        return self.rounded[1]

    def __deepcopy__(self, memo: dict[int, Any]) -> "SharedProduct":
        clone = SharedProduct([], self.dtype)
        memo[id(self)] = clone  # first, since each layer holds this object too
        clone.layers, clone.sizes = [copy.deepcopy(layer, memo) for layer in self.layers], list(self.sizes)
        return clone


class HalfLinear(nn.Linear):
    """A linear layer whose three products (output, input gradient, weight gradient) are in half precision."""

    @property
    def product_dtype(self) -> torch.dtype:
        """bfloat16 or float16."""
        product: SharedProduct = self.__dict__["_product"]
        return product.dtype

    def forward(self, input: Tensor) -> Tensor:
        out: Tensor = self.__dict__["_product"].take(self.__dict__["_place"], input)
        return out if self.bias is None else out + self.bias


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, input: Tensor, rounded_OI: Tensor, sizes: list[int], *weights: Tensor
    ) -> tuple[Tensor, ...]:
        rounded_input = input.to(rounded_OI.dtype)
        ctx.save_for_backward(rounded_input, rounded_OI)
        ctx.dtype, ctx.sizes = input.dtype, sizes
        product = _linear(rounded_input, rounded_OI)
        return tuple(part.to(input.dtype) for part in torch.split(product, sizes, dim=-1))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        input, rounded_OI = ctx.saved_tensors
        rows_NI = input.reshape(-1, input.shape[-1])
        grad_NO = torch.empty(rows_NI.shape[0], rounded_OI.shape[0], dtype=rounded_OI.dtype, device=input.device)
        for part, grad in zip(torch.split(grad_NO, ctx.sizes, dim=1), grads, strict=True):
            part.copy_(grad.reshape(part.shape))
        grad_input = multiply(grad_NO, rounded_OI).to(ctx.dtype).view(input.shape)
        if not any(ctx.needs_input_grad[3:]):  # frozen beside adapters
            return grad_input, None, None, *(None for _ in grads)
        grad_weights = torch.split(multiply(grad_NO.t(), rows_NI).float(), ctx.sizes)
        return grad_input, None, None, *grad_weights
