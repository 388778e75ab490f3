"""The KL of the policy to a reference, measured on a few of a step's groups where the loss has none."""

from collections.abc import Sequence
from typing import Any

import torch

from mathrl.algorithms.kl import kl_estimate
from mathrl.learners.distributed import Backend
from mathrl.models.logprobs import response_logprobs
from mathrl.models.lora import adapters_off
from mathrl.params.train import Rl
from mathrl.trainers.batch import for_all
from mathrl.trainers.rollouts import RolloutGroup


def probe_kl(groups: Sequence[RolloutGroup], reference: Any, params: Rl, backend: Backend) -> float:
    """Mean k3 a token of the first rl.kl_probe groups, from the sampler's log-probs; every process calls it.

    With adapters the policy itself is its reference, without them.
    """
    probe = groups[: params.kl_probe]
    sampler_N = torch.tensor([value for group in probe for row in group.logprobs for value in row])
    with adapters_off(reference):
        reference_N = for_all(
            lambda packed: response_logprobs(reference, packed, params.temperature)[0],
            reference,
            probe,
            params.tokens_per_microbatch,
            backend,
            "log-probs of the reference",
        )
    return float(kl_estimate(sampler_N, reference_N, "k3").mean())
