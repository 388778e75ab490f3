"""What is done when the sampler's log-probs are too far from the trainer's."""

import math
import sys
from collections.abc import Mapping

from mathrl.core.errors import UserError
from mathrl.core.launch import rank
from mathrl.params.rollout import Rollout

ALIGNMENT, CANARY = "rollout/logprob_alignment", "rollout/canary_alignment"


def check_mismatch(row: Mapping[str, float], rollout: Rollout, step: int, said: float = 1.0) -> float:
    """Warn or stop where the mean of exp |log-prob difference| over a step's roll-outs is above the limit.

    A warning is not repeated: `said` is the value that was last warned of, 1 for none, and what is returned
    is for the next step. There is another once the distance from 1 has doubled, and a line when the value is
    back within the limit by half.

    Raises:
        UserError: it is above, and `rollout.on_mismatch` is stop.
    """
    name = judged(row)
    value = row.get(name, 1.0)
    if value <= rollout.mismatch_limit:
        if said > 1 and value <= (1 + rollout.mismatch_limit) / 2:
            tell(f"step {step}: {name} is {value:.4f}, well again")
            return 1.0
        return said
    warning = (
        f"step {step}: {name} is {value:.4f}, above rollout.mismatch_limit {rollout.mismatch_limit:g}: the "
        "sampler's log-probs are far from the trainer's"
    )
    if rollout.on_mismatch == "stop":
        raise UserError(
            f"{warning}; bring their precisions closer (rollout.vllm.dtype, model.precision), correct for it "
            "(rl.importance), or set rollout.on_mismatch to warn"
        )
    far = math.inf if math.isnan(value) else value
    if far - 1 <= 2 * (said - 1):
        return said
    tell(f"warning: {warning}; said again if it doubles")
    return far


def judged(row: Mapping[str, float]) -> str:
    """The metric that says how far apart sampler and trainer are.

    Where the roll-outs are of older weights (`rollout/lag`) the policy's own change is in their alignment,
    and where no response had a gradient (uniform groups, the critic's warm-up) there is none: then it is that
    of the probe after the last sync.
    """
    return CANARY if row.get("rollout/lag") or ALIGNMENT not in row else ALIGNMENT


def tell(text: str) -> None:
    """Every process judges the same figure; one of them says so."""
    if rank() == 0:
        print(text, file=sys.stderr, flush=True)
