"""The KL of the policy to a reference, measured on a few of a step's groups where the loss has none."""

from collections.abc import Sequence
from typing import Any

from mathrl.algorithms.kl import kl_estimate
from mathrl.learners.distributed import Ranks
from mathrl.models.lora import adapters_off
from mathrl.params.loss import KlProbe
from mathrl.params.train import Rl
from mathrl.trainers.batch import group_logprobs, old_logprobs
from mathrl.trainers.rollouts import RolloutGroup


def probe_kl(groups: Sequence[RolloutGroup], reference: Any, params: Rl, ranks: Ranks) -> float:
    """Mean k3 per token of the first rl.kl.groups groups, from the sampler's log-probs; every rank calls it.

    With adapters the reference is the policy itself without them.
    """
    assert isinstance(params.kl, KlProbe)
    probe = groups[: params.kl.groups]
    sampler_N = old_logprobs(probe)
    with adapters_off(reference):
        reference_N = group_logprobs(reference, "reference", probe, params, ranks)
    return float(kl_estimate(sampler_N, reference_N, "k3").mean())
