"""The critic of PPO: made from the policy or a folder, and the gradient of its update.

Shapes: S responses of a micro-batch, N response tokens of it.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mathrl.algorithms.aggregation import spread, token_weights
from mathrl.algorithms.value_loss import clipped_value_loss, explained_variance
from mathrl.core.errors import UserError
from mathrl.core.seeding import derive_seed
from mathrl.learners.accumulate import accumulate, halving
from mathrl.learners.distributed import Backend
from mathrl.learners.learner import Learner, make_learner
from mathrl.learners.partition import balanced
from mathrl.models.linear import BFloat16Linear
from mathrl.models.load import load_model, resolve_folder
from mathrl.models.lora import add_lora
from mathrl.models.scores import load_scorer, make_scorer, token_scores
from mathrl.models.transformers_import import AutoConfig
from mathrl.params.run import Model
from mathrl.params.train import Critic, Rl
from mathrl.trainers.batch import Batch


def make_critic(params: Critic, policy: Any, scorer: Any, updates: int, seed: int, backend: Backend) -> Learner:
    """A critic that learns, from `scorer` if there is one, else from the folder, else from the policy.

    A folder of a causal LM, and the policy, give the trunk to a head of zeros: every value is 0 at first.

    Raises:
        UserError: the folder is neither a scorer's nor a causal LM's, or reads other tokens than the policy.
    """
    if scorer is None and params.path is not None:
        scorer = _from_folder(params.path, policy)
    elif scorer is None:
        scorer = make_scorer(policy)
    if params.lora is not None:
        add_lora(scorer, params.lora, derive_seed(seed, "critic"))
    return make_learner(scorer, params.optimizer, params.lr, updates, backend, name="rl.critic")


def _from_folder(path: str, policy: Any) -> Any:
    rounded = any(isinstance(each, BFloat16Linear) for each in policy.modules())
    model = Model(precision="bfloat16" if rounded else "float32")
    try:
        where, options = resolve_folder(path)
        config = AutoConfig.from_pretrained(where, **options)
        kinds = getattr(config, "architectures", None) or [""]
        if kinds[0].endswith("ForCausalLM"):
            critic = make_scorer(load_model(path, model, policy.device))
        else:
            critic = load_scorer(path, model, policy.device)
    except (UserError, OSError, ValueError) as error:
        said = " ".join(str(error).split())[:300]
        raise UserError(
            f"rl.critic.path: no critic can be made of {path!r} ({said}); give the folder of a reward model, "
            "of a critic or of a causal language model, or leave it empty to start as the policy"
        ) from None
    own, wanted = (each.get_input_embeddings().weight.shape[0] for each in (critic, policy))
    if own != wanted:
        raise UserError(
            f"rl.critic.path: {path} reads {own:,} tokens, the policy {wanted:,}; the critic must have the "
            "policy's tokenizer"
        )
    return critic


@dataclass
class CriticFigures:
    """Means over the tokens of the updates of a step."""

    loss: float = 0.0
    clipped: float = 0.0
    norm: float = 0.0
    updates: int = 0

    def add(self, other: "CriticFigures", norm: float) -> None:
        self.loss, self.clipped = self.loss + other.loss, self.clipped + other.clipped
        self.norm, self.updates = self.norm + norm, self.updates + 1

    def metrics(self, batch: Batch) -> dict[str, float]:
        """The losses, and how the values that the advantages were made with fit the returns."""
        if batch.values_N is None or batch.returns_N is None:
            return {}
        values_N, returns_N = batch.values_N[batch.kept_N], batch.returns_N[batch.kept_N]
        return {
            "critic_loss": self.loss / self.updates,
            "critic/grad_norm": self.norm / self.updates,
            "critic/clip_fraction": self.clipped / self.updates,
            "critic/explained_variance": explained_variance(values_N, returns_N),
            "critic/value_mean": float(values_N.mean()) if len(values_N) else 0.0,
            "critic/return_mean": float(returns_N.mean()) if len(returns_N) else 0.0,
        }


def critic_gradient(critic: Learner, params: Rl, backend: Backend, batch: Batch) -> CriticFigures:
    """Fill the critic's gradients with that of the value loss, the mean over the global batch's tokens."""
    assert params.critic is not None and batch.values_N is not None and batch.returns_N is not None

    def attempt(tokens: int) -> CriticFigures:
        return _gradient(critic, params, backend, batch.cut(tokens), tokens)

    return halving(backend, params.tokens_per_microbatch, attempt, "rl")


def _gradient(critic: Learner, params: Rl, backend: Backend, batch: Batch, tokens: int) -> CriticFigures:
    weights_S = token_weights(batch.counted_S, "token_mean", params.max_tokens)
    weights = torch.split(weights_S, [len(group.responses) for group in batch.groups])
    sizes = [group.group.packed_tokens for group in batch.groups]
    mine = balanced(sizes, backend.world)[backend.rank]

    def loss_of(micro: list[int]) -> tuple[Tensor, Tensor]:
        part = batch.part(micro)
        assert params.critic is not None and part.values_N is not None and part.returns_N is not None
        values_N = token_scores(critic.model, [group.group for group in part.groups])
        loss_N, clipped_N = clipped_value_loss(
            values_N, part.values_N.to(backend.device), part.returns_N.to(backend.device), params.critic.clip
        )
        kept_N = part.kept_N.to(backend.device)
        weights_S = torch.cat([weights[i] for i in micro])
        weights_N = spread(weights_S, part.lengths_S).to(backend.device)[kept_N]
        loss = (weights_N * loss_N[kept_N]).sum()
        return loss, torch.stack([loss.detach(), (weights_N * clipped_N[kept_N]).sum()])

    spare = min(range(len(sizes)), key=lambda i: sizes[i])
    found = accumulate(critic, backend, mine, [sizes[i] for i in mine], tokens, spare, loss_of, "rl")
    sums = sum(found, torch.zeros(2, device=backend.device))
    backend.sum_(sums)
    loss_sum, clipped = sums.tolist()
    return CriticFigures(loss_sum, clipped)
