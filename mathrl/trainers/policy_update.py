"""The gradient of one policy update over the global batch, and the figures of a step's updates.

Shapes: P groups of G responses in the global batch, S responses of a micro-batch, N response tokens of it, K tokens of
a teacher at each.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from mathrl.algorithms.aggregation import spread, token_weights
from mathrl.algorithms.alignment import GAPS, gap_counts, gap_shares, logprob_alignment
from mathrl.algorithms.divergences import teacher_divergence
from mathrl.algorithms.exploration import covariances, covariances_within, highest_covariances, highest_entropies
from mathrl.algorithms.imitation import imitation_weights, phi_weights, shaped_loss
from mathrl.algorithms.kl import kl_estimate, unbiased_kl
from mathrl.algorithms.own_functions import LossInput, OwnFunction
from mathrl.algorithms.policy_loss import Clip, policy_loss
from mathrl.algorithms.trust_regions import log_ratio, near_policy, squared_log_ratio
from mathrl.core.hashing import derive_seed
from mathrl.core.statistics import sum_in_order
from mathrl.learners.learner import Learner
from mathrl.learners.micro_batches import Figures, TokenBudget, add_gradient, attempts, reduce_figures
from mathrl.models.device import to_device
from mathrl.models.kernels import attention_kernel
from mathrl.models.logprobs import response_logprobs
from mathrl.models.top_tokens import candidate_logprobs
from mathrl.params.imitation import Luffy, SftTerm, coef_of
from mathrl.params.loss import (
    Cispo,
    ClipCov,
    DppoKl,
    DppoTv,
    FunctionLoss,
    Gmpo,
    Gspo,
    Jsd,
    KlCov,
    Loss,
    LossKl,
    PpoClip,
    Sapo,
    TeacherLoss,
)
from mathrl.params.train import Rl
from mathrl.trainers.batch import Batch


@dataclass(frozen=True)
class UpdateFigures:
    """Sums over the tokens of an update; `alignment` is a sum over `responses`, `gaps` are counts of tokens."""

    loss: float = 0.0
    kl: float = 0.0
    entropy: float = 0.0
    clipped: float = 0.0
    left_out: float = 0.0
    ratio: float = 0.0
    alignment: float = 0.0
    responses: float = 0.0
    tokens: float = 0.0
    trained: float = 0.0
    likelihood: float = 0.0
    imitated: float = 0.0
    ratio_max: float = 0.0
    student_mass: float = 0.0
    gaps: list[float] = field(default_factory=lambda: [0.0] * len(GAPS))

    @property
    def mean_ratio(self) -> float:
        return self.ratio / self.tokens if self.tokens else 1.0


@dataclass
class StepFigures:
    """The figures of a step's updates; `dropped` counts those that were not made, their mean ratio being too large."""

    updates: list[UpdateFigures] = field(default_factory=list)
    norm: float = 0.0
    dropped: int = 0

    def add(self, figures: UpdateFigures, norm: float, dropped: bool = False) -> None:
        self.updates.append(figures)
        self.norm += norm
        self.dropped += dropped

    def metrics(self, params: Rl) -> dict[str, float]:
        """Means per token of the trained groups, under the field's names; no figure where none was measured.

        The alignment is that of the first update: later ones train other weights than those that sampled.
        """
        if not self.updates:
            return {}
        count, first = len(self.updates), self.updates[0]
        tokens = sum_in_order(update.tokens for update in self.updates)
        metrics = {
            "actor_loss": sum_in_order(update.loss for update in self.updates) / count,
            "grad_norm": self.norm / count,
            "trained_tokens": sum_in_order(update.trained for update in self.updates),
        }
        if first.responses:
            metrics["rollout/logprob_alignment"] = first.alignment / first.responses
        if tokens:  # where no group has a gradient there was no forward pass, and a 0 would be no measurement
            metrics |= {
                "entropy": sum_in_order(update.entropy for update in self.updates) / tokens,
                "clip_fraction": sum_in_order(update.clipped for update in self.updates) / tokens,
                "ratio/mean": sum_in_order(update.ratio for update in self.updates) / tokens,
                "ratio/max": max(update.ratio_max for update in self.updates),
            }
            if isinstance(params.kl, LossKl) and params.kl.coef:
                metrics["kl"] = sum_in_order(update.kl for update in self.updates) / tokens
            if isinstance(params.loss, TeacherLoss):
                mass = sum_in_order(update.student_mass for update in self.updates)
                metrics["distillation/student_mass"] = mass / tokens
            if params.loss.leaves_out:
                metrics["left_out_share"] = sum_in_order(update.left_out for update in self.updates) / tokens
        if imitated := sum_in_order(update.imitated for update in self.updates):
            metrics["imitation/nll"] = -sum_in_order(update.likelihood for update in self.updates) / imitated
        if params.loss.drop_ratio is not None:
            metrics["dropped_minibatches"] = float(self.dropped)
        if count > 1:
            # Mean number of updates between sampling and training.
            metrics["rollout/staleness"] = (count - 1) / 2
        return metrics

    def mismatch(self) -> dict[str, float]:
        """How far the sampler's log-probs are from the trainer's, as a histogram of the first update."""
        measured = bool(self.updates) and self.updates[0].tokens > 0
        return gap_shares(self.updates[0].gaps, self.updates[0].tokens) if measured else {}


