"""The sizes that memory and arithmetic of a model depend on; those of usual models, without torch and without a hub.

How much a model takes at a time; both the passes and the plan of their memory go by it, the plan without torch.
"""

import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mathrl.core.errors import UserError
from mathrl.params.run import PretrainedModel

LFS_POINTER = b"version https://git-lfs"
WIDTHS = ("hidden_size", "n_embd", "d_model", "dim")
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")
SIZES = (
    "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads vocab_size "
    "tie_word_embeddings max_position_embeddings"
).split()
Sizes = tuple[int | bool, ...]  # SIZES without the positions, in which models of one shape differ
_QWEN = {
    "0.5B": (896, 4864, 24, 14, 2, 151936, True),
    "1.5B": (1536, 8960, 28, 12, 2, 151936, True),
    "3B": (2048, 11008, 36, 16, 2, 151936, True),
    "7B": (3584, 18944, 28, 28, 4, 152064, False),
    "14B": (5120, 13824, 48, 40, 8, 152064, False),
    "32B": (5120, 27648, 64, 40, 8, 152064, False),
}
_QWEN3 = {
    "0.6B": (1024, 3072, 28, 16, 8, 151936, True),
    "1.7B": (2048, 6144, 28, 16, 8, 151936, True),
    "4B": (2560, 9728, 36, 32, 8, 151936, True),
    "8B": (4096, 12288, 36, 32, 8, 151936, False),
}
_LLAMA = {
    "3.2-1B": (2048, 8192, 16, 32, 8, 128256, True),
    "3.2-3B": (3072, 8192, 28, 24, 8, 128256, True),
    "3.1-8B": (4096, 14336, 32, 32, 8, 128256, False),
}


def _known_shapes() -> dict[str, tuple[str, Sizes]]:
    """Architecture and SIZES by hub id."""
    models: dict[str, tuple[str, Sizes]] = {}
    for size, sizes in _QWEN.items():
        base = 32768 if size in ("0.5B", "3B") else 131072
        models[f"Qwen/Qwen2.5-{size}"] = ("qwen2", (*sizes, base))
        models[f"Qwen/Qwen2.5-{size}-Instruct"] = ("qwen2", (*sizes, 32768))
    for size in ("1.5B", "7B"):
        models[f"Qwen/Qwen2.5-Math-{size}"] = ("qwen2", (*_QWEN[size], 4096))
        models[f"Qwen/Qwen2.5-Math-{size}-Instruct"] = ("qwen2", (*_QWEN[size], 4096))
        distilled = (*_QWEN[size][:-1], False, 131072)  # the smaller one has a head of its own, too
        models[f"deepseek-ai/DeepSeek-R1-Distill-Qwen-{size}"] = ("qwen2", distilled)
    for size, sizes in _QWEN3.items():
        models[f"Qwen/Qwen3-{size}"] = ("qwen3", (*sizes, 40960))
        models[f"Qwen/Qwen3-{size}-Base"] = ("qwen3", (*sizes, 32768))
    for size, sizes in _LLAMA.items():
        models[f"meta-llama/Llama-{size}"] = ("llama", (*sizes, 131072))
        models[f"meta-llama/Llama-{size}-Instruct"] = ("llama", (*sizes, 131072))
    for kind in ("base", "instruct", "rl"):
        deepseek = (4096, 11008, 30, 32, 32, 102400, False, 4096)
        models[f"deepseek-ai/deepseek-math-7b-{kind}"] = ("llama", deepseek)
    return models | {"Qwen/Qwen2-7B-Instruct": ("qwen2", (*_QWEN["7B"], 32768))}


# From https://huggingface.co/ID/resolve/main/config.json of each, so that a plan needs no hub;
# tests/models/test_shapes.py holds the weights that follow against the number that the hub counts in their files.
KNOWN = _known_shapes()
HEADS_OF_128 = ("qwen3",)  # architectures whose heads are not width / heads wide, unless config.json says so
DENSE = ("qwen2", "qwen3", "llama", "mistral")  # architectures whose weights `dense_shape` counts


