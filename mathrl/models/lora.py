"""Low-rank adapters in a model of the same class and forward, two small matrices per layer.

peft injects them without a wrapper, so packed attention, bfloat16 products and the sampler see the same model. With
adapters off the model is the start of training, so the KL needs no second copy.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mathrl.core.errors import UserError
from mathrl.core.hashing import derive_seed
from mathrl.models.four_bit import is_coded, quantise_layers, restore_weight
from mathrl.models.kernels import compute_dtype
from mathrl.models.sharding import whole
from mathrl.models.transformers_import import hide_packages
from mathrl.params.optimizer import Adapters

ADAPTER = "adapter"
UNUSED = ("bitsandbytes",)  # peft has it for models that transformers loads in 4 or 8 bits, as mathrl never does
_NAME = "default"  # peft's name of a model's only adapter


def add_lora(network: Any, lora: Adapters, seed: int) -> None:
    """Freeze `network` and add adapters to its linear layers, in place, without changing its outputs.

    With `lora.frozen` nf4 all linear layers but the head are rounded to 4 bits first, which does change outputs.
    An adapter adds alpha / r · B A x with A random (from `seed`) and B zero. The head of a scorer, which
    starts at zero, is trained in full.

    Raises:
        UserError: no linear layer has a name that ends in one of `lora.targets`.
    """
    with hide_packages(UNUSED):
        import peft  # here: only runs with adapters need it

    heads = {id(head) for head in (network.get_output_embeddings(), getattr(network, "score", None)) if head}
    linear = [
        name for name, layer in network.named_modules() if isinstance(layer, nn.Linear) and id(layer) not in heads
    ]
    endings = lora.targets or ("",)
    targets = [name for name in linear if any(f".{name}".endswith(f".{end}" if end else "") for end in endings)]
    if not targets:
        layer_names = sorted({name.rpartition(".")[2] for name in linear})
        raise UserError(
            f"lora.targets: no linear layer's name ends in {' or '.join(endings)}; "
            f"this model has {', '.join(layer_names)}"
        )
    config = peft.LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # peft accepts a float
        lora_dropout=lora.input_dropout,
        target_modules=targets,
        bias="none",
    )
    network.requires_grad_(False)
    if lora.frozen == "nf4":
        quantise_layers(network, linear)
    with hide_packages(UNUSED), torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "lora"))
        peft.inject_adapter_in_model(config, network, adapter_name=_NAME)
    if lora.frozen == "nf4":
        for weight in adapter_weights(network):  # peft gives them the type of the weight beside, which is codes here
            weight.data = weight.data.to(compute_dtype(network))
    if getattr(network, "score", None) is not None:
        network.score.requires_grad_(True)
    network.__dict__["_lora"] = (lora, config)


def has_lora(network: Any) -> bool:
    return "_lora" in network.__dict__


def lora_of(network: Any) -> Adapters:
    """The section by which the network's adapters were added."""
    lora: Adapters = network.__dict__["_lora"][0]
    return lora


def keeps_adapter(network: Any) -> bool:
    """Whether an export of the model includes its adapter."""
    return has_lora(network) and lora_of(network).keep_adapter


@contextmanager
def adapters_off(network: Any) -> Iterator[None]:
    """Within the block the model is the one before training; no effect on a model without adapters."""
    layers = [module for module in network.modules() if _is_adapted(module)] if has_lora(network) else []
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


@torch.no_grad()
def merged_weights(network: Any) -> Iterator[tuple[str, Tensor]]:
    """Weights under their names without adapters, W + alpha / r · B A where a layer has one."""
    for name, _, make in weight_parts(network):
        yield name, make()


def weight_parts(network: Any) -> Iterator[tuple[str, list[Tensor], Callable[[], Tensor]]]:
    """For each of `merged_weights`: its name, the network's tensors that it is computed from, and its function.

    For networks with partitioned tensors: ZeRO's must be gathered when the function is called; the function gathers
    FSDP's, so all ranks call it.
    """
    dtype = compute_dtype(network)
    modules = network.named_modules()
    adapted = {f"{name}.base_layer.weight": module for name, module in modules if _is_adapted(module)}
    state = network.state_dict(keep_vars=True)
    coded = tuple(f"{name}." for name, weight in state.items() if is_coded(weight))
    for name, weight in state.items():
        if ".lora_" in name or name.startswith(coded):  # scales of weights of 4 bits are no weights
            continue
        module = adapted.get(name)
        parts = [weight]
        if module is not None:
            parts += [module.lora_A[_NAME].weight, module.lora_B[_NAME].weight]
        yield name.replace(".base_layer.", "."), parts, partial(_merged_weight, weight, module, dtype)


def _merged_weight(weight: Tensor, module: Any, dtype: torch.dtype) -> Tensor:
    base = restore_weight(weight).to(dtype) if is_coded(weight) else whole(weight.detach(), dtype)
    if module is None:
        return base
    with torch.no_grad():
        delta: Tensor = whole(module.get_delta_weight(_NAME), dtype)
        return base + delta


@torch.no_grad()
def frozen_weights(network: Any) -> Iterator[tuple[str, Tensor]]:
    """Weights under their names without adapters, as they are beside them."""
    for name, (weight, *_), _ in weight_parts(network):
        yield name, restore_weight(weight) if is_coded(weight) else weight


def merged_state(network: Any) -> dict[str, Tensor]:
    """All of `merged_weights` at once."""
    return dict(merged_weights(network))


def adapter_weights(network: Any) -> list[Tensor]:
    return [weight for name, weight in network.named_parameters() if ".lora_" in name]


def adapter_tensors(network: Any) -> dict[str, Tensor]:
    """The adapter under peft's names, on the CPU; called at every rank."""
    import peft

    tensors, dtype = peft.get_peft_model_state_dict(network, adapter_name=_NAME), compute_dtype(network)
    return {f"base_model.model.{name}": whole(weight, dtype).contiguous().cpu() for name, weight in tensors.items()}


def save_adapter(network: Any, tensors: dict[str, Tensor], folder: Path) -> None:
    """Save the adapter alone, for peft's `PeftModel.from_pretrained(start model, folder)`."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    _, config = network.__dict__["_lora"]
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    adapter_config = {
        **config.to_dict(),
        "base_model_name_or_path": network.config._name_or_path,
        "inference_mode": True,
        "task_type": "CAUSAL_LM",
    }
    adapter_config["target_modules"] = sorted(adapter_config["target_modules"])
    text = json.dumps(adapter_config, indent=2, sort_keys=True, default=str)
    (folder / "adapter_config.json").write_text(text + "\n", encoding="utf-8")


def _is_adapted(module: nn.Module) -> bool:
    return hasattr(module, "base_layer") and hasattr(module, "lora_A")