def minibatches(batch: Batch, params: Rl, seed: int, step: int) -> Iterator[Batch]:
    """The parts of the batch that a step's updates are made with, epoch after epoch."""
    for epoch in range(params.epochs):
        parts = partition(len(batch.groups), params.minibatches, derive_seed(seed, "split", step, epoch))
        for number, numbers in enumerate(parts):
            yield choose_tokens(batch.part(numbers), params, derive_seed(seed, "tokens", step, epoch, number))


def choose_tokens(batch: Batch, params: Rl, seed: int) -> Batch:
    """The mini-batch with the tokens that rl.loss leaves out or holds back, by the log-probs before the step's updates.

    So they are the same however the mini-batch is cut. verl and TRL choose in each micro-batch by the log-probs of the
    moment, which are these at the first update.
    """
    loss, kept_N = params.loss, batch.kept_N
    left_out_N, held_N = None, None
    if loss.top_entropy is not None and batch.entropies_N is not None:
        left_out_N = ~highest_entropies(batch.entropies_N, kept_N, loss.top_entropy)
    if isinstance(loss, ClipCov | KlCov):
        covariances_N = covariances(batch.old_N, batch.advantages_N, kept_N)
        if isinstance(loss, KlCov):
            held_N = highest_covariances(covariances_N, loss.share)
        else:
            bounds, generator = (loss.covariance_low, loss.covariance_high), torch.Generator().manual_seed(seed)
            chosen_N = covariances_within(covariances_N, loss.share, *bounds, generator)
            left_out_N = chosen_N if left_out_N is None else left_out_N | chosen_N
    return replace(batch, left_out_N=left_out_N, held_N=held_N)


def partition(groups: int, parts: int, seed: int) -> list[list[int]]:
    """Group numbers in `parts` seeded parts; one part keeps their order."""
    if parts == 1:
        return [list(range(groups))]
    order = torch.randperm(groups, generator=torch.Generator().manual_seed(seed)).tolist()
    return [order[part::parts] for part in range(parts)]


def update_gradient(policy: Learner, params: Rl, batch: Batch, kl_coef: float) -> UpdateFigures:
    """Fill the policy's gradients with this rank's part of that of the global batch's loss; its figures.

    Each rank takes groups of about equal numbers of tokens. Groups in which all advantages are 0 have no
    gradient: they get no forward pass where nothing but the surrogate is in the loss; the denominators count
    them all the same.
    """
    weights_S = token_weights(batch.counted_S, params.loss.aggregation, params.max_tokens)
    imitation_S = None
    if batch.imitated_S is not None:
        imitation_S = imitation_weights(batch.imitated_S, batch.lengths_S, coef_of(params.imitation))
        weights_S = weights_S * (1 - coef_of(params.imitation)) if isinstance(params.imitation, SftTerm) else weights_S
    kernel, loss_of = attention_kernel(policy.model), policy.through_root(micro_batch_loss)
    for attempt in attempts(TokenBudget(policy.ranks, params.tokens_per_microbatch, "rl")):
        with attempt as budget:
            cut, figures = (
                replace(batch, weights_S=weights_S, imitation_S=imitation_S).cut(budget.tokens, kernel),
                list[Figures](),
            )
            for micro, counts in policy.micro_batches(cut.sizes(kernel), budget.tokens, trained_groups(cut, params)):
                figures += add_gradient(
                    policy.backward, loss_of(policy.model, cut.part(micro), params, kl_coef), counts
                )
    totals: dict[str, Any] = {name: total.tolist() for name, total in reduce_figures(figures, policy.ranks).items()}
    return UpdateFigures(**totals)


