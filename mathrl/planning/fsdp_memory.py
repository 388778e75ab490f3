"""What the FSDP backend holds in a process, and what it gathers meanwhile. P parameters, N processes."""

from mathrl.models.shapes import ModelShape
from mathrl.params.advantage import Critic
from mathrl.params.schema import Params
from mathrl.params.train import Rl, Sft
from mathrl.planning.memory_states import Parts, adam_share, bytes_of, trainable


def fully_sharded(shape: ModelShape, section: Rl | Sft | Critic, params: Params, name: str) -> Parts:
    """A model that learns: float32 weights, gradients and optimizer states, all divided.

    With AdamW that is 16 P / N, with Muon 12 P / N for its matrices. Adapters (LoRA) are whole in every process; the
    frozen weights beside them have the model's precision and are divided.
    """
    count, adam = trainable(shape, section.lora), adam_share(shape, section.optimizer, section.lora)
    shards, size = params.run.processes, bytes_of(params)
    if section.lora is None:
        weights, divided = 4.0 * count / shards, shards
    else:
        masters = 4.0 * count if size == 2.0 else 0.0
        weights, divided = size * (shape.parameters / shards + count) + masters, 1
    return {
        f"{name}: weights": weights,
        f"{name}: gradients": 4.0 * count / divided,
        f"{name}: optimizer states": (8.0 * adam + 4.0 * (count - adam)) / divided,
    }


def gathered_in_a_pass(shape: ModelShape, params: Params, *, learns: bool) -> Parts:
    """The weights that are whole at a time: those of a layer and of the next one, and a tied embedding.

    An update also has the gradient of a layer, and its float32 copy that is summed over the ranks.
    """
    layer, size = shape.matrices / shape.layers, bytes_of(params)
    apart = 0.0 if shape.tied else float(shape.head)
    gathered = layer + max(layer, apart) + (shape.head if shape.tied else 0)
    parts = {"gathered weights (FSDP)": size * gathered}
    if learns:
        parts["gradients on their way to their ranks"] = (size + 4.0) * max(layer, float(shape.head))
    return parts
