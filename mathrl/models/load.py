"""Load the model and the tokenizer of a folder: plain Hugging Face, or a reference to such a folder or hub id."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch.distributed.device_mesh import DeviceMesh

from mathrl.core.environment import ask_hub_once
from mathrl.core.errors import UserError, memory_part
from mathrl.core.files import read_json
from mathrl.core.paths import is_hub_id
from mathrl.models.base import REFERENCE, make_base
from mathrl.models.device import keep_freed_memory, use_tf32
from mathrl.models.export import export_model
from mathrl.models.fsdp import divided_loads, is_divided
from mathrl.models.fused import use_fused_elementwise
from mathrl.models.kernels import compute_dtype
from mathrl.models.linear import HalfLinear, use_half_products
from mathrl.models.logprobs import architecture_trial, prepare_language_model
from mathrl.models.norm import use_fast_norms, use_fused_norms
from mathrl.models.shapes import check_weights
from mathrl.models.sharding import is_sharded
from mathrl.models.small_copy import small_config
from mathrl.models.transformers_import import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    cached_file,
)
from mathrl.models.trial import Trial
from mathrl.params.messages import near_path
from mathrl.params.run import Model, Precision, PretrainedModel

__all__ = ["export_model", "load_model", "load_tokenizer", "make_base", "plain_dtype", "resolve_folder"]
# Spaces, lines, digits, signs, combining marks, letters beyond ASCII, whole and composed: where tokenizers differ.
PROBE = " The sum  is 1234,\n\n  x_1 = $\\frac{3}{4}$ isn't कि été e\u0301 日本"
OPTIONAL_FILE = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
WEIGHTS_ADVICE = (
    "set training.backend to fsdp, or to deepspeed with training.deepspeed.stage 3 (and offload_parameters), or take a "
    "smaller model (model.base)"
)


def load_model(
    folder: Path | str, model: Model, device: torch.device | str, *, plain: bool = False, mesh: DeviceMesh | None = None
) -> PreTrainedModel:
    """The causal LM of a folder in eval mode, computing in `model.precision`.

    On a CPU its weights are float32, and with bfloat16 or float16 only products are. On a GPU all of the model has the
    precision: weights, the residual stream and everything between (norms and rotations compute in float32 inside); the
    learner keeps float32 weights for its optimizer. A `plain` model, for DeepSpeed and FSDP, has weights of the
    precision on a CPU too, and no layers exchanged there. With a `mesh` each rank reads its own rows
    (`mathrl.models.fsdp`).

    Only safetensors are read. Code that comes with the model runs only if `model.base.trust_remote_code` allows it.

    Raises:
        UserError: the folder is not a causal LM's, holds no safetensors, or failed its architecture's trial.
    """
    keep_freed_memory()
    if model.precision != "float32" and torch.device(device).type == "cuda":
        use_tf32()  # for what stays in float32: the attention of the torch engine's decoding
    path, options = resolve_folder(folder, model)
    advice = "a Hugging Face folder with config.json and *.safetensors, or a hub id"
    with memory_part("weights", WEIGHTS_ADVICE), while_loading(folder, "a causal language model", advice):
        config = AutoConfig.from_pretrained(path, **options)
        _refuse_encoder_decoder(config)
        if Path(path).is_dir():
            check_weights(Path(path))
        weights = weights_options(model, device, plain=plain)
        with divided_loads(mesh) as division:
            network = AutoModelForCausalLM.from_pretrained(path, config=config, **weights, **division, **options)
        network = network.to(device).eval()
    use_fast_layers(network, network, model, plain=plain)
    if not is_sharded(network):
        prepare_language_model(network)
    return network


@contextmanager
def while_loading(folder: Path | str, kind: str, advice: str) -> Iterator[None]:
    """Raises UserError: transformers cannot load the folder as `kind`; give `advice` in its place."""
    try:
        yield
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise UserError(f"{folder}: cannot be loaded as {kind} ({reason(error)}); give {advice}") from None


def folder_trial(folder: Path | str, model: Model, device: torch.device | str) -> Trial:
    """The trial of a folder's architecture from its config.json alone, without its weights.

    Raises:
        UserError: the folder is not a causal LM's.
    """
    path, options = resolve_folder(folder, model)
    try:
        config = AutoConfig.from_pretrained(path, **options)
        _refuse_encoder_decoder(config)
        trust = options["trust_remote_code"]
        network = AutoModelForCausalLM.from_config(small_config(config), trust_remote_code=trust)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder}: not a causal language model ({reason(error)})") from None
    return architecture_trial(network.to(device))


def _refuse_encoder_decoder(config: Any) -> None:
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(f"{config.model_type} is an encoder-decoder; mathrl trains decoder-only models")


def use_fast_layers(network: Any, trunk: Any, model: Model, *, plain: bool = False) -> None:
    """Exchange layers for faster ones with the same weights, in place; products only in the `trunk`.

    Of a network that FSDP divides none: the trials that find them need whole weights.
    """
    if is_divided(network):
        return
    if network.device.type == "cuda":
        use_fused_norms(network)
        use_fused_elementwise(network)
    elif not plain:
        use_fast_norms(network)
        if model.precision != "float32":
            use_half_products(trunk, plain_dtype(model))


def precision_of(network: Any) -> Precision:
    """The `model.precision` that a network was loaded with."""
    half = next((module.product_dtype for module in network.modules() if isinstance(module, HalfLinear)), None)
    names: dict[torch.dtype, Precision] = {torch.bfloat16: "bfloat16", torch.float16: "float16"}
    return names.get(half or compute_dtype(network), "float32")


def weights_options(model: Model, device: torch.device | str, *, plain: bool) -> dict[str, Any]:
    """How from_pretrained reads weights: safetensors only, and to which type (see `load_model`)."""
    whole = plain or torch.device(device).type == "cuda"
    return {"dtype": plain_dtype(model) if whole else torch.float32, "use_safetensors": True}


def plain_dtype(model: Model) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, model.precision)
    return dtype


def load_tokenizer(folder: Path | str, model: Model | None = None) -> Any:
    """The folder's tokenizer, as its tokenizer.json has it; one without a padding token pads with its end token.

    Code that comes with it runs only if the parameters of `model` allow it.

    Raises:
        UserError: the folder has no tokenizer, one that cannot be the model's, or one without an end token.
    """
    path, options = resolve_folder(folder, model)
    try:
        tokenizer = _as_its_file(AutoTokenizer.from_pretrained(path, **options), path, options)
        size = AutoConfig.from_pretrained(path, **options).get_text_config().vocab_size
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder}: no tokenizer can be loaded from it ({reason(error)})") from None
    _check_reads(folder, tokenizer, size)
    # Some tokenizer classes invent an end token that the model does not have.
    if tokenizer.eos_token_id is None or tokenizer.eos_token_id >= size:
        raise UserError(
            f"{folder}: its tokenizer has no end token, so no response could ever end; "
            "set eos_token in its tokenizer_config.json"
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _check_reads(folder: Path | str, tokenizer: Any, vocabulary: int) -> None:
    """Refuse a tokenizer that reads nothing, which transformers makes up for a folder without its files, or reads ids
    that the model does not have.
    """
    ids = [token for token in tokenizer.encode(PROBE, add_special_tokens=False) if token != tokenizer.unk_token_id]
    advice = "copy the tokenizer's files (tokenizer.json, tokenizer_config.json) of the same model into the folder"
    if not ids:
        raise UserError(f"{folder}: no tokenizer: what can be loaded from it encodes text to nothing; {advice}")
    if max(ids) >= vocabulary:
        raise UserError(
            f"{folder}: its tokenizer is another model's: it encodes text to token {max(ids)}, and the model has "
            f"{vocabulary}; {advice}"
        )


def _as_its_file(tokenizer: Any, path: str, options: dict[str, Any]) -> Any:
    """The tokenizer, or that of tokenizer.json if it reads a text differently.

    transformers 5 rebuilds some tokenizers by the class that tokenizer_config.json names. DeepSeek's distilled Llama
    models name one for pieces between spaces, where theirs are of bytes: every space and line would be lost.
    """
    if not getattr(tokenizer, "is_fast", False) or type(tokenizer) is PreTrainedTokenizerFast:
        return tokenizer
    if cached_file(path, "tokenizer.json", revision=options.get("revision"), **OPTIONAL_FILE) is None:
        return tokenizer
    by_file = PreTrainedTokenizerFast.from_pretrained(path, **options)
    expected = by_file.encode(PROBE, add_special_tokens=False)
    if by_file.unk_token_id in expected or tokenizer.encode(PROBE, add_special_tokens=False) == expected:
        return tokenizer
    return by_file


def reason(error: Exception) -> str:
    """Why a folder cannot be loaded, in one line; how to allow its Python code if it needs that."""
    if "trust_remote_code" in str(error):
        return (
            "it needs the Python code that comes with it, which runs only on request: read that code, then "
            "set model.base.trust_remote_code to true"
        )
    return " ".join(str(error).split()).partition(" Check your internet connection")[0][:300]


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
            ask_hub_once()
    else:
        source, options = _path_or_hub_id(folder, path), {}
    if model is not None and isinstance(model.base, PretrainedModel):
        trust = model.base.trust_remote_code
    return source, {**options, "trust_remote_code": trust}


def local_folder(folder: Path | str) -> Path:
    """The local folder of a model folder, of the model that it refers to, or of a hub id."""
    path, options = resolve_folder(folder)
    if Path(path).is_dir():
        return Path(path)
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.safetensors", "*.model", "*.txt"]
    return Path(snapshot_download(path, revision=options.get("revision"), allow_patterns=patterns))


def _path_or_hub_id(folder: Path | str, path: Path) -> str:
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UserError(f"{folder}: not a model folder: it has no config.json")
        return str(path)
    if isinstance(folder, Path) or not is_hub_id(str(folder)):
        raise UserError(f"{folder}: no such model folder{near_path(path)}")
    ask_hub_once()
    return str(folder)