def trained_groups(batch: Batch, params: Rl) -> list[int]:
    """The numbers of the groups that get a forward pass."""
    loss = params.loss
    # Terms of the loss that need no advantage; and the entropy that a controller steers by is that of all groups.
    beside = loss.entropy_coef or loss.log_ratio_penalty or loss.entropy_controller is not None
    beside = beside or isinstance(loss, TeacherLoss)
    if not params.loss.skip_zero_variance or batch.reference_N is not None or beside:
        return list(range(len(batch.groups)))
    moving_N = (batch.advantages_N != 0) & batch.kept_N
    moving_N = moving_N if batch.left_out_N is None else moving_N & ~batch.left_out_N
    moving_N = moving_N if batch.held_N is None else moving_N | batch.held_N
    if batch.imitated_S is not None:
        moving_N = moving_N | spread(batch.imitated_S, batch.lengths_S)
    return [number for number, (start, end) in enumerate(pairwise(batch.token_ends)) if moving_N[start:end].any()]


def ratio_bounds(loss: Loss) -> Clip:
    """The bounds of the ratio that a loss has; the others are those of a loss that does not use them."""
    match loss:
        case PpoClip() | Gspo():
            return Clip(loss.low, loss.high, loss.dual)
        case DppoTv() | DppoKl():
            return Clip(loss.low, loss.high, loss.cap)
        case Cispo() | Gmpo() | ClipCov():
            return Clip(loss.low, loss.high)
        case Sapo():
            return Clip(0.0, 0.0, temperatures=loss.temperatures)
    return Clip(0.0, 0.0)


def kl_of(logprobs_N: Tensor, reference_N: Tensor, old_N: Tensor, params: LossKl) -> Tensor:
    """The estimate of the KL by rl.kl.estimator, [N]."""
    if params.estimator == "unbiased":
        return unbiased_kl(logprobs_N, reference_N, old_N)
    return kl_estimate(logprobs_N, reference_N, params.estimator)


def micro_batch_logprobs(model: Any, part: Batch, params: Rl) -> tuple[Tensor, Tensor, Tensor | None]:
    """The policy's log-probs and entropies, [N], and its log-probs of a teacher's tokens, [N, K], if there are any."""
    groups = [group.group for group in part.groups]
    if part.teacher_ids_NK is None:
        return *response_logprobs(model, groups, params.temperature), None
    return candidate_logprobs(model, groups, params.temperature, part.teacher_ids_NK)


def divergence_loss(terms: TeacherLoss, candidates_NK: Tensor, teacher_NK: Tensor | None) -> Tensor:
    """The divergence from the teacher at each token, [N]."""
    assert teacher_NK is not None
    beta = terms.beta if isinstance(terms, Jsd) else 0.5
    return teacher_divergence(terms.type, candidates_NK, to_device(teacher_NK, candidates_NK.device), terms.rest, beta)


def own_loss(params: FunctionLoss) -> OwnFunction:
    return OwnFunction("rl.loss", params.path, params.options.values())


