"""The sizes that memory and arithmetic of a model depend on, from its configuration alone."""

from dataclasses import dataclass
from typing import Any

import torch

from mathrl.core.errors import UserError
from mathrl.models.base import character_tokenizer, fresh_config
from mathrl.models.load import reason, resolve_folder
from mathrl.models.transformers_import import AutoConfig, AutoModelForCausalLM
from mathrl.params.messages import did_you_mean
from mathrl.params.run import Base, FreshModel

# From the config.json of each, so that a plan needs no hub: the presets' models.
SIZES = (
    "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads vocab_size "
    "tie_word_embeddings"
).split()
KNOWN: dict[str, tuple[str, tuple[int | bool, ...]]] = {
    "Qwen/Qwen2.5-0.5B-Instruct": ("qwen2", (896, 4864, 24, 14, 2, 151936, True)),
    "Qwen/Qwen2.5-1.5B-Instruct": ("qwen2", (1536, 8960, 28, 12, 2, 151936, True)),
    "Qwen/Qwen2.5-3B-Instruct": ("qwen2", (2048, 11008, 36, 16, 2, 151936, True)),
    "Qwen/Qwen2-7B-Instruct": ("qwen2", (3584, 18944, 28, 28, 4, 152064, False)),
    "Qwen/Qwen2.5-32B": ("qwen2", (5120, 27648, 64, 40, 8, 152064, False)),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": ("qwen2", (1536, 8960, 28, 12, 2, 151936, False)),
    "deepseek-ai/deepseek-math-7b-instruct": ("llama", (4096, 11008, 30, 32, 32, 102400, False)),
}


@dataclass(frozen=True)
class ModelShape:
    """The sizes that the memory of a model depends on.

    Example:
        Qwen2.5-0.5B: ModelShape(width=896, mlp=4864, layers=24, heads=14, key_heads=2, head_width=64,
                            vocabulary=151936, parameters=494032768, matrices=357826560, head=136134656,
                            tied=True)

    `matrices` counts the weights of the linear layers inside the blocks, `head` those of the output head,
    which it shares with the embedding where it is `tied`.
    """

    width: int
    mlp: int
    layers: int
    heads: int
    key_heads: int
    head_width: int
    vocabulary: int
    parameters: int
    matrices: int
    head: int
    tied: bool


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
