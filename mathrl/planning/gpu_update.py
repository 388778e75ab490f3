"""Memory of one micro-batch on a GPU in bfloat16, by part: the largest of the three moments that can be its peak.

tests/planning/test_gpu_update.py counts every tensor of a forward and backward pass of each preset and compares.

Symbols: T tokens, D width, I width of the MLP, H and K query and key heads of width d, V vocabulary.
"""

from mathrl.models.limits import MOST_LOGITS, rounded_up
from mathrl.models.shapes import ModelShape
from mathrl.planning.memory_states import Parts


def gpu_update(
    shape: ModelShape,
    tokens: int,
    gpu_memory: float,
    *,
    recomputed: bool,
    trains_head: bool = True,
    gradient_bytes: float = 4.0,
    tables: float = 2.0,
) -> Parts:
    """Activations, logits and new gradients of T tokens at the moment when they are most.

    Per layer and token autograd keeps, in bfloat16: inputs and outputs of two norms 8 D; query, key, value and
    attention's output 4 (H + K) d, and a float32 number per head; gate, up and SwiGLU's output 6 I. Flash
    attention keeps no probabilities at any length. If they are `recomputed`, one layer is kept, and 2 D for the input
    of every layer. The second copies of a shared prompt's keys and values are not counted.

    Args:
        gpu_memory: in bytes; it sets how many logits exist at a time (`mathrl.models.head.most_logits`).
        trains_head: no with adapters; the head's and the embedding's gradients then do not exist.
        gradient_bytes: of a new gradient: 4 in the torch learner, which adds in float32; DeepSpeed takes the weight's.
        tables: of logits in float32 that exist at a time: 2.5 with a gradient of the entropy (rl.entropy_coef).
    """
    packed = rounded_up(tokens)
    heads = (shape.heads + shape.key_heads) * shape.head_width
    layer = packed * (8.0 * shape.width + 4.0 * heads + 4.0 * shape.heads + 6.0 * shape.mlp)
    inputs = 2.0 * packed * shape.width * shape.layers
    kept = {"activations: inputs of the layers": inputs} if recomputed else {"activations": layer * shape.layers}
    head = float(shape.head) if trains_head else 0.0
    table = _table(shape, tokens, gpu_memory)
    product = 2 * head + table / 2  # of slopes and hidden states: the head's gradient in bfloat16
    embedding = (gradient_bytes if shape.tied else 0.0) * head  # the head's part, until the embedding's comes
    moments: list[Parts] = [
        {
            **kept,
            "activations: after the last layer": 6.0 * packed * shape.width,
            "logits": max(tables * table, product),
            "gradient of the head": 4.0 * head,
        },
        {
            **kept,
            **({"activations: one layer": layer} if recomputed else {}),
            "temporary tensors of a layer": 4.0 * packed * shape.mlp,
            "gradient of the head": embedding,
        },
        {"gradients of head and embedding": (3 * gradient_bytes if shape.tied else 2 + gradient_bytes) * head},
    ]
    return max(moments, key=lambda parts: sum(parts.values()))


def gpu_scoring(shape: ModelShape, tokens: int, gpu_memory: float) -> Parts:
    """Activations and logits of a pass of T tokens without a gradient: inside one layer, or at the logits."""
    packed = rounded_up(tokens)
    heads = (shape.heads + shape.key_heads) * shape.head_width
    moments: list[Parts] = [
        {"activations: one layer": packed * max(4.0 * shape.width + 6.0 * shape.mlp, 6.0 * shape.width + 4.0 * heads)},
        {"hidden states": 4.0 * packed * shape.width, "logits": 2 * _table(shape, tokens, gpu_memory)},
    ]
    return max(moments, key=lambda parts: sum(parts.values()))


def _table(shape: ModelShape, tokens: int, gpu_memory: float) -> float:
    """Bytes of a table of logits in float32, of all tokens or of a slice of them."""
    return 4.0 * min(tokens * shape.vocabulary, max(MOST_LOGITS, gpu_memory / 256))
