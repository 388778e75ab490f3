"""TRL 1.16.0: `GRPOTrainer._compute_loss` on chosen log-probs, compared with ours; our verifier in its trainer."""

import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from mathrl.algorithms.advantages import group_advantages
from mathrl.algorithms.aggregation import spread, token_weights
from mathrl.algorithms.divergences import Divergence, teacher_divergence
from mathrl.algorithms.exploration import adapted_entropy_coef, highest_entropies
from mathrl.algorithms.kl import kl_estimate, unbiased_kl
from mathrl.algorithms.policy_loss import Clip, policy_loss
from mathrl.algorithms.trust_regions import near_policy
from mathrl.grading.reward_functions import accuracy_reward
from mathrl.models.base import character_tokenizer, fresh_network
from mathrl.params.run import FreshModel

LONGEST = 40
SAPO = {"sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05}
SEQUENCE = {"loss_type": "grpo", "importance_sampling_level": "sequence"}


@pytest.fixture(scope="module")
def trainer() -> Iterator[Any]:
    """GRPOTrainer, with accelerate visible to transformers for this module: mathrl hides it at its import."""
    from transformers.utils import is_accelerate_available

    seen = is_accelerate_available()
    is_accelerate_available.cache_clear()
    from trl.trainer.grpo_trainer import GRPOTrainer

    yield GRPOTrainer
    if not seen:  # else every export of this process would look for what transformers did not import
        with mock.patch.dict(sys.modules, {"accelerate": None}):
            is_accelerate_available.cache_clear()
            assert not is_accelerate_available()


def trl_loss(
    trainer: Any,
    ragged: Any,
    logprobs_SL: Tensor,
    old_SL: Tensor,
    reference_SL: Tensor,
    advantages: Tensor,
    entropies_SL: Tensor | None = None,
    **settings: Any,
) -> tuple[Tensor, Any]:
    """The loss that TRL computes, and the trainer that its method saw."""
    settings = {
        "top_entropy_quantile": 1.0, "off_policy_mask_threshold": None, "importance_sampling_level": "token",
        "beta": 0.0, "loss_type": "grpo", "epsilon_low": 0.2, "epsilon_high": 0.28, "use_vllm": False,
        "current_gradient_accumulation_steps": 1, "max_completion_length": LONGEST, "aux_loss_enabled": False,
        "_entropy_bonus_enabled": False, "use_adaptive_entropy": False, "entropy_coef": 0.0,
        "get_off_policy_mask": trainer.get_off_policy_mask,
    } | settings  # fmt: skip
    unbiased = settings.pop("use_bias_correction_kl", False)
    sampler = {"sampling_per_token_logps": settings.pop("sampler_SL")} if "sampler_SL" in settings else {}
    accelerator = SimpleNamespace(
        num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x, sync_gradients=True,
        pad_across_processes=lambda x, dim, pad_index: x,
    )  # fmt: skip
    entropies_SL = torch.zeros_like(old_SL) if entropies_SL is None else entropies_SL
    control = {name: settings.pop(name) for name in list(settings) if name.startswith("entropy_coef_")}
    control["entropy_target"] = settings.pop("entropy_target", 0.2)
    self = SimpleNamespace(
        **settings,
        accelerator=accelerator,
        model=SimpleNamespace(training=True),
        _metrics={"train": defaultdict(list)},
        args=SimpleNamespace(use_bias_correction_kl=unbiased, delta=None, steps_per_generation=1, **SAPO, **control),
        _get_per_token_logps_and_entropies=lambda *a, **k: (logprobs_SL, entropies_SL, None),
    )
    ids = torch.zeros(old_SL.shape, dtype=torch.long)
    inputs = {
        "prompt_ids": ids,
        "prompt_mask": ids,
        "completion_ids": ids,
        "completion_mask": ragged.mask_SL,
        "advantages": advantages,
        "old_per_token_logps": old_SL,
        "ref_per_token_logps": reference_SL,
        "num_items_in_batch": ragged.mask_SL.sum(),
        **sampler,
    }
    self.get_high_entropy_mask = partial(trainer.get_high_entropy_mask, self)
    loss: Tensor = trainer._compute_loss(self, None, inputs)
    return loss, self


@pytest.mark.parametrize(
    ("kind", "aggregation", "beta", "theirs_are"),
    [
        ("clip", "sequence_mean", 0.04, {"loss_type": "grpo", "beta": 0.04}),
        ("clip", "sequence_sum", 0.0, {"loss_type": "dr_grpo"}),
        ("clip", "token_mean", 0.0, {"loss_type": "bnpo"}),
        ("clip", "token_mean", 0.1, {"loss_type": "dapo", "beta": 0.1}),
        ("gspo", "sequence_mean", 0.04, SEQUENCE | {"beta": 0.04}),
        # TRL's epsilon_high of CISPO is the bound itself; ours is above 1.
        ("cispo", "token_mean", 0.0, {"loss_type": "cispo", "epsilon_high": 1.28}),
        ("sapo", "sequence_mean", 0.0, {"loss_type": "sapo"}),
    ],
)
def test_trl_compute_loss(
    trainer: Any, ragged: Any, agree: Any, kind: str, aggregation: str, beta: float, theirs_are: dict[str, Any]
) -> None:
    rewards_S = ragged.rewards()
    advantages_S = group_advantages(rewards_S.view(-1, ragged.group), "grpo", ddof=1, eps=1e-4).flatten()
    old_SL = -ragged.noise().abs()
    start_SL, reference_SL = old_SL + ragged.noise(0.4), old_SL + ragged.noise(0.4)
    theirs_SL = start_SL.clone().requires_grad_()
    theirs, _ = trl_loss(trainer, ragged, theirs_SL, old_SL, reference_SL, advantages_S, **theirs_are)
    theirs.backward()
    ours_N = ragged.flat(start_SL).requires_grad_()
    low = 1.0 if kind == "cispo" else 0.2
    loss_N, _ = policy_loss(
        kind,
        ours_N,
        ragged.flat(old_SL),
        spread(advantages_S, ragged.lengths_S),
        ragged.lengths_S,
        Clip(low, 0.28),  # type: ignore[arg-type]
    )
    loss_N = loss_N + beta * kl_estimate(ours_N, ragged.flat(reference_SL), "k3")
    weights_S = token_weights(ragged.lengths_S, aggregation, LONGEST).double()  # type: ignore[arg-type]
    ours = (spread(weights_S, ragged.lengths_S) * loss_N).sum()
    ours.backward()
    agree(ours, theirs)
    agree(ours_N.grad, ragged.flat(theirs_SL.grad))


def test_trls_off_policy_mask_and_unbiased_kl(trainer: Any, ragged: Any, agree: Any) -> None:
    """DeepSeek-V3.2's two terms, with the log-probs of a sampler that are not the old ones."""
    advantages_S, old_SL = ragged.noise()[:, 0], -ragged.noise().abs()
    start_SL, reference_SL, sampler_SL = (old_SL + ragged.noise(scale) for scale in (0.4, 0.4, 0.2))
    start_SL = start_SL - 0.3 * ragged.noise()[:, :1]
    theirs_SL = start_SL.clone().requires_grad_()
    settings = {"beta": 0.1, "off_policy_mask_threshold": 0.1, "use_bias_correction_kl": True}
    theirs, _ = trl_loss(
        trainer, ragged, theirs_SL, old_SL, reference_SL, advantages_S, sampler_SL=sampler_SL, **settings
    )
    theirs.backward()
    ours_N, lengths_S = ragged.flat(start_SL).requires_grad_(), ragged.lengths_S
    old_N, advantages_N = ragged.flat(old_SL), spread(advantages_S, lengths_S)
    kept_N = near_policy(ours_N, ragged.flat(sampler_SL), advantages_N, lengths_S, 0.1)
    assert kept_N.any() and (len(kept_N) < 12 or not kept_N.all())
    loss_N, _ = policy_loss("clip", ours_N, old_N, advantages_N, lengths_S, Clip(0.2, 0.28))
    loss_N = loss_N * kept_N + 0.1 * unbiased_kl(ours_N, ragged.flat(reference_SL), old_N)
    ours = (spread(token_weights(lengths_S, "sequence_mean", LONGEST).double(), lengths_S) * loss_N).sum()
    ours.backward()
    agree(ours, theirs)
    agree(ours_N.grad, ragged.flat(theirs_SL.grad))


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_trls_top_entropy_quantile(trainer: Any, ragged: Any, agree: Any, share: float) -> None:
    advantages_S, old_SL = ragged.noise()[:, 0], -ragged.noise().abs()
    start_SL, entropies_SL = old_SL + ragged.noise(0.4), ragged.noise().abs().float()
    theirs_SL = start_SL.clone().requires_grad_()
    settings = {"top_entropy_quantile": share, "entropies_SL": entropies_SL, "loss_type": "dapo"}
    theirs, _ = trl_loss(trainer, ragged, theirs_SL, old_SL, old_SL, advantages_S, **settings)
    theirs.backward()
    ours_N, lengths_S = ragged.flat(start_SL).requires_grad_(), ragged.lengths_S
    advantages_N, kept_N = spread(advantages_S, lengths_S), torch.ones(int(lengths_S.sum()), dtype=torch.bool)
    chosen_N = highest_entropies(ragged.flat(entropies_SL), kept_N, share)
    assert chosen_N.any() and not chosen_N.all()
    loss_N, _ = policy_loss("clip", ours_N, ragged.flat(old_SL), advantages_N, lengths_S, Clip(0.2, 0.28))
    ours = (loss_N * chosen_N).mean()
    ours.backward()
    agree(ours, theirs)
    agree(ours_N.grad, ragged.flat(theirs_SL.grad))


@pytest.mark.parametrize("coef", [0.0, 0.01, 0.03])
@pytest.mark.parametrize("target", [0.2, 1.5])
def test_trls_adaptive_entropy(trainer: Any, ragged: Any, agree: Any, coef: float, target: float) -> None:
    """Its coefficient after a step whose mean entropy is about 0.8; a bonus is applied at the next one."""
    old_SL, entropies_SL = -ragged.noise().abs(), ragged.noise().abs()
    settings: dict[str, Any] = {
        "use_adaptive_entropy": True, "_entropy_bonus_enabled": True, "entropy_coef": coef, "entropy_target": target,
        "entropy_coef_delta": 0.02, "entropy_coef_min": 0.0, "entropy_coef_max": 0.04, "_entropy_window_stats": None,
        "_last_world_entropy": float("inf"), "entropies_SL": entropies_SL,
    }  # fmt: skip
    _, after = trl_loss(trainer, ragged, old_SL, old_SL, old_SL, ragged.noise()[:, 0], **settings)
    entropy = float(ragged.flat(entropies_SL).mean())
    agree(entropy, after._last_world_entropy)
    agree(adapted_entropy_coef(coef, entropy, target, 0.02, (0.0, 0.04)), after.entropy_coef)
    assert after.entropy_coef != coef or (coef == 0 and target < entropy)


@pytest.mark.parametrize("scale", ["group", "none"])
def test_trl_group_advantages(ragged: Any, agree: Any, scale: str) -> None:
    """TRL normalises with its `nanstd` inside a method that samples; this test calls `nanstd` alone."""
    from trl.trainer.utils import nanstd

    rewards_PG = ragged.rewards().view(-1, ragged.group)
    mean_P1, std_P1 = rewards_PG.mean(1, keepdim=True), nanstd(rewards_PG, dim=1, keepdim=True)
    theirs = (rewards_PG - mean_P1) / (std_P1 + 1e-4) if scale == "group" else rewards_PG - mean_P1
    agree(group_advantages(rewards_PG, "grpo" if scale == "group" else "dr_grpo", eps=1e-4), theirs)


def test_the_trainer_takes_our_verifier(trainer: Any, tmp_path: Path) -> None:
    """One step of GRPOTrainer on a model of one layer, in plain text; its log has the mean of our reward."""
    from datasets import Dataset
    from trl import GRPOConfig

    base = FreshModel(hidden_size=16, intermediate_size=16, layers=1, heads=2, alphabet="arithmetic")
    tokenizer = character_tokenizer(base)
    # A response is one random character: some are an accepted digit.
    rows = Dataset.from_list([{"prompt": f"{n}+{n}=", "answer": list("01234")} for n in (1, 2)])
    config = GRPOConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=32, num_generations=16, max_completion_length=1,
        max_steps=1, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=[], save_strategy="no",
        logging_steps=1, disable_tqdm=True, seed=0,
    )  # fmt: skip
    training = trainer(
        model=fresh_network(base, tokenizer, seed=0),
        reward_funcs=accuracy_reward,
        args=config,
        train_dataset=rows,
        processing_class=tokenizer,
    )
    training.train()
    logged = training.state.log_history[0]
    assert 0 < logged["rewards/accuracy_reward/mean"] < 1