@dataclass(frozen=True)
class ModelShape:
    """The sizes that the memory of a model depends on.

    Example:
        Qwen2.5-0.5B: ModelShape(width=896, mlp=4864, layers=24, heads=14, key_heads=2, head_width=64,
                            vocabulary=151936, parameters=494032768, matrices=357826560, head=136134656,
                            tied=True)

    `matrices` counts the weights of the linear layers inside the blocks, `head` those of the output head,
    which it shares with the embedding where it is `tied`, `experts` those of a mixture's experts.
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
    experts: int = field(default=0, repr=False)


@dataclass(frozen=True)
class KnownModel:
    """A pretrained model's shape, its maximum length of prompt plus response, and where both come from.

    Example: KnownModel(shape, positions=32768, source="config.json of Qwen/Qwen2.5-0.5B-Instruct")
    """

    shape: ModelShape
    positions: int | None
    source: str


def known_model(base: PretrainedModel) -> KnownModel | None:
    """What is known of a model without asking a hub; None: its name tells no size.

    A folder's config.json, the table of hub ids, or the size in the name: then the shape is that of the nearest model
    of the table with more or fewer layers.
    """
    file = Path(base.path) / "config.json"
    if file.is_file():
        shape, positions = _of_folder(file)
        if shape is not None:
            return KnownModel(shape, positions, f"config.json of {base.path}")
    if base.path in KNOWN:
        kind, sizes = KNOWN[base.path]
        config = dict(zip(SIZES, sizes, strict=True))
        return KnownModel(dense_shape(kind, config), config["max_position_embeddings"], f"config.json of {base.path}")
    size = billions(base.path)
    if size is None:
        return None
    nearest = min(KNOWN, key=lambda name: abs((billions(name) or 0.0) - size))
    return KnownModel(_resize(known_shape(nearest), size * 1e9), None, f"the size in the name, with {nearest}'s shape")


def known_shape(name: str) -> ModelShape:
    kind, sizes = KNOWN[name]
    return dense_shape(kind, dict(zip(SIZES, sizes, strict=True)))


def _of_folder(file: Path) -> tuple[ModelShape | None, int | None]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None, None
    positions = config.get("max_position_embeddings")
    if config.get("model_type") not in DENSE or not set(SIZES[:6]) <= config.keys():
        return None, positions
    return dense_shape(config["model_type"], config), positions


def dense_shape(kind: str, config: dict[str, Any]) -> ModelShape:
    """The shape of a decoder with gated MLPs (see DENSE), from the values of its config.json.

    >>> config = dict(zip(SIZES, (896, 4864, 24, 14, 2, 151936, True, 32768)))
    >>> dense_shape("qwen2", config).parameters
    494032768
    """
    width, mlp, layers, heads = (int(config[name]) for name in SIZES[:4])
    key_heads, vocabulary = int(config[SIZES[4]]), int(config[SIZES[5]])
    tied = bool(config.get(SIZES[6], False))
    each = int(config.get("head_dim") or (128 if kind in HEADS_OF_128 else width // heads))
    queries, keys = heads * each, key_heads * each
    matrices = layers * (2 * width * queries + 2 * width * keys + 3 * width * mlp)
    small = 2 * width + {"qwen2": queries + 2 * keys, "qwen3": 2 * each}.get(kind, 0)  # norms, biases of attention
    head = width * vocabulary
    return ModelShape(
        width=width,
        mlp=mlp,
        layers=layers,
        heads=heads,
        key_heads=key_heads,
        head_width=each,
        vocabulary=vocabulary,
        parameters=matrices + layers * small + width + head * (1 if tied else 2),
        matrices=matrices,
        head=head,
        tied=tied,
    )


def _resize(shape: ModelShape, parameters: float) -> ModelShape:
    """The shape with as many layers as make about this number of parameters."""
    beside = shape.parameters - shape.matrices
    layer = shape.matrices / shape.layers
    layers = max(1, round((parameters - beside) / layer))
    matrices = round(layers * layer)
    return replace(shape, layers=layers, matrices=matrices, parameters=matrices + beside)


# From this length on, attention's table of probabilities costs more than a prompt for every response.
LONG = 1024
# At most this many logits at a time on a CPU (256 MiB in float32).
MOST_LOGITS = 1 << 26
BUCKET = 50_000_000  # elements gathered at a time; DeepSpeed's own half a billion is 2 GB of buffer
LIVE = 4 * BUCKET  # gathered elements that a pass of ZeRO 3 may keep beside the layer that it is in


def rounded_up(count: int) -> int:
    """The next of a few sizes, at most 1/16 larger (or 8 for small counts).

    oneDNN compiles a bfloat16 product for each new number of rows, which takes half a millisecond and up to a megabyte,
    more than the product itself in a small model.

    >>> [rounded_up(count) for count in (3, 33, 1000, 1025, 8000)]
    [8, 40, 1024, 1088, 8192]
    """
    step = max(8, 1 << max(0, (count - 1).bit_length() - 5))
    return -(-count // step) * step


def check_heads(heads: int, keys: int, size: int) -> None:
    """Raises UserError: `heads` query heads and `keys` key heads cannot be divided among `size` ranks."""
    if heads % size or (keys % size and size % keys):
        possible = [str(n) for n in (1, 2, 4, 8) if not (heads % n or (keys % n and n % keys))]
        raise UserError(
            f"training.fsdp.context_parallel is {size}, but the model has {heads} query heads and {keys} key heads, "
            f"which {size} ranks cannot divide: set it to {' or '.join(possible)}"
        )


def check_weights(folder: Path) -> None:
    """Raises UserError: a model folder without weights, or with pointers of Git LFS in their place."""
    files = sorted(folder.glob("*.safetensors"))
    if not files and not (folder / "reference.json").is_file():
        raise UserError(f"{folder}: no model folder with weights: it has no *.safetensors")
    for file in files:
        with file.open("rb") as stream:
            if stream.read(len(LFS_POINTER)) == LFS_POINTER:
                raise UserError(f"{file}: a pointer of Git LFS and no weights: run `git lfs pull` in {folder}")


def width_of(model: str) -> float | None:
    """The width of a model folder on this machine."""
    return _of_config(model, WIDTHS)


def positions_of(model: str) -> int | None:
    """The maximum length of prompt and response that a model folder on this machine allows, in tokens."""
    positions = _of_config(model, POSITIONS)
    return None if positions is None else int(positions)


def _of_config(model: str, names: tuple[str, ...]) -> float | None:
    """A number of config.json of a model folder on this machine, by the first name that it has; else None."""
    try:
        config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    config = config.get("text_config") or config
    return next((config[name] for name in names if config.get(name)), None)


def billions(model: str) -> float | None:
    """The size that the name of a model tells, in billions of parameters.

    >>> billions("Qwen/Qwen2.5-0.5B-Instruct"), billions("deepseek-math-7b-instruct"), billions("models/mine")
    (0.5, 7.0, None)
    """
    sizes = re.findall(r"(?<![\w.])(\d+(?:\.\d+)?)b(?![a-z])", model.lower())
    return float(sizes[-1]) if sizes else None
