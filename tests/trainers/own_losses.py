"""Losses and advantages as a user writes them, right ones and wrong ones, for test_own_functions.py."""

import torch
from torch import Tensor

from mathrl.algorithms.own_functions import AdvantageInput, LossInput


def clipped(tokens: LossInput, *, low: float = 0.2, high: float = 0.28) -> tuple[Tensor, Tensor]:
    """PPO's, as rl.loss=clip."""
    ratio_N = (tokens.logprobs_N - tokens.old_logprobs_N).clamp(-20, 20).exp()
    free_N = -ratio_N * tokens.advantages_N
    bound_N = -ratio_N.clamp(1 - low, 1 + high) * tokens.advantages_N
    return torch.maximum(free_N, bound_N), bound_N.detach() > free_N.detach()


def by_response(tokens: LossInput) -> Tensor:
    """GSPO's ratio of the whole response, with its gradient through each token."""
    mean_N = tokens.mean_per_response(tokens.logprobs_N - tokens.old_logprobs_N)
    now_N = tokens.logprobs_N
    return -(mean_N.detach() + now_N - now_N.detach()).clamp(-20, 20).exp() * tokens.advantages_N


def unclamped(tokens: LossInput) -> Tensor:
    return -((tokens.logprobs_N - tokens.old_logprobs_N) * 10).exp() * tokens.advantages_N


def one_number(tokens: LossInput) -> Tensor:
    return clipped(tokens)[0].mean()


def detached(tokens: LossInput) -> Tensor:
    return clipped(tokens)[0].detach()


def blind(tokens: LossInput) -> Tensor:
    return tokens.entropies_N * tokens.advantages_N


def wrong_sign(tokens: LossInput) -> Tensor:
    return -clipped(tokens)[0]


def with_entropy(tokens: LossInput) -> Tensor:
    return clipped(tokens)[0] + 0.01 * (tokens.logprobs_N - tokens.old_logprobs_N - 1) ** 2


def normalised(tokens: LossInput) -> Tensor:
    return clipped(tokens)[0] / tokens.advantages_N.abs().mean().clamp(min=0.01)


def of_masked(tokens: LossInput) -> Tensor:
    sums_S = torch.zeros(len(tokens.lengths_S)).index_add(0, tokens.numbers_N, tokens.logprobs_N.detach())
    return clipped(tokens)[0] * sums_S.abs()[tokens.numbers_N]


def random(tokens: LossInput) -> Tensor:
    return clipped(tokens)[0] * (1 + torch.rand(1))


def raises(tokens: LossInput) -> Tensor:
    return tokens.logprobs_N / {"one": 1}["two"]


def group_mean(responses: AdvantageInput, *, scale: bool = False) -> Tensor:
    """Dr.GRPO's, or with `scale` GRPO's."""
    centred_S = responses.rewards_S - responses.mean_per_group(responses.rewards_S)
    if not scale:
        return centred_S
    sizes_S = torch.bincount(responses.groups_S)[responses.groups_S]
    spread_S = (responses.mean_per_group(centred_S**2) * sizes_S / (sizes_S - 1)).sqrt()
    return centred_S / (spread_S + 1e-6)


def per_token(responses: AdvantageInput) -> Tensor:
    return group_mean(responses).repeat_interleave(responses.lengths_S)


def divided_by_zero(responses: AdvantageInput) -> Tensor:
    centred_S = group_mean(responses)
    return centred_S / responses.mean_per_group(centred_S**2).sqrt()


def by_place(responses: AdvantageInput) -> Tensor:
    return responses.rewards_S * torch.arange(len(responses.rewards_S))


def too_few(responses: AdvantageInput) -> Tensor:
    return responses.rewards_S[:-1]
