"""Losses on preferences and on labelled steps. Shapes: P pairs, M steps."""

from torch import Tensor
from torch.nn import functional as F


def dpo_loss(
    chosen_P: Tensor,
    rejected_P: Tensor,
    reference_chosen_P: Tensor,
    reference_rejected_P: Tensor,
    beta: float,
    label_smoothing: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Direct preference optimisation (Rafailov et al., arXiv:2305.18290, equation 7).

    The margin is beta ((log pi - log ref)(chosen) - (log pi - log ref)(rejected)), the loss is
    -log sigmoid(margin).
    `label_smoothing` is the probability that a pair's labels are swapped; the loss is the expectation over both orders.

    Args:
        chosen_P, rejected_P: Summed log-probs of the responses (or means per token) under the policy.
        reference_chosen_P, reference_rejected_P: The same under the reference, without a gradient.

    Returns:
        loss_P and margin_P.

    >>> import torch
    >>> dpo_loss(*torch.tensor([[-1.0], [-3.0], [-2.0], [-2.0]]), beta=0.5)  # 0.5 (1 + 1) = 1
    (tensor([0.3133]), tensor([1.]))
    """
    margin_P = beta * ((chosen_P - reference_chosen_P) - (rejected_P - reference_rejected_P))
    loss_P = -(1 - label_smoothing) * F.logsigmoid(margin_P) - label_smoothing * F.logsigmoid(-margin_P)
    return loss_P, margin_P


def bradley_terry_loss(chosen_P: Tensor, rejected_P: Tensor) -> Tensor:
    """-log sigmoid(score of chosen - score of rejected) (Ouyang et al., arXiv:2203.02155, equation 1).

    >>> import torch
    >>> bradley_terry_loss(torch.tensor([2.0, 0.0]), torch.tensor([1.0, 0.0]))
    tensor([0.3133, 0.6931])
    """
    return -F.logsigmoid(chosen_P - rejected_P)


def step_loss(scores_M: Tensor, labels_M: Tensor) -> Tensor:
    """Binary cross-entropy of sigmoid(score) to a label between 0 and 1 (Math-Shepherd, arXiv:2312.08935).

    >>> import torch
    >>> step_loss(torch.tensor([0.0, 2.0]), torch.tensor([0.25, 1.0]))
    tensor([0.6931, 0.1269])
    """
    return F.binary_cross_entropy_with_logits(scores_M, labels_M, reduction="none")
