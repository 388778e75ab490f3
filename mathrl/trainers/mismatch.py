"""What is done when the sampler's log-probs are too far from the trainer's."""

import sys
from collections.abc import Mapping

from mathrl.core.errors import UserError
from mathrl.params.rollout import Rollout

ALIGNMENT, CANARY = "rollout/logprob_alignment", "rollout/canary_alignment"


def check_mismatch(row: Mapping[str, float], rollout: Rollout, step: int) -> None:
    """Warn or stop where the mean of exp |log-prob difference| over a step's roll-outs is above the limit.

    Where the roll-outs are of older weights (`rollout/lag`) the policy's own change is in that figure; the
    probe's after the last sync, which has none of it, is judged then.

    Raises:
        UserError: it is above, and `rollout.on_mismatch` is stop.
    """
    name = CANARY if row.get("rollout/lag") else ALIGNMENT
    value = row.get(name, 1.0)
    if value <= rollout.mismatch_limit:
        return
    said = (
        f"step {step}: {name} is {value:.4f}, above rollout.mismatch_limit {rollout.mismatch_limit:g}: the "
        "sampler's log-probs are far from the trainer's"
    )
    if rollout.on_mismatch == "stop":
        raise UserError(
            f"{said}; bring their precisions closer (rollout.vllm.dtype, model.precision), correct for it "
            "(rl.importance), or set rollout.on_mismatch to warn"
        )
    print(f"warning: {said}", file=sys.stderr, flush=True)
