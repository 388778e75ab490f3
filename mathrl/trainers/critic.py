"""The critic of PPO: made from the policy or a folder, and the gradient of its updates.

Shapes: S responses of a micro-batch, N response tokens of it.
"""

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from mathrl.algorithms.aggregation import spread, token_weights
from mathrl.algorithms.returns import clipped_value_loss, explained_variance
from mathrl.core.errors import UserError
from mathrl.core.hashing import derive_seed
from mathrl.learners.distributed import Ranks
from mathrl.learners.learner import Learner, make_learner
from mathrl.learners.micro_batches import Figures, TokenBudget, add_gradient, attempts, reduce_figures
from mathrl.learners.sharding import load_to_train, sharded_like
from mathrl.models.device import to_device
from mathrl.models.dropout import disable_dropout
from mathrl.models.kernels import attention_kernel
from mathrl.models.load import load_model, precision_of, resolve_folder
from mathrl.models.lora import add_lora
from mathrl.models.scores import load_scorer, make_scorer, token_scores
from mathrl.models.transformers_import import AutoConfig
from mathrl.params.advantage import Critic
from mathrl.params.run import Model
from mathrl.params.train import Rl
from mathrl.trainers.batch import Batch


def make_critic(params: Critic, policy: Any, scorer: Any, updates: int, seed: int, ranks: Ranks) -> Learner:
    """The critic's learner, from `scorer` if there is one, else from the folder, else from the policy.

    The folder of a causal LM, or the policy, gives the trunk under a head of zeros: every value is 0 at first.

    Raises:
        UserError: the folder is neither a scorer's nor a causal LM's, or its vocabulary is not the policy's.
    """
    if scorer is None and params.path is not None:
        scorer = _from_folder(params.path, policy, ranks)
    elif scorer is None:
        with sharded_like(policy, ranks):
            scorer = make_scorer(policy)
    if params.lora is not None:
        add_lora(scorer, params.lora, derive_seed(seed, "critic"))
    disable_dropout(scorer)
    return make_learner(scorer, params.optimizer, updates, ranks, name="rl.advantage.critic")


def _from_folder(path: str, policy: Any, ranks: Ranks) -> Any:
    model = Model(precision=precision_of(policy))
    try:
        folder, options = resolve_folder(path)
        config = AutoConfig.from_pretrained(folder, **options)
        architectures = getattr(config, "architectures", None) or [""]
        if architectures[0].endswith("ForCausalLM"):
            start = load_to_train(load_model, path, model, ranks)
            with sharded_like(start, ranks):
                critic = make_scorer(start)
        else:
            critic = load_to_train(load_scorer, path, model, ranks)
    except (UserError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(
            f"rl.advantage.critic.path: {path!r} cannot initialise a critic ({reason}); give the folder of a reward "
            "model, of a critic or of a causal language model, or leave it empty to start as the policy"
        ) from None
    tokens, policy_tokens = (network.get_input_embeddings().weight.shape[0] for network in (critic, policy))
    if tokens != policy_tokens:
        raise UserError(
            f"rl.advantage.critic.path: {path} reads {tokens:,} tokens, the policy {policy_tokens:,}; the critic must "
            "have the policy's tokenizer"
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
        """The losses, and how well the values that the advantages were made with fit the returns."""
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


def critic_gradient(critic: Learner, params: Rl, batch: Batch) -> CriticFigures:
    """Fill the critic's gradients with this rank's part of that of the value loss; its figures.

    The loss is the mean over the tokens of the global batch.
    """
    weights_S = token_weights(batch.counted_S, "token_mean", params.max_tokens)
    kernel, loss_of = attention_kernel(critic.model), critic.through_root(micro_batch_loss)
    for attempt in attempts(TokenBudget(critic.ranks, params.tokens_per_microbatch, "rl")):
        with attempt as budget:
            cut, figures = replace(batch, weights_S=weights_S).cut(budget.tokens, kernel), list[Figures]()
            for micro, counts in critic.micro_batches(cut.sizes(kernel), budget.tokens):
                figures += add_gradient(critic.backward, loss_of(critic.model, cut.part(micro), params), counts)
    totals = reduce_figures(figures, critic.ranks)
    return CriticFigures(float(totals["loss"]), float(totals["clipped"]))


def micro_batch_loss(model: Any, part: Batch, params: Rl) -> tuple[Tensor, Figures]:
    """The part's share of the global batch's value loss, and sums of its figures."""
    assert params.critic is not None and part.values_N is not None and part.returns_N is not None
    assert part.weights_S is not None
    weights_N = spread(part.weights_S, part.lengths_S)
    values_N = token_scores(model, [group.group for group in part.groups])
    kept = part.kept_N.nonzero()[:, 0]  # found on the CPU, so that a GPU's host does not wait
    old_N, returns_N, kept, weights_N = (
        to_device(tensor, values_N.device) for tensor in (part.values_N, part.returns_N, kept, weights_N)
    )
    loss_N, clipped_N = clipped_value_loss(values_N, old_N, returns_N, params.critic.clip)
    loss = (weights_N[kept] * loss_N[kept]).sum()
    return loss, {"loss": loss.detach(), "clipped": (weights_N[kept] * clipped_N[kept]).sum()}
