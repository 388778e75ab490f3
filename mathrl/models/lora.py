"""Low-rank adapters in a model that stays what it is: same class, same forward, two small matrices a layer.

peft puts them in place, without a wrapper, so packed attention, bfloat16 products and the sampler see the
same model. Switched off, the model is the one that training started from: the KL needs no second copy.
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
from mathrl.core.seeding import derive_seed
from mathrl.params.lora import Lora

ADAPTER = "adapter"
_NAME = "default"  # peft's name of a model's only adapter


def add_lora(network: Any, lora: Lora, seed: int) -> None:
    """Freeze `network` and put adapters beside its linear layers, in place; the start computes the same.

    An adapter adds alpha / r · B A x with A random (from `seed`) and B zero. The head of a scorer, which
    starts at zero, is trained whole.

    Raises:
        UserError: no linear layer has a name that ends in one of `lora.targets`.
    """
    import peft  # only where adapters are asked for

    heads = {id(head) for head in (network.get_output_embeddings(), getattr(network, "score", None)) if head}
    linear = [name for name, each in network.named_modules() if isinstance(each, nn.Linear) and id(each) not in heads]
    wanted = lora.targets or ("",)
    targets = [name for name in linear if any(f".{name}".endswith(f".{end}" if end else "") for end in wanted)]
    if not targets:
        known = sorted({name.rpartition(".")[2] for name in linear})
        raise UserError(
            f"lora.targets: no linear layer's name ends in {' or '.join(wanted)}; this model has {', '.join(known)}"
        )
    config = peft.LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # a float will do
        lora_dropout=lora.dropout,
        target_modules=targets,
        bias="none",
    )
    network.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "lora"))
        peft.inject_adapter_in_model(config, network, adapter_name=_NAME)
    if getattr(network, "score", None) is not None:
        network.score.requires_grad_(True)
    network.__dict__["_lora"] = (lora, config)


def has_lora(network: Any) -> bool:
    return "_lora" in network.__dict__


def keeps_adapter(network: Any) -> bool:
    """Whether an export of the model has its adapter too."""
    return has_lora(network) and bool(network.__dict__["_lora"][0].keep_adapter)


@contextmanager
def adapters_off(network: Any) -> Iterator[None]:
    """Within the block the model is the one before training; nothing happens to a model without adapters."""
    layers = [each for each in network.modules() if _is_adapted(each)] if has_lora(network) else []
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


@torch.no_grad()
def merged_weights(network: Any) -> Iterator[tuple[str, Tensor]]:
    """Weights under the names they have without adapters; W + alpha / r · B A where there is one."""
    for name, _, make in weight_parts(network):
        yield name, make()


def weight_parts(network: Any) -> Iterator[tuple[str, list[Tensor], Callable[[], Tensor]]]:
    """Of each of `merged_weights` its name, the network's own tensors that it is made of, and what makes it.

    For networks whose tensors are not all there at a time: they must be when a weight is made.
    """
    modules = network.named_modules()
    adapted = {f"{name}.base_layer.weight": module for name, module in modules if _is_adapted(module)}
    for name, weight in network.state_dict(keep_vars=True).items():
        if ".lora_" in name:
            continue
        module = adapted.get(name)
        parts = [weight]
        if module is not None:
            parts += [module.lora_A[_NAME].weight, module.lora_B[_NAME].weight]
        yield name.replace(".base_layer.", "."), parts, partial(_merged, weight, module)


def _merged(weight: Tensor, module: Any) -> Tensor:
    if module is None:
        return weight.detach()
    with torch.no_grad():
        delta: Tensor = module.get_delta_weight(_NAME)
        return weight + delta


def merged_state(network: Any) -> dict[str, Tensor]:
    """All of `merged_weights` at once."""
    return dict(merged_weights(network))


def save_adapter(network: Any, folder: Path) -> None:
    """The adapter alone, as peft's `PeftModel.from_pretrained(model it started from, folder)` reads it."""
    import peft
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    _, config = network.__dict__["_lora"]
    tensors = peft.get_peft_model_state_dict(network, adapter_name=_NAME)
    named = {f"base_model.model.{name}": weight.contiguous().cpu() for name, weight in tensors.items()}
    save_file(named, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    told = {
        **config.to_dict(),
        "base_model_name_or_path": network.config._name_or_path,
        "inference_mode": True,
        "task_type": "CAUSAL_LM",
    }
    told["target_modules"] = sorted(told["target_modules"])
    text = json.dumps(told, indent=2, sort_keys=True, default=str)
    (folder / "adapter_config.json").write_text(text + "\n", encoding="utf-8")


def _is_adapted(module: nn.Module) -> bool:
    return hasattr(module, "base_layer") and hasattr(module, "lora_A")
