"""Returns and advantages from token rewards, by a scan from each response's end; the critic's loss.

Shapes: S responses of the given lengths, padded to L; N their tokens in order.
"""

import torch
from torch import Tensor


def token_rewards(rewards_S: Tensor, lengths_S: Tensor, penalty_N: Tensor | None = None) -> Tensor:
    """A response's reward at its last token, minus a penalty at every token (beta times the KL): [N].

    KL in the reward (arXiv:1909.08593, equation 2): r_t = -beta (log policy - log reference), plus the
    terminal reward at the last token.

    >>> token_rewards(torch.tensor([1.0, 0.0]), torch.tensor([2, 1]), torch.tensor([0.1, 0.2, 0.3]))
    tensor([-0.1000,  0.8000, -0.3000])
    """
    rewards_N = torch.zeros(int(lengths_S.sum()), dtype=rewards_S.dtype)
    if penalty_N is not None:
        rewards_N = rewards_N - penalty_N
    return rewards_N.index_add(0, lengths_S.cumsum(0) - 1, rewards_S)


def response_sums(values_N: Tensor, lengths_S: Tensor) -> Tensor:
    """The sum over each response's tokens, [S]; 0 for a response without tokens.

    >>> response_sums(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([2, 1]))
    tensor([3., 4.])
    """
    owner_N = torch.repeat_interleave(lengths_S, output_size=len(values_N))  # the size, lest a GPU's host wait for it
    return values_N.new_zeros(len(lengths_S)).index_add(0, owner_N, values_N)


def discounted_returns(rewards_N: Tensor, lengths_S: Tensor, gamma: float) -> Tensor:
    """R_t = r_t + gamma R_(t+1) within each response, 0 after its last token.

    >>> discounted_returns(torch.tensor([1.0, 0.0, 2.0, 5.0]), torch.tensor([3, 1]), 0.5)
    tensor([1.5000, 1.0000, 2.0000, 5.0000])
    """
    rewards_SL, real_SL = pad(rewards_N, lengths_S)
    returns_SL = torch.zeros_like(rewards_SL)
    later_S = torch.zeros_like(rewards_SL[:, 0])
    for column in reversed(range(rewards_SL.shape[1])):
        later_S = rewards_SL[:, column] + gamma * later_S
        returns_SL[:, column] = later_S
    return returns_SL[real_SL]


def gae(
    rewards_N: Tensor, values_N: Tensor, lengths_S: Tensor, gamma: float, lam: float | Tensor
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimates (arXiv:1506.02438, equation 16) and the critic's targets.

    Backwards over each response: delta_t = r_t + gamma V_(t+1) - V_t and A_t = delta_t + gamma lam A_(t+1),
    with V = A = 0 after the last token, also of a truncated response. The targets are A + V, from
    these advantages before any whitening. `lam` is one number, or one per response, [S].

    One response of two tokens, gamma 0.5 and lam 0.5: delta = 0 + 0.5 * 2 - 1 = 0 and 3 - 2 = 1, so
    A = 0 + 0.25 * 1 and 1, and the targets are 1.25 and 3.

    >>> gae(torch.tensor([0.0, 3.0]), torch.tensor([1.0, 2.0]), torch.tensor([2]), 0.5, 0.5)
    (tensor([0.2500, 1.0000]), tensor([1.2500, 3.0000]))

    Returns:
        advantages_N and returns_N.
    """
    (rewards_SL, real_SL), (values_SL, _) = pad(rewards_N, lengths_S), pad(values_N, lengths_S)
    advantages_SL = torch.zeros_like(rewards_SL)
    later_S = torch.zeros_like(rewards_SL[:, 0])
    value_after_S = torch.zeros_like(later_S)
    for column in reversed(range(rewards_SL.shape[1])):
        # Padding is zero and on the right, so its deltas and advantages are 0.
        delta_S = rewards_SL[:, column] + gamma * value_after_S - values_SL[:, column]
        later_S = delta_S + gamma * lam * later_S
        value_after_S = values_SL[:, column]
        advantages_SL[:, column] = later_S
    advantages_N = advantages_SL[real_SL]
    return advantages_N, advantages_N + values_N


def length_lambdas(lengths_S: Tensor, alpha: float) -> Tensor:
    """The lambda of each response by its number of tokens l: 1 - 1 / (alpha l), at least 0, [S].

    VAPO's length-adaptive GAE (arXiv:2504.05118, section 4.2): the weights of the errors to come, 1 + lam + lam^2 + …,
    sum to alpha l, so that the end of a long response reaches its beginning. The paper takes alpha 0.05 for thousands
    of tokens, and does not say what a response of less than 1 / alpha has; here it is 0.

    >>> length_lambdas(torch.tensor([10, 40, 2000]), 0.05)
    tensor([0.0000, 0.5000, 0.9900])
    """
    return (1 - 1 / (alpha * lengths_S)).clamp(min=0)


def pad(values_N: Tensor, lengths_S: Tensor) -> tuple[Tensor, Tensor]:
    """[N] → [S, L] with zeros on the right, and the mask of the tokens; L is at least 1.

    >>> pad(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1, 2]))[0]
    tensor([[1., 0.],
            [2., 3.]])
    """
    longest = max(1, int(lengths_S.max()) if len(lengths_S) else 1)
    real_SL = torch.arange(longest)[None] < lengths_S[:, None]
    values_SL = torch.zeros(len(lengths_S), longest, dtype=values_N.dtype)
    values_SL[real_SL] = values_N
    return values_SL, real_SL


def clipped_value_loss(
    values_N: Tensor, old_values_N: Tensor, returns_N: Tensor, clip: float | None
) -> tuple[Tensor, Tensor]:
    """1/2 max((V - R)^2, (V' - R)^2) with V' = V clamped to `clip` around the old value, per token.

    PPO's implementation (arXiv:2005.12729, section 3); without `clip`, 1/2 (V - R)^2.

    >>> clipped_value_loss(torch.tensor([1.0, 0.1]), torch.zeros(2), torch.tensor([1.0, 1.0]), 0.2)
    (tensor([0.3200, 0.4050]), tensor([ True, False]))

    Returns:
        loss_N, and clipped_N: True where the clipped branch was taken, so that the gradient is 0.
    """
    free_N = (values_N - returns_N).square()
    if clip is None:
        return free_N / 2, torch.zeros_like(free_N, dtype=torch.bool)
    # Not old + clamp(difference), whose rounding would count as clipped.
    kept_N = values_N.clamp(old_values_N - clip, old_values_N + clip)
    bound_N = (kept_N - returns_N).square()
    return torch.maximum(free_N, bound_N) / 2, bound_N.detach() > free_N.detach()


def explained_variance(values_N: Tensor, returns_N: Tensor) -> float:
    """1 - Var(R - V) / Var(R): 1 is perfect, 0 as good as a constant, below 0 worse; 0 if R differs by rounding only.

    >>> explained_variance(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0.0, 2.0, 4.0]))
    0.916...
    >>> explained_variance(torch.tensor([0.5, 0.1, 0.7]), torch.tensor([1.0, 1.0, 1.0000001]))
    0.0
    """
    if not len(returns_N):
        return 0.0
    total = float(returns_N.var(correction=0))
    rounding = 8 * torch.finfo(returns_N.dtype).eps * float(returns_N.abs().max())
    if total <= rounding**2:
        return 0.0
    return 1.0 - float((returns_N - values_N).var(correction=0)) / total
