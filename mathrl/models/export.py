"""A model as a plain Hugging Face folder that any tool can load."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from mathrl.core.environment import rank
from mathrl.core.files import write_text, written_aside
from mathrl.models.kernels import compute_dtype
from mathrl.models.lora import (
    ADAPTER,
    adapter_tensors,
    adapter_weights,
    keeps_adapter,
    merged_state,
    save_adapter,
    weight_parts,
)
from mathrl.models.sharding import gathered_weights, is_sharded, with_whole_weights
from mathrl.models.tool_messages import end_tokens
from mathrl.models.transformers_import import GenerationConfig, revert_weight_conversion

FILE_BYTES = 5_000_000_000  # of a weights file of a sharded model; rank 0 holds one in CPU memory


def export_model(model: Any, tokenizer: Any, folder: Path | str, card: str) -> None:
    """Write weights (safetensors), tokenizer, generation config and the model card README.md.

    Called at every rank; rank 0 writes. The weights of a sharded model are gathered a bucket at a time and written to
    files of about FILE_BYTES. The folder is written aside and renamed: whole or absent. Adapters (LoRA) are merged into
    the weights, matrix by matrix; with `lora.keep_adapter` they are also saved on their own in adapter/.
    """
    if rank() != 0:
        if is_sharded(model):
            for _ in gathered_weights(_untied_parts(model)):
                pass
            with with_whole_weights(adapter_weights(model)):
                if keeps_adapter(model):
                    adapter_tensors(model)
        return
    if model.can_generate():
        # Greedy, ending at every token that ended a response in training: what a reader of the folder expects.
        ends = end_tokens(tokenizer, model.generation_config)
        model.generation_config = GenerationConfig(
            eos_token_id=ends if len(ends) > 1 else ends[0], pad_token_id=tokenizer.pad_token_id, do_sample=False
        )
    with written_aside(Path(folder)) as aside:
        if is_sharded(model):
            model.save_pretrained(aside, state_dict={})  # everything but the weights
            model.config.dtype = compute_dtype(model)  # FSDP's weights are float32, and written in this type
            model.config.save_pretrained(aside)
            save_files(model, gathered_weights(_untied_parts(model)), aside)
        else:
            model.save_pretrained(aside, safe_serialization=True, state_dict=merged_state(model))
        with with_whole_weights(adapter_weights(model)):
            if keeps_adapter(model):
                save_adapter(model, adapter_tensors(model), aside / ADAPTER)
        tokenizer.save_pretrained(aside)
        write_text(aside / "README.md", card if card.endswith("\n") else card + "\n")
        for file in aside.rglob("*.safetensors"):  # safetensors writes them for their owner alone
            shutil.copymode(aside / "README.md", file)


def _untied_parts(model: Any) -> list[Any]:
    """`weight_parts` without the second names of tied weights, which a folder does not have."""
    first = {id(weights[0]): name for name, weights, _ in reversed(list(weight_parts(model)))}
    return [part for part in weight_parts(model) if first[id(part[1][0])] == part[0]]


def save_files(model: Any, weights: Iterable[tuple[str, Tensor]], folder: Path) -> None:
    """Write weights as they come, as transformers' `save_pretrained` names files and weights.

    One file is kept in CPU memory at a time. The index of several files is model.safetensors.index.json.
    """
    file: dict[str, Tensor] = {}
    files: list[list[str]] = []
    total = 0

    def write() -> None:
        save_file(file, folder / f"{len(files)}.safetensors", metadata={"format": "pt"})
        files.append(list(file))
        file.clear()

    for name, weight in weights:
        stored = revert_weight_conversion(model, {name: weight})  # such as the experts' matrices, which it had stacked
        copies = {key: value.to("cpu", copy=True).contiguous() for key, value in stored.items()}
        size = sum(value.nbytes for value in copies.values())
        if file and sum(value.nbytes for value in file.values()) + size > FILE_BYTES:
            write()
        file |= copies
        total += size
    write()
    names = ["model.safetensors"]
    if len(files) > 1:
        names = [f"model-{number:05d}-of-{len(files):05d}.safetensors" for number in range(1, len(files) + 1)]
        weight_map = {key: name for name, keys in zip(names, files, strict=True) for key in keys}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        write_text(folder / "model.safetensors.index.json", json.dumps(index, indent=2) + "\n")
    for number, name in enumerate(names):
        (folder / f"{number}.safetensors").rename(folder / name)
