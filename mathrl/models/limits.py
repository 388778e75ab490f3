"""How much a model takes at a time; both the passes and the plan of their memory go by it, the plan without torch."""

from mathrl.core.errors import UserError

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
