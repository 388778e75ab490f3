"""A model folder → model and tokenizer. The folder is plain Hugging Face, or holds a reference to one."""

from pathlib import Path
from typing import Any

import torch

from mathrl.core.errors import UserError
from mathrl.core.files import read_json
from mathrl.core.out_of_memory import memory_part
from mathrl.models.allocator import keep_freed_memory
from mathrl.models.base import REFERENCE, make_base
from mathrl.models.export import export_model
from mathrl.models.linear import use_bfloat16_products
from mathrl.models.norm import use_fast_norms
from mathrl.models.transformers_import import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from mathrl.params.run import Model, PretrainedModel

__all__ = ["export_model", "load_model", "load_tokenizer", "make_base", "plain_dtype", "resolve_folder"]
WEIGHTS_ADVICE = (
    "set training.backend to deepspeed with training.deepspeed.stage 3 (and offload_parameters), or take a "
    "smaller model (model.base)"
)


def load_model(folder: Path | str, model: Model, device: torch.device | str, *, plain: bool = False) -> PreTrainedModel:
    """The causal LM of a folder, float32 weights, in eval mode, computing in `model.precision`.

    A `plain` one has weights of that precision, and no layer is exchanged for a faster one: DeepSpeed divides
    it layer by layer, and keeps float32 weights for its optimizer.

    Only safetensors are read. Code that comes with the model runs only where the base model's parameters
    allow it.

    Raises:
        UserError: the folder is not a causal LM's, or holds no safetensors.
    """
    keep_freed_memory()
    path, options = resolve_folder(folder, model)
    with memory_part("weights", WEIGHTS_ADVICE):
        try:
            config = AutoConfig.from_pretrained(path, **options)
            network = AutoModelForCausalLM.from_pretrained(
                path,
                config=config,
                dtype=plain_dtype(model) if plain else torch.float32,
                use_safetensors=True,
                **options,
            )
        except (OSError, ValueError, KeyError) as error:
            raise UserError(
                f"{folder}: cannot be loaded as a causal language model ({reason(error)}); give a Hugging "
                "Face folder with config.json and *.safetensors, or a hub id"
            ) from None
        network = network.to(device).eval()
    if plain:
        return network
    use_fast_norms(network)
    if model.precision == "bfloat16":
        use_bfloat16_products(network)
        if torch.device(device).type == "cuda":
            # What stays float32 (the head, attention) by tensor cores too: they round inputs to 10 bits of
            # mantissa, bfloat16 products to 7, and without them these products would take most of the time.
            torch.backends.cuda.matmul.allow_tf32 = True
    return network


def plain_dtype(model: Model) -> torch.dtype:
    return torch.bfloat16 if model.precision == "bfloat16" else torch.float32


def load_tokenizer(folder: Path | str, model: Model | None = None) -> Any:
    """The folder's tokenizer; one without a padding token pads with its end token.

    Code that comes with it runs only where the parameters of `model` allow it.

    Raises:
        UserError: no tokenizer there, or one without an end token.
    """
    path, options = resolve_folder(folder, model)
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, **options)
        size = AutoConfig.from_pretrained(path, **options).get_text_config().vocab_size
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder}: no tokenizer can be loaded from it ({reason(error)})") from None
    # Some tokenizer classes make up an end token, which then is none of the model's.
    if tokenizer.eos_token_id is None or tokenizer.eos_token_id >= size:
        raise UserError(
            f"{folder}: its tokenizer has no end token, so no response could ever end; "
            "set eos_token in its tokenizer_config.json"
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def reason(error: Exception) -> str:
    """Why a folder cannot be loaded, in a line; where it would have to run Python code, what allows that."""
    if "trust_remote_code" in str(error):
        return (
            "it needs Python code that comes with it, which runs only when asked for: read that code, then "
            "set model.base.trust_remote_code to true"
        )
    return " ".join(str(error).split())[:300]


def resolve_folder(folder: Path | str, model: Model | None = None) -> tuple[str, dict[str, Any]]:
    """Follow a folder's reference file; return what from_pretrained takes: a path or hub id, and options.

    Whether code that comes with the model may run is said by the parameters `model`, else by the reference;
    otherwise it may not.

    Raises:
        UserError: neither a folder of a model nor a hub id.
    """
    path, trust = Path(folder), False
    if (path / REFERENCE).is_file():
        reference = read_json(path / REFERENCE)
        target, trust = str(reference["path"]), bool(reference.get("trust_remote_code", False))
        where, options = target, {"revision": str(reference["revision"])}
        if Path(target).is_dir():
            where, options = resolve_folder(target)
    else:
        where, options = _place(folder, path), {}
    if model is not None and isinstance(model.base, PretrainedModel):
        trust = model.base.trust_remote_code
    return where, {**options, "trust_remote_code": trust}


def _place(folder: Path | str, path: Path) -> str:
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UserError(f"{folder}: not a model folder: it has no config.json")
        return str(path)
    if isinstance(folder, Path) or str(folder).startswith((".", "/")) or str(folder).count("/") != 1:
        raise UserError(f"{folder}: no such model folder")
    return str(folder)