@pytest.mark.parametrize(("kind", "beta"), [("forward_kl", 0.0), ("reverse_kl", 1.0), ("jsd", 0.5), ("jsd", 0.1)])
def test_divergences_from_a_teacher(trainer: Any, agree: Any, ragged: Any, kind: Divergence, beta: float) -> None:
    """Of the whole vocabulary GKDTrainer's; of few tokens those of its self-distillation, with and without the tail."""
    from trl.experimental.gkd.gkd_trainer import GKDTrainer
    from trl.experimental.sdft.loss_utils import add_tail_bucket, compute_divergence

    tokens = int(ragged.mask_SL.sum())
    policy_NV, teacher_NV = torch.randn(2, tokens, 50, generator=ragged.generator, dtype=torch.float64).mul(2)
    ids_NK = teacher_NV.topk(8).indices
    expected = GKDTrainer.generalized_jsd_loss(policy_NV, teacher_NV, beta=beta, temperature=0.7, reduction="none").sum(
        -1
    )
    policy_NV, teacher_NV = ((logits / 0.7).log_softmax(-1) for logits in (policy_NV, teacher_NV))
    whole = torch.arange(50).expand(tokens, 50)
    for ids, rest, theirs in ((whole, "bin", None), (ids_NK, "bin", add_tail_bucket), (ids_NK, "renormalise", None)):
        learning_NV = policy_NV.clone().requires_grad_()
        ours = [logits.gather(1, ids) for logits in (learning_NV, teacher_NV)]
        found = teacher_divergence(kind, *ours, rest, beta)  # type: ignore[arg-type]
        if ids is ids_NK:
            close = theirs or (lambda chosen: chosen.log_softmax(-1))
            expected = compute_divergence(*map(close, ours), beta)
            agree(
                *(
                    torch.autograd.grad(each.square().sum(), learning_NV, retain_graph=True)[0]
                    for each in (found, expected)
                )
            )
        agree(found, expected)
