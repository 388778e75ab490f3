"""A model as a plain Hugging Face folder that any tool can load."""

from pathlib import Path
from typing import Any

from mathrl.core.files import write_text, written_aside
from mathrl.models.lora import ADAPTER, keeps_adapter, merged_state, save_adapter
from mathrl.models.transformers_import import GenerationConfig


def export_model(model: Any, tokenizer: Any, folder: Path | str, card: str) -> None:
    """Write weights (safetensors), tokenizer, generation config and the model card README.md.

    The folder is written aside and renamed: whole or absent. Adapters (LoRA) are merged into the weights; with
    `lora.keep_adapter` they are also saved on their own in adapter/.
    """
    write_folder(model, tokenizer, Path(folder), card)


def write_folder(model: Any, tokenizer: Any, folder: Path, card: str) -> None:
    if model.can_generate():
        # Greedy, ending at the tokenizer's end token: what a reader of the folder expects by default.
        ends = model.generation_config.eos_token_id if model.generation_config is not None else None
        model.generation_config = GenerationConfig(
            eos_token_id=ends if ends is not None else tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            do_sample=False,
        )
    with written_aside(folder) as aside:
        model.save_pretrained(aside, safe_serialization=True, state_dict=merged_state(model))
        if keeps_adapter(model):
            save_adapter(model, aside / ADAPTER)
        tokenizer.save_pretrained(aside)
        write_text(aside / "README.md", card if card.endswith("\n") else card + "\n")
