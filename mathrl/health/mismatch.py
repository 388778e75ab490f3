"""A warning, or the end of the run, when the sampler's log-probs are too far from the trainer's."""

import math
import sys
from collections.abc import Mapping

from mathrl.core.environment import rank
from mathrl.core.errors import UserError
from mathrl.params.rollout import Rollout

ALIGNMENT, CANARY, LAG = "rollout/logprob_alignment", "rollout/canary_alignment", "rollout/lag"


def check_mismatch(row: Mapping[str, float], rollout: Rollout, step: int, warned: float = 1.0) -> float:
    """Warn or stop if the mean of exp |log-prob difference| over a step's rollouts is above the limit.

    `warned` is the value of the last warning, 1 for none; the return value is that of the next step. The warning is
    repeated once the distance from 1 has doubled; a notice follows when the value is within half the limit again.

    Raises:
        UserError: the value is above the limit and `rollout.on_mismatch` is stop.
    """
    name = alignment_metric(row)
    value = row.get(name, 1.0)
    if value <= rollout.mismatch_limit:
        if warned > 1 and value <= (1 + rollout.mismatch_limit) / 2:
            print_once(f"step {step}: {name} is back within the limit ({value:.4f})")
            return 1.0
        return warned
    warning = (
        f"step {step}: {name} is {value:.4f}, above rollout.mismatch_limit {rollout.mismatch_limit:g}: the "
        "sampler's log-probs are far from the trainer's"
    )
    if rollout.on_mismatch == "stop":
        raise UserError(
            f"{warning}; bring their precisions closer (rollout.vllm.dtype, model.precision), correct for it "
            "(rl.importance), or set rollout.on_mismatch to warn"
        )
    value = math.inf if math.isnan(value) else value
    if value - 1 <= 2 * (warned - 1):
        return warned
    print_once(f"warning: {warning}; next warning if it doubles")
    return value


def alignment_metric(row: Mapping[str, float]) -> str:
    """The metric that measures the distance of sampler and trainer in a step.

    That of the probe after the last sync where the rollouts' own cannot serve: it includes the policy's change where
    older weights sampled (`rollout/lag`), and is missing where no response had a gradient (uniform groups, warm-up of
    the critic).
    """
    return CANARY if row.get(LAG) or ALIGNMENT not in row else ALIGNMENT


def print_once(text: str) -> None:
    """Print at rank 0 alone: every rank checks the same value."""
    if rank() == 0:
        print(text, file=sys.stderr, flush=True)
