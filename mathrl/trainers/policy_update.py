"""The gradient of one RL update over the global batch.

Shapes: P groups of G responses in the global batch, S responses of a micro-batch, N response tokens of it.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from mathrl.algorithms.aggregation import spread, token_weights
from mathrl.algorithms.alignment import GAPS, gap_counts, gap_shares, logprob_alignment
from mathrl.algorithms.kl import kl_estimate
from mathrl.algorithms.policy_loss import log_ratio, policy_loss
from mathrl.algorithms.returns import response_sums
from mathrl.learners.accumulate import accumulate, halving
from mathrl.learners.distributed import Backend
from mathrl.learners.learner import Learner
from mathrl.learners.partition import balanced
from mathrl.models.logprobs import response_logprobs
from mathrl.params.train import Rl
from mathrl.trainers.batch import Batch

SUMMED = ("loss", "kl", "entropy", "clipped", "ratio", "alignment", "responses", "tokens", "trained")


@dataclass
class UpdateFigures:
    """Sums over the tokens of an update, or of all updates of a step.

    `alignment` is a sum over `responses` and `gaps` over `first_tokens`, of a step's first update: later
    ones train other weights than those that sampled. `dropped` counts updates that were not made since their
    mean ratio was too large.
    """

    loss: float = 0.0
    kl: float = 0.0
    entropy: float = 0.0
    clipped: float = 0.0
    ratio: float = 0.0
    alignment: float = 0.0
    responses: float = 0.0
    tokens: float = 0.0
    trained: float = 0.0
    ratio_max: float = 0.0
    norm: float = 0.0
    updates: int = 0
    dropped: int = 0
    first_tokens: float = 0.0
    gaps: list[float] = field(default_factory=list)

    @property
    def mean_ratio(self) -> float:
        return self.ratio / self.tokens if self.tokens else 1.0

    def add(self, other: "UpdateFigures", norm: float, dropped: bool = False) -> None:
        for name in SUMMED:
            if name not in ("alignment", "responses") or not self.updates:
                setattr(self, name, getattr(self, name) + getattr(other, name))
        if not self.updates:
            self.gaps, self.first_tokens = other.gaps, other.tokens
        self.ratio_max = max(self.ratio_max, other.ratio_max)
        self.norm += norm
        self.updates += 1
        self.dropped += dropped

    def metrics(self, params: Rl) -> dict[str, float]:
        """Means a token, under the field's names; nothing where there was no update, or nothing measured."""
        if not self.updates:
            return {}
        tokens = max(1.0, self.tokens)
        figures = {
            "actor_loss": self.loss / self.updates,
            "grad_norm": self.norm / self.updates,
            "entropy": self.entropy / tokens,
            "clip_fraction": self.clipped / tokens,
            "ratio/mean": self.mean_ratio,
            "ratio/max": self.ratio_max or 1.0,
            "trained_tokens": self.trained,
        }
        if self.responses:  # where no group has a gradient, none was computed
            figures["rollout/logprob_alignment"] = self.alignment / self.responses
        if params.kl_coef and params.kl_in == "loss":
            figures["kl"] = self.kl / tokens
        if params.drop_ratio is not None:
            figures["dropped_minibatches"] = float(self.dropped)
        if self.updates > 1:
            # Mean number of updates between sampling and training.
            figures["rollout/staleness"] = (self.updates - 1) / 2
        return figures

    def mismatch(self) -> dict[str, float]:
        """How far apart sampler and trainer are, as a histogram."""
        return gap_shares(self.gaps, self.first_tokens) if self.gaps else {}


def minibatches(groups: int, parts: int, seed: int) -> list[list[int]]:
    """Group numbers in `parts` seeded parts; one part keeps their order."""
    if parts == 1:
        return [list(range(groups))]
    order = torch.randperm(groups, generator=torch.Generator().manual_seed(seed)).tolist()
    return [order[part::parts] for part in range(parts)]


