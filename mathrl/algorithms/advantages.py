"""Advantages from rewards: of a group of responses, of their steps, of the whole batch.

Shapes: P groups (prompts) of G rewards each; S responses, K reasoning steps, N tokens of all responses.
"""

from typing import Literal

import torch
from torch import Tensor

from mathrl.algorithms.returns import discounted_returns

Kind = Literal["grpo", "dr_grpo", "rloo"]
WHITEN_EPS = 1e-8


def group_advantages(rewards_PG: Tensor, kind: Kind, *, ddof: int = 1, eps: float = 1e-6) -> Tensor:
    """One advantage per response, shared by all its tokens.

    - grpo: (r - mean) / (std + eps), GRPO (DeepSeekMath, arXiv:2402.03300, section 4.1.2). The paper
      names neither `ddof` nor `eps`; frameworks differ (TRL 1 and 1e-4, verl 1 and 1e-6, GRPO-Zero 0).
    - dr_grpo: r - mean, Dr.GRPO (arXiv:2503.20783, section 3.2).
    - rloo: r_i minus the mean of the others, RLOO (arXiv:2402.14740, equation 7); it equals
      G / (G - 1) (r - mean).

    A group whose rewards are all equal gets exactly 0, and so does a group of one.

    >>> group_advantages(torch.tensor([[1.0, 0.0, 0.0, 0.0]]), "grpo", eps=0.0)
    tensor([[ 1.5000, -0.5000, -0.5000, -0.5000]])
    >>> group_advantages(torch.tensor([[1.0, 0.0, 0.0, 0.0]]), "rloo")
    tensor([[ 1.0000, -0.3333, -0.3333, -0.3333]])

    Raises:
        ValueError: rewards are not [P, G].
    """
    if rewards_PG.dim() != 2 or rewards_PG.shape[1] < 1:
        raise ValueError(f"rewards must be [groups, responses], found {tuple(rewards_PG.shape)}")
    size = rewards_PG.shape[1]
    if size == 1:
        return torch.zeros_like(rewards_PG)
    centred_PG = rewards_PG - rewards_PG.mean(dim=1, keepdim=True)
    if kind == "grpo":
        advantages_PG = centred_PG / (rewards_PG.std(dim=1, keepdim=True, correction=ddof) + eps)
    elif kind == "rloo":
        advantages_PG = centred_PG * (size / (size - 1))
    else:
        advantages_PG = centred_PG
    # Rounding of the mean must not become an advantage (0.1 x 16 does not sum to 1.6).
    return advantages_PG.masked_fill(uniform_groups(rewards_PG)[:, None], 0.0)


def uniform_groups(rewards_PG: Tensor) -> Tensor:
    """True for the groups, [P], in which every response has the same reward."""
    return (rewards_PG == rewards_PG[:, :1]).all(dim=1)


def process_advantages(
    rewards_K: Tensor,
    response_K: Tensor,
    ends_K: Tensor,
    lengths_S: Tensor,
    *,
    mean: bool = False,
    ddof: int = 1,
    eps: float = 1e-6,
) -> Tensor:
    """Process supervision within one group: GRPO, DeepSeekMath (arXiv:2402.03300, section 4.1.3).

    The rewards of all steps of all the group's responses are normalised together, and a token's advantage is
    the sum of the normalised rewards of the steps that end at or after it: A_t = sum over end(k) >= t of
    (r_k - mean) / (std + eps). Equal rewards, a single step, or none give exactly 0. With `mean` it is the mean of
    these steps and not their sum, so that more steps do not make it larger.

    Two responses of 3 and 2 tokens; the first has steps that end at its tokens 0 and 2, the second one that
    ends at its token 1. Mean 1/3, and with ddof 0 std sqrt(2)/3:

    >>> process_advantages(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0, 0, 1]), torch.tensor([0, 2, 1]),
    ...                    torch.tensor([3, 2]), ddof=0, eps=0.0)
    tensor([ 0.7071, -0.7071, -0.7071, -0.7071, -0.7071])
    >>> process_advantages(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0, 0, 1]), torch.tensor([0, 2, 1]),
    ...                    torch.tensor([3, 2]), mean=True, ddof=0, eps=0.0)
    tensor([ 0.3536, -0.7071, -0.7071, -0.7071, -0.7071])

    Args:
        rewards_K: The reward of each step.
        response_K: The index of the response that the step belongs to.
        ends_K: The place of the step's last token in its response, from 0.

    Raises:
        ValueError: a step ends outside its response.
    """
    if bool(((ends_K < 0) | (ends_K >= lengths_S[response_K])).any()):
        raise ValueError("a step ends outside its response; step_ends count its tokens from 0")
    if not len(rewards_K):
        return torch.zeros(int(lengths_S.sum()), dtype=rewards_K.dtype)
    normalised_K = group_advantages(rewards_K[None], "grpo", ddof=ddof, eps=eps)[0]
    starts_S = lengths_S.cumsum(0) - lengths_S
    at_K, none_N = starts_S[response_K] + ends_K, torch.zeros(int(lengths_S.sum()), dtype=rewards_K.dtype)
    sums_N = discounted_returns(none_N.index_add(0, at_K, normalised_K), lengths_S, 1.0)
    if not mean:
        return sums_N
    counts_N = discounted_returns(none_N.index_add(0, at_K, torch.ones_like(normalised_K)), lengths_S, 1.0)
    return sums_N / counts_N.clamp(min=1)


def distillation_advantages(teacher_N: Tensor, logprobs_N: Tensor) -> Tensor:
    """log teacher - log policy of each sampled token: the one-sample gradient of the reverse KL's sum.

    On-policy distillation (arXiv:2306.13649 with the reverse KL; per token and without discount as in the
    Thinking Machines note of October 2025).

    >>> distillation_advantages(torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -0.5]))
    tensor([ 0.5000, -1.5000])
    """
    return teacher_N - logprobs_N


def whiten(values_N: Tensor, kept_N: Tensor, *, eps: float = WHITEN_EPS) -> Tensor:
    """(x - mean) / sqrt(variance + eps) over the kept tokens of the global batch, unbiased; 0 elsewhere.

    Every token counts once, so a long response weighs more than a short one (REINFORCE++,
    arXiv:2501.03262, section 3; verl's masked_whiten, whose eps this is). Equal values give exactly 0.

    >>> whiten(torch.tensor([1.0, 2.0, 3.0, 9.0]), torch.tensor([True, True, True, False]), eps=0.0)
    tensor([-1.,  0.,  1.,  0.])
    """
    kept = values_N[kept_N]
    if len(kept) < 2 or bool((kept == kept[0]).all()):
        return torch.zeros_like(values_N)
    white_N = (values_N - kept.mean()) / (kept.var(correction=1) + eps).sqrt()
    return white_N.masked_fill(~kept_N, 0.0)