def micro_batch_loss(model: Any, part: Batch, params: Rl, kl_coef: float) -> tuple[Tensor, Figures]:
    """The part's share of the global batch's loss, and sums of its figures."""
    assert part.weights_S is not None
    weights_N = spread(part.weights_S, part.lengths_S)
    terms = params.loss
    logprobs_N, entropies_N, candidates_NK = micro_batch_logprobs(model, part, params)
    # Found on the CPU: a GPU would wait for every kernel before it to count the kept tokens.
    kept = part.kept_N.nonzero()[:, 0]
    lengths_S, old_N, advantages_N, kept_N, weights_N, kept = (
        to_device(tensor, logprobs_N.device)
        for tensor in (part.lengths_S, part.old_N, part.advantages_N, part.kept_N, weights_N, kept)
    )
    if isinstance(terms, TeacherLoss):
        assert candidates_NK is not None
        loss_N, clipped_N = divergence_loss(terms, candidates_NK, part.teacher_NK), torch.zeros_like(kept_N)
    elif isinstance(terms, FunctionLoss):
        tokens = LossInput(logprobs_N, old_N, advantages_N, entropies_N, kept_N, lengths_S)
        loss_N, clipped_N = own_loss(terms).loss(tokens)
    else:
        bounds = ratio_bounds(terms)
        loss_N, clipped_N = policy_loss(terms.type, logprobs_N, old_N, advantages_N, lengths_S, bounds, kept_N)
    if part.held_N is not None and isinstance(terms, KlCov):
        gap_N = (logprobs_N - old_N).abs()
        loss_N = loss_N + terms.coef * gap_N * to_device(part.held_N, loss_N.device)
    if part.expert_S is not None:
        assert isinstance(params.imitation, Luffy)
        expert_N = spread(to_device(part.expert_S, loss_N.device), lengths_S, len(loss_N))
        loss_N = torch.where(expert_N, shaped_loss(logprobs_N, advantages_N, params.imitation.shaping), loss_N)
        clipped_N = clipped_N & ~expert_N
    left_out_N = torch.zeros_like(clipped_N)
    if part.left_out_N is not None:
        left_out_N = to_device(part.left_out_N, loss_N.device)
    if part.sampler_N is not None and terms.off_policy_limit is not None:
        sampler_N = to_device(part.sampler_N, loss_N.device)
        left_out_N = left_out_N | ~near_policy(logprobs_N, sampler_N, advantages_N, lengths_S, terms.off_policy_limit)
    if terms.leaves_out:
        loss_N = loss_N.masked_fill(left_out_N, 0.0)
    if part.importance_N is not None:
        loss_N = loss_N * to_device(part.importance_N, loss_N.device)
    kl_N = torch.zeros_like(old_N)
    if part.reference_N is not None:
        assert isinstance(params.kl, LossKl)
        kl_N = kl_of(logprobs_N, to_device(part.reference_N, loss_N.device), old_N, params.kl)
        loss_N = loss_N + kl_coef * kl_N
    if terms.log_ratio_penalty:
        loss_N = loss_N + terms.log_ratio_penalty * squared_log_ratio(logprobs_N, old_N)
    if terms.entropy_coef:
        loss_N = loss_N - terms.entropy_coef * entropies_N
    loss = (weights_N * loss_N)[kept].sum()
    now_N = logprobs_N.detach()
    imitation_N = torch.zeros_like(now_N)
    if part.imitation_S is not None:
        imitation_N = spread(to_device(part.imitation_S, loss_N.device), lengths_S, len(loss_N))
        phi = isinstance(params.imitation, SftTerm) and params.imitation.weigh == "phi"
        loss = loss - (imitation_N * (phi_weights(logprobs_N) if phi else 1.0) * logprobs_N).sum()
    ratio_N = log_ratio(now_N, old_N).exp()[kept]
    return loss, {
        "loss": loss.detach(),
        "kl": kl_N.detach()[kept].sum(),
        "entropy": entropies_N.detach()[kept].sum(),
        "clipped": clipped_N[kept].sum().float(),
        "left_out": left_out_N[kept].sum().float(),
        "ratio": ratio_N.sum(),
        "alignment": logprob_alignment(now_N, old_N, lengths_S).sum(),
        "responses": torch.tensor(float(len(lengths_S))),
        "tokens": torch.tensor(float(len(ratio_N))),
        "trained": torch.tensor(float(sum(part.sizes(attention_kernel(model))))),
        "likelihood": torch.where(imitation_N > 0, now_N, 0.0).sum(),
        "imitated": (imitation_N > 0).sum().float(),
        "ratio_max": ratio_N.max() if len(ratio_N) else ratio_N.new_zeros(()),
        "gaps": gap_counts(now_N[kept], old_N[kept]),
        **({} if candidates_NK is None else {"student_mass": candidates_NK.detach()[kept].exp().sum()}),
    }