def update_gradient(policy: Learner, params: Rl, backend: Backend, batch: Batch, kl_coef: float) -> UpdateFigures:
    """Fill the policy's gradients with that of the global batch's loss; return its figures.

    Each process takes groups of about equal numbers of tokens. Groups in which all advantages are 0 have no
    gradient: they get no forward pass where nothing but the surrogate is in the loss; the denominators count
    them all the same.
    """

    def attempt(tokens: int) -> UpdateFigures:
        return _gradient(policy, params, backend, batch.cut(tokens), kl_coef, tokens)

    return halving(backend, params.tokens_per_microbatch, attempt, "rl")


def _gradient(
    policy: Learner, params: Rl, backend: Backend, batch: Batch, kl_coef: float, tokens: int
) -> UpdateFigures:
    counts = [len(group.responses) for group in batch.groups]
    weights_S = token_weights(batch.counted_S, params.aggregation, params.max_tokens)
    weights = torch.split(weights_S, counts)
    skipping = params.skip_zero_variance and batch.reference_N is None and not params.entropy_coef
    moving_N = ((batch.advantages_N != 0) & batch.kept_N).float()
    moving = torch.split(response_sums(moving_N, batch.lengths_S), counts)
    useful = [i for i in range(len(batch.groups)) if not skipping or moving[i].sum() > 0]
    sizes = [group.group.packed_tokens for group in batch.groups]
    share = balanced([sizes[i] for i in useful], backend.world)[backend.rank]
    mine = [useful[place] for place in share]
    last = len(SUMMED) + backend.world

    def loss_of(micro: list[int]) -> tuple[Tensor, Tensor]:
        part = batch.part(micro)
        packed = [group.group for group in part.groups]
        logprobs_N, entropies_N = response_logprobs(policy.model, packed, params.temperature)
        lengths_S, old_N, advantages_N, kept_N = (
            each.to(backend.device) for each in (part.lengths_S, part.old_N, part.advantages_N, part.kept_N)
        )
        loss_N, clipped_N = policy_loss(
            params.policy_loss,
            logprobs_N,
            old_N,
            advantages_N,
            lengths_S,
            params.clip_low,
            params.clip_high,
            params.dual_clip,
            kept_N,
        )
        if part.importance_N is not None:
            loss_N = loss_N * part.importance_N.to(backend.device)
        kl = 0.0
        if part.reference_N is not None:
            kl_N = kl_estimate(logprobs_N, part.reference_N.to(backend.device), params.kl_estimator)
            loss_N = loss_N + kl_coef * kl_N
            kl = float(kl_N.detach()[kept_N].sum())
        if params.entropy_coef:
            loss_N = loss_N - params.entropy_coef * entropies_N
        weights_N = spread(torch.cat([weights[i] for i in micro]).to(backend.device), lengths_S)
        loss = (weights_N * loss_N)[kept_N].sum()
        now_N = logprobs_N.detach()
        ratio_N = log_ratio(now_N, old_N).exp()[kept_N]
        figures = torch.tensor(
            [
                float(loss.detach()),
                kl,
                float(entropies_N.detach()[kept_N].sum()),
                float(clipped_N[kept_N].sum()),
                float(ratio_N.sum()),
                float(logprob_alignment(now_N, old_N, lengths_S).sum()),
                len(lengths_S),
                len(ratio_N),
                sum(sizes[i] for i in micro),
            ],
            device=backend.device,
        )
        largest = ratio_N.max() if len(ratio_N) else figures.new_zeros(())
        return loss, torch.cat([figures, largest[None], gap_counts(now_N[kept_N], old_N[kept_N])])

    mine_sizes = [sizes[i] for i in mine]
    spare = min(range(len(sizes)), key=lambda i: sizes[i])
    found = accumulate(policy, backend, mine, mine_sizes, tokens, spare, loss_of, "rl")
    sums = torch.zeros(last + len(GAPS), device=backend.device)
    for each in found:
        sums[: len(SUMMED)] += each[: len(SUMMED)]
        place = len(SUMMED) + backend.rank
        sums[place] = torch.maximum(sums[place], each[len(SUMMED)])
        sums[last:] += each[len(SUMMED) + 1 :]
    backend.sum_(sums)
    values = sums.tolist()
    figures = UpdateFigures(**dict(zip(SUMMED, values, strict=False)))
    figures.ratio_max = max(values[len(SUMMED) : last])
    figures.gaps = values[last:]
    return figures
