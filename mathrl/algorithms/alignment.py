"""The distance of the sampler's log-probs from the trainer's, and its correction by importance weights.

Shapes: S responses of the given lengths, N their tokens in order.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from mathrl.algorithms.aggregation import spread
from mathrl.algorithms.returns import response_sums

GAPS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # nats


def logprob_alignment(trainer_N: Tensor, sampler_N: Tensor, lengths_S: Tensor) -> Tensor:
    """(1/L) sum exp |trainer - sampler| of each response, [S].

    Its mean over the rollouts is 1 when they agree; a run with a mean above 1.05 is not trusted.

    >>> import torch
    >>> trainer, sampler = torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([-1.0, -2.0 + 0.6931, -3.0])
    >>> logprob_alignment(trainer, sampler, torch.tensor([2, 1]))
    tensor([1.5000, 1.0000])
    """
    return response_sums((trainer_N - sampler_N).abs().exp(), lengths_S) / lengths_S.clamp(min=1)


def gap_counts(trainer_N: Tensor, sampler_N: Tensor) -> Tensor:
    """The number of tokens whose log-probs differ by more than each of `GAPS`, [len(GAPS)]: a cumulative histogram.

    >>> gap_counts(torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([-1.0, -2.002, -3.5]))
    tensor([2., 2., 1., 1., 0.])
    """
    gap_N = (trainer_N - sampler_N).abs()
    return torch.stack([(gap_N > edge).float().sum() for edge in GAPS])  # no copy of the edges to a GPU


def gap_shares(counts: Sequence[float], tokens: float) -> dict[str, float]:
    """The counts as metrics: the share of tokens above each gap."""
    return {f"rollout/gap_above/{gap:g}": count / max(1.0, tokens) for gap, count in zip(GAPS, counts, strict=True)}


Kind = Literal["truncated", "masked"]
Level = Literal["token", "sequence"]
AnyLevel = Literal["token", "sequence", "geometric"]


def importance_weights(
    old_N: Tensor, sampler_N: Tensor, lengths_S: Tensor, kind: Kind, level: Level, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """Weights of the token losses, without a gradient, and which tokens keep their loss.

    The ratio is exp(old - sampler) of a token, or of a whole response (the product over its tokens, the same
    for each of them).

    - truncated: min(ratio, high), TIS (Yao et al. 2025, "Your efficient RL framework secretly brings you
      off-policy RL training"; verl takes 2, TRL 3). `low` is ignored.
    - masked: the ratio where it lies in [low, high]; elsewhere the token, or the whole response, has no loss
      and is not counted in any denominator (MIS; leaving it in the denominator shrinks the others).

    >>> ratio = torch.tensor([1.0, 4.0, 0.25])
    >>> importance_weights(ratio.log(), torch.zeros(3), torch.tensor([2, 1]), "truncated", "token", 0.5, 2.0)
    (tensor([1.0000, 2.0000, 0.2500]), tensor([True, True, True]))
    >>> importance_weights(ratio.log(), torch.zeros(3), torch.tensor([2, 1]), "masked", "sequence", 0.5, 4.5)
    (tensor([4., 4., 0.]), tensor([ True,  True, False]))
    """
    ratio_N = _ratios(old_N, sampler_N, lengths_S, level)
    if kind == "truncated":
        return ratio_N.clamp(max=high), torch.ones_like(ratio_N, dtype=torch.bool)
    kept_N = (ratio_N >= low) & (ratio_N <= high)
    return ratio_N.masked_fill(~kept_N, 0.0), kept_N


def _ratios(old_N: Tensor, sampler_N: Tensor, lengths_S: Tensor, level: AnyLevel) -> Tensor:
    """exp(old - sampler) of each token, or of its response: the product or the geometric mean over it, [N]."""
    gap_N = (old_N - sampler_N).detach()
    if level != "token":
        gap_S = response_sums(gap_N, lengths_S)
        gap_N = spread(gap_S / lengths_S.clamp(min=1) if level == "geometric" else gap_S, lengths_S)
    return gap_N.exp()


def within_bounds(
    old_N: Tensor, sampler_N: Tensor, lengths_S: Tensor, level: AnyLevel, low: float, high: float
) -> Tensor:
    """Which tokens keep their loss, [N]: those whose ratio of trainer to sampler lies in [low, high].

    At level sequence the ratio is the product over the response, at level geometric its geometric mean, which does not
    grow with the length (Li et al. 2025, "When Speed Kills Stability", Geo-RS). verl bounds the inverse ratio: its
    `seq_mean_k1` with 0.5_4 is geometric with low 1/4 and high 2 here.

    >>> ratio = torch.tensor([1.0, 4.0, 0.25])
    >>> within_bounds(ratio.log(), torch.zeros(3), torch.tensor([2, 1]), "geometric", 0.5, 2.1)
    tensor([ True,  True, False])
    """
    ratio_N = _ratios(old_N, sampler_N, lengths_S, level)
    return (ratio_N >= low) & (ratio_N <= high)


def without_veto(old_N: Tensor, sampler_N: Tensor, lengths_S: Tensor, least: float) -> Tensor:
    """Which tokens keep their loss, [N]: those of responses in which no token's ratio is below `least`.

    verl's veto (rollout_token_veto_threshold, 1e-4): one token that the trainer holds impossible spoils its response.

    >>> without_veto(torch.tensor([0.0, -9.5, 0.0]), torch.zeros(3), torch.tensor([2, 1]), 1e-4)
    tensor([False, False,  True])
    """
    spoiled_N = (_ratios(old_N, sampler_N, lengths_S, "token") < least).float()
    return spread(response_sums(spoiled_N, lengths_S) == 0, lengths_S)


def normalise_weights(weights_N: Tensor, lengths_S: Tensor, level: Level) -> Tensor:
    """Weights divided by their mean over the batch: over tokens, or at level sequence over responses.

    verl's rollout_is_batch_normalize: the step keeps its size, whatever the mismatch is. Where the mean is 0 they stay.

    >>> normalise_weights(torch.tensor([2.0, 2.0, 0.5]), torch.tensor([2, 1]), "sequence")  # the mean of 2 and 1/2
    tensor([1.6000, 1.6000, 0.4000])
    """
    per_response_S = response_sums(weights_N, lengths_S) / lengths_S.clamp(min=1)
    mean = weights_N.mean() if level == "token" else per_response_S[lengths_S > 0].mean()
    return weights_N / mean if float(mean) > 1e-8 else weights_N
