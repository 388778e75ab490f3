"""The shape of any causal language model, from its configuration; `shapes` has the usual ones without torch."""

from typing import Any

import torch

from mathrl.core.errors import UserError
from mathrl.models.base import character_tokenizer, fresh_config
from mathrl.models.load import reason, resolve_folder
from mathrl.models.shapes import KNOWN, SIZES, ModelShape
from mathrl.models.transformers_import import AutoConfig, AutoModelForCausalLM
from mathrl.params.messages import did_you_mean
from mathrl.params.run import Base, FreshModel


def shape_of(config: Any) -> ModelShape:
    """The shape of a causal LM, from its Hugging Face configuration; no weight is allocated.

    >>> from transformers import Qwen2Config
    >>> config = Qwen2Config(hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
    ...                      num_key_value_heads=1, vocab_size=10, tie_word_embeddings=True)
    >>> shape_of(config).matrices  # 8 x (8 + 4 + 4 + 8) + 3 x 8 x 16
    576
    """
    text = config.get_text_config()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    head = model.get_output_embeddings()
    linear = [module for module in model.modules() if isinstance(module, torch.nn.Linear) and module is not head]
    return ModelShape(
        width=text.hidden_size,
        mlp=text.intermediate_size,
        layers=text.num_hidden_layers,
        heads=text.num_attention_heads,
        key_heads=getattr(text, "num_key_value_heads", text.num_attention_heads),
        head_width=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
        vocabulary=text.vocab_size,
        parameters=sum(weight.numel() for weight in model.parameters()),
        matrices=sum(module.weight.numel() for module in linear),
        head=head.weight.numel(),
        tied=head.weight is model.get_input_embeddings().weight,
        experts=sum(
            weight.numel()
            for module in model.modules()
            if "Experts" in type(module).__name__
            for weight in module.parameters(recurse=False)
            if weight.dim() == 3
        ),
    )


def config_of(base: Base) -> Any:
    """The Hugging Face configuration of a base model: fresh, a known one, a folder, or the hub's.

    Raises:
        UserError: neither a model folder nor a hub id that can be reached.
    """
    if isinstance(base, FreshModel):
        return fresh_config(base, character_tokenizer(base))
    if base.path in KNOWN:
        kind, sizes = KNOWN[base.path]
        return AutoConfig.for_model(kind, **dict(zip(SIZES, sizes, strict=True)))
    path, options = resolve_folder(base.path)
    try:
        options = {"revision": base.revision, **options, "trust_remote_code": base.trust_remote_code}
        return AutoConfig.from_pretrained(path, **options)
    except (OSError, ValueError) as error:
        raise UserError(
            f"model.base.path: no configuration of {base.path} can be read ({reason(error)})"
            f"{did_you_mean(base.path, KNOWN)}; give a model folder, a hub id, or one of {', '.join(sorted(KNOWN))}"
        ) from None
