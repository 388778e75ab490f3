"""FSDP2: models whose weights PyTorch's `fully_shard` divides among the ranks and gathers a group at a time.

A group is a layer, or an embedding or head of its own; what is left (a tied embedding, the last norm) belongs to the
root and is gathered for a whole pass. A divided weight is a DTensor: a rank holds some of its rows. Trained weights are
float32, and are computed with in `compute_dtype`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from mathrl.models.head import LogprobHead
from mathrl.models.transformers_import import DistributedConfig, PreTrainedModel


def mixed_precision(dtype: torch.dtype) -> MixedPrecisionPolicy:
    """Weights are gathered, and products computed, in `dtype`; gradients are summed over the ranks in float32.

    Inputs are not cast: FSDP would copy an attention layout, in which the sampler's keys are kept.

    >>> mixed_precision(torch.float32).param_dtype is None
    True
    """
    if dtype == torch.float32:
        return MixedPrecisionPolicy(cast_forward_inputs=False)
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)


def rank_mesh(device: torch.device) -> DeviceMesh:
    """All ranks in a row, by their default process group."""
    return init_device_mesh(device.type, (torch.distributed.get_world_size(),))


def divide(network: Any, mesh: DeviceMesh) -> None:
    """Divide the weights of a network, on its device or on none (meta), among the ranks of the mesh, in place."""
    if network.device.type == "meta":
        network.tie_weights()  # else FSDP would keep rows of a tied weight twice, and update one of them
    head, embedding = network.get_output_embeddings(), network.get_input_embeddings()
    if type(head) is nn.Linear:  # before FSDP makes a class of its own of it
        head.__class__ = LogprobHead
    network.__dict__["_compute_dtype"] = network.dtype
    root: Any = Pass(network)
    apart = [] if head is not None and head.weight is embedding.weight else [embedding, head]
    for module in (*_layers(network), *(part for part in apart if part is not None), root):
        # Freed after use in a forward pass without a gradient too; PyTorch would keep the root's.
        fully_shard(module, mesh=mesh, reshard_after_forward=True, mp_policy=mixed_precision(network.dtype))
    for group in _groups(root):
        # The sum over the ranks, as of the torch backend; gloo has no mean.
        group.set_gradient_divide_factor(1.0)
        group.set_force_sum_reduction_for_comms(True)
    root.set_reduce_scatter_unused_params(True)  # such as of experts without a token at one rank
    if apart:
        embedding.set_unshard_in_backward(False)
    network.__dict__["_fsdp_root"] = root


def is_divided(network: nn.Module) -> bool:
    return "_fsdp_root" in network.__dict__


def _layers(network: nn.Module) -> list[nn.Module]:
    """The entries of each list of modules that is in no other list; those within are experts of a layer."""
    lists = [module for module in network.modules() if isinstance(module, nn.ModuleList)]
    inner = {id(module) for outer in lists for module in outer.modules() if module is not outer}
    outer = [modules for modules in lists if id(modules) not in inner]
    return [layer for modules in outer for layer in modules if any(True for _ in layer.parameters())]


def _groups(root: nn.Module) -> list[FSDPModule]:
    return [module for module in root.modules() if isinstance(module, FSDPModule)]


@contextmanager
def divided_loads(mesh: DeviceMesh | None) -> Iterator[dict[str, Any]]:
    """Context in which from_pretrained, given these arguments, divides a model before it reads its weights.

    Each rank then reads its own rows of the memory-mapped files. That reading is transformers' (5.19); its own division
    (`DistributedConfig.fsdp_size`) is not used, since it has a plan for some architectures only, and takes the head's
    logits for granted.
    """
    if mesh is None:
        yield {}
        return

    def distribute(cls: type, model: Any, config: Any, manager: Any) -> Any:
        del model.config.distributed_config
        divide(model, mesh)
        return model

    before = PreTrainedModel.__dict__.get("maybe_distribute_model")
    assert before is None, "it is inherited"
    PreTrainedModel.maybe_distribute_model = classmethod(distribute)
    try:
        yield {"distributed_config": DistributedConfig()}
    finally:
        del PreTrainedModel.maybe_distribute_model


def made_divided(make: Callable[[], Any], source: Any) -> Any:
    """What `make` makes, divided as `source` is, with its buffers; the weights are still to be filled."""
    with torch.device("meta"):
        made = make()
    divide(made, rank_mesh(source.device))
    made.to_empty(device=source.device)
    buffers = dict(source.base_model.named_buffers())
    for name, buffer in made.base_model.named_buffers():
        buffer.copy_(buffers[name])
    return made.eval()


def fsdp_root(network: Any) -> Any:
    """The root of a divided network: called with a function that runs the network, it gives that function's loss.

    Raises:
        KeyError: the network is not divided.
    """
    return network.__dict__["_fsdp_root"]


def start(network: Any) -> None:
    """Let FSDP find out its root, before a layer runs alone; called at every rank."""
    with torch.no_grad():
        fsdp_root(network)(lambda: torch.zeros(()))


@torch.no_grad()
def widen(network: Any) -> None:
    """Give the weights that learn their float32 values, which the optimizer steps; called at every rank."""
    root, weights = fsdp_root(network), [weight for weight in network.parameters() if isinstance(weight, DTensor)]
    narrow = {id(weight) for weight in weights if weight.requires_grad and weight.dtype != torch.float32}
    if len(narrow) == len(weights):
        root.to(torch.float32)
    else:  # beside frozen weights
        for module in network.modules():
            if any(id(weight) in narrow for weight in module.parameters(recurse=False)):
                module.to(torch.float32)
    for group in _groups(root) if narrow else ():  # it notes the types, also again after scores in the first type
        group.unshard()
        group.reshard()
    start(network)


@contextmanager
def layer_by_layer(network: Any) -> Iterator[None]:
    """Context for passes without a gradient, as many at every rank: the root's weights stay gathered meanwhile."""
    root = fsdp_root(network)
    root.unshard()
    try:
        yield
    finally:
        root.reset_iter_state()


@contextmanager
def all_gathered(network: Any) -> Iterator[None]:
    """Context in which every rank has all weights, in `compute_dtype`, and runs the network as often as it likes."""
    root = fsdp_root(network)
    for group in _groups(root):
        group.unshard()
    root.set_reshard_after_forward(False)
    try:
        yield
    finally:
        root.set_reshard_after_forward(True)
        # It also forgets the order of the passes, by which a backward pass fetches ahead: each rank had its own.
        root.reset_iter_state()


class Pass(nn.Module):
    """The root that DeepSpeed and FSDP wrap: their hooks run before and after what is computed."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, compute: Callable[[], Tensor]) -> Tensor:
        return compute()
