"""Load the model and the tokenizer of a folder: plain Hugging Face, or a reference to such a folder or hub id."""

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

    A `plain` model has weights of that precision and transformers' own layers: DeepSpeed partitions it layer by layer
    and keeps float32 weights for its optimizer.

    Only safetensors are read. Code that comes with the model runs only if `model.base.trust_remote_code` allows it.

    Raises:
        UserError: the folder is not a causal LM's, or holds no safetensors.
    """
    keep_freed_memory()
    path, options = resolve_folder(folder, model)
    with memory_part("weights", WEIGHTS_ADVICE):
        try:
            config = AutoConfig.from_pretrained(path, **options)
            weights = weights_options(model, plain=plain)
            network = AutoModelForCausalLM.from_pretrained(path, config=config, **weights, **options)
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
            # The float32 products left (the head, attention) use tensor cores too, which round inputs to 10 bits of
            # mantissa (bfloat16: 7 bits); otherwise they would take most of the time.
            torch.backends.cuda.matmul.allow_tf32 = True
    return network


def weights_options(model: Model, *, plain: bool) -> dict[str, Any]:
    """How from_pretrained reads weights: safetensors only, to float32 unless `plain`."""
    return {"dtype": plain_dtype(model) if plain else torch.float32, "use_safetensors": True}


def plain_dtype(model: Model) -> torch.dtype:
    return torch.bfloat16 if model.precision == "bfloat16" else torch.float32


def load_tokenizer(folder: Path | str, model: Model | None = None) -> Any:
    """The folder's tokenizer; one without a padding token pads with its end token.

    Code that comes with it runs only if the parameters of `model` allow it.

    Raises:
        UserError: the folder has no tokenizer, or one without an end token.
    """
    path, options = resolve_folder(folder, model)
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, **options)
        size = AutoConfig.from_pretrained(path, **options).get_text_config().vocab_size
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder}: no tokenizer can be loaded from it ({reason(error)})") from None
    # Some tokenizer classes invent an end token that the model does not have.
    if tokenizer.eos_token_id is None or tokenizer.eos_token_id >= size:
        raise UserError(
            f"{folder}: its tokenizer has no end token, so no response could ever end; "
            "set eos_token in its tokenizer_config.json"
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def reason(error: Exception) -> str:
    """Why a folder cannot be loaded, in one line; how to allow its Python code if it needs that."""
    if "trust_remote_code" in str(error):
        return (
            "it needs the Python code that comes with it, which runs only on request: read that code, then "
            "set model.base.trust_remote_code to true"
        )
    return " ".join(str(error).split())[:300]


def resolve_folder(folder: Path | str, model: Model | None = None) -> tuple[str, dict[str, Any]]:
    """The arguments of from_pretrained, a path or hub id and options, after following a folder's reference file.

    The parameters `model`, else the reference, decide whether code that comes with the model may run; by default it
    may not.

    Raises:
        UserError: neither a folder of a model nor a hub id.
    """
    path, trust = Path(folder), False
    if (path / REFERENCE).is_file():
        reference = read_json(path / REFERENCE)
        target, trust = str(reference["path"]), bool(reference.get("trust_remote_code", False))
        source, options = target, {"revision": str(reference["revision"])}
        if Path(target).is_dir():
            source, options = resolve_folder(target)
    else:
        source, options = _path_or_hub_id(folder, path), {}
    if model is not None and isinstance(model.base, PretrainedModel):
        trust = model.base.trust_remote_code
    return source, {**options, "trust_remote_code": trust}


def _path_or_hub_id(folder: Path | str, path: Path) -> str:
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UserError(f"{folder}: not a model folder: it has no config.json")
        return str(path)
    if isinstance(folder, Path) or str(folder).startswith((".", "/")) or str(folder).count("/") != 1:
        raise UserError(f"{folder}: no such model folder")
    return str(folder)
