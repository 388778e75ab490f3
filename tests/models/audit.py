"""What one micro-batch asks of a GPU, counted without one: tensors on the meta device, which have shapes but no values.

Every operation on them that reaches the dispatcher is a kernel that a GPU would launch (views and allocations are
none), with the bytes that it reads and writes and its floating-point operations. An operation that needs a value on the
host, such as `.item()` or `nonzero`, fails on the meta device: a pass that ends has no host synchronisation.

PyTorch's RMS norm is one kernel on a GPU but takes itself apart elsewhere, and compiled functions are one kernel each:
one kernel here stands for each of them. Time is the larger of bytes / bandwidth and operations / rate of each kernel,
with what an H100 achieves.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mathrl.models import fused, head, norm
from mathrl.models.attention import NAME
from mathrl.models.model_shape import config_of
from mathrl.models.prepared import Prepared, compute_as
from mathrl.models.transformers_import import AutoModelForCausalLM
from mathrl.params.run import PretrainedModel

aten = torch.ops.aten
# Achieved by one H100: bytes and operations per second (bfloat16; TF32 is off, so float32 runs on CUDA cores).
BANDWIDTH, HALF, SINGLE = 2.7e12, 420e12, 48e12
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm"}
FREE = {
    "_unsafe_view",
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "detach",
    "lift_fresh",
    "device",
}
GATHERS = {"index_select", "embedding", "gather", "index"}  # read no more than they write
SCATTERS = {"index_add_", "scatter_add_", "embedding_dense_backward"}  # touch as much as their source
SYNCS = {"_local_scalar_dense", "nonzero", "masked_select", "unique2", "equal", "is_nonzero"}


@dataclass
class Audit:
    """Counts of one pass; `peak` in bytes beside weights and gradients; `seconds` by part."""

    kernels: int = 0
    float32_products: int = 0
    syncs: int = 0
    copies: int = 0  # host to device
    bytes: float = 0.0
    operations: float = 0.0
    peak: float = 0.0
    seconds: Counter[str] = field(default_factory=Counter)
    names: Counter[str] = field(default_factory=Counter)


class Dispatch(TorchDispatchMode):
    """Adds what the model runs within it to the audit; `pairs` are the query-key pairs of one layer's attention."""

    def __init__(self, model: Any, pairs: float) -> None:
        super().__init__()
        self.audit, self.pairs, self.vocabulary = Audit(), pairs, model.config.vocab_size
        weights = [*model.parameters(), *(weight.grad for weight in model.parameters() if weight.grad is not None)]
        self.storages: dict[int, Any] = {weight.untyped_storage()._cdata: True for weight in weights}
        self.live = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0]
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if name in SYNCS and any(tensor.is_meta for tensor in inputs):
            self.audit.syncs += 1
        out = func(*args, **(kwargs or {}))
        outputs = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        if any(tensor.is_meta for tensor in outputs):
            self._allocate(outputs)
            if name == "_to_copy" and not all(tensor.is_meta for tensor in inputs):
                self.audit.copies += 1
            elif not func.is_view and name not in FREE:
                self._count(name, inputs, outputs)
        return out

    def _allocate(self, outputs: list[torch.Tensor]) -> None:
        for tensor in outputs:
            storage = tensor.untyped_storage()
            if storage._cdata not in self.storages:
                self.storages[storage._cdata] = True
                self.live += storage.nbytes()
                self.audit.peak = max(self.audit.peak, self.live)
                weakref.finalize(storage, self._free, storage._cdata, storage.nbytes())

    def _free(self, key: int, nbytes: int) -> None:
        if self.storages.pop(key, None):
            self.live -= nbytes

    def _count(self, name: str, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        read, written = sum(map(size, inputs)), sum(map(size, outputs))
        if name in GATHERS:
            read = written
        elif name in SCATTERS:
            read, written = 2 * min(map(size, inputs)), written if name.endswith("backward") else min(map(size, inputs))
        elif name in {"zeros", "zeros_like", "new_zeros", "fill_", "zero_", "ones_like", "scalar_tensor", "full"}:
            read = 0
        flops, rate, part = 0.0, HALF, "rest"
        if name in PRODUCTS:
            matrix = inputs[-2]
            flops, part = 2.0 * outputs[0].numel() * matrix.shape[-1], "products"
            if matrix.dtype == torch.float32 and flops > 1e6:  # smaller: rotary angles
                self.audit.float32_products += 1
                rate = SINGLE
        elif "varlen_attn" in name:
            heads, width = inputs[0].shape[1:] if "backward" not in name else inputs[1].shape[1:]
            flops, part = (10.0 if "backward" in name else 4.0) * self.pairs * heads * width, "attention"
        if any(self.vocabulary in tensor.shape for tensor in (*inputs, *outputs)) and name != "embedding":
            part = "head"
        self.audit.kernels += 1
        self.audit.names[name] += 1
        self.audit.bytes += read + written
        self.audit.operations += flops
        self.audit.seconds[part] += max((read + written) / BANDWIDTH, flops / rate)


def size(tensor: torch.Tensor) -> float:
    """Bytes that a kernel touches of a tensor: broadcast dimensions once."""
    return tensor.element_size() * float(
        torch.tensor([n for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]).prod()
        if tensor.dim() and tensor.numel()
        else tensor.numel()
    )


class _OneKernelNorm(torch.autograd.Function):
    """Shapes of PyTorch's fused RMS norm, which keeps its input and the inverse root."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(x, weight, x.new_empty(x.shape[:-1], dtype=torch.float32))
        return x * weight

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        x, weight, _ = ctx.saved_tensors
        return torch.addcmul(grad, x, weight), x.new_zeros(weight.shape)


@torch.library.custom_op("audit::one_kernel", mutates_args=())
def one_kernel(inputs: list[torch.Tensor], outputs: int) -> list[torch.Tensor]:
    """A compiled function: it reads its inputs and writes as many outputs, shaped like the first inputs."""
    return [torch.empty_like(tensor) for tensor in inputs[:outputs]]


one_kernel.register_fake(lambda inputs, outputs: [torch.empty_like(tensor) for tensor in inputs[:outputs]])


@torch.library.custom_op("audit::slopes", mutates_args=())
def slopes(logits_nV: torch.Tensor, targets_n: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The compiled gradient of the logits: it reads them and writes as many numbers of the dtype."""
    return torch.empty_like(logits_nV, dtype=dtype)


slopes.register_fake(lambda logits_nV, targets_n, dtype: torch.empty_like(logits_nV, dtype=dtype))


def _scores(logits_nV: torch.Tensor, targets_n: torch.Tensor, temperature: float, entropy: bool) -> Any:
    """The compiled function after the logits, which it reads once."""
    logprobs_n, sums_n, entropies_n = one_kernel([*[logits_nV[:, 0]] * 3, logits_nV, targets_n], 3)
    return logprobs_n, sums_n, entropies_n if entropy else entropies_n[:0]


class _OneKernelSwiGLU(torch.autograd.Function):
    """Shapes of the compiled SwiGLU, which keeps its inputs."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(gate, up)
        return one_kernel([gate, up], 1)[0]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        return tuple(one_kernel([*ctx.saved_tensors, grad], 2))


class _OneKernelRotation(torch.autograd.Function):
    """Shapes of the compiled rotation, which keeps cosines and sines."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> Any:  # type: ignore[override]
        ctx.save_for_backward(*tensors[2:])
        return tuple(one_kernel([*tensors], 2))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:  # type: ignore[override]
        return *one_kernel([*gradients, *ctx.saved_tensors], 2), None, None


@contextmanager
def on_a_gpu(memory: float = 80e9) -> Iterator[None]:
    """Within it the meta device is taken for a GPU with this memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head, "most_logits", lambda device: max(head.MOST_LOGITS, int(memory) // 256))
        patch.setattr(norm.FusedRMSNorm, "forward", lambda self, x: _OneKernelNorm.apply(x, self.weight))
        patch.setattr(fused, "swiglu", _OneKernelSwiGLU.apply)
        patch.setattr(fused, "rotate", _OneKernelRotation.apply)
        patch.setattr(fused, "score_tokens", _scores)
        patch.setattr(fused, "logit_slopes", lambda z_nV, targets_n, *rest: slopes(z_nV, targets_n, rest[-1]))
        patch.setattr(fused, "compiles", lambda device: True)
        yield


def meta_model(name: str, *, checkpointing: bool = False) -> Any:
    """A known model as a GPU would hold it: bfloat16, fused norms, flash attention."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config_of(PretrainedModel(path=name)), dtype=torch.bfloat16)
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.__dict__["_fast_eps"] = 1e-6
            module.__class__ = norm.FusedRMSNorm
    fused.exchange_elementwise(model)
    compute_as(model, Prepared(packed=True, plain_head=True, sampling="packed", kernel="varlen"))
    model.config._attn_implementation = NAME
    model.get_output_embeddings().__class__ = head.LogprobHead
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


def audited(model: Any, groups: Any, run: Callable[[], Any]) -> Audit:
    """What `run`, a pass over the groups, asks of a GPU."""
    pairs = 0.0
    for group in groups:
        prompt, responses = len(group.prompt), [len(response) - 1 for response in group.responses]
        pairs += prompt**2 / 2 + sum(length * prompt + length**2 / 2 for length in responses)
    with on_a_gpu(), Dispatch(model, pairs) as dispatch:
        run()
    return dispatch.audit
