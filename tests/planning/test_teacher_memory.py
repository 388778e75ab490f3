"""Planned memory of on-policy distillation: the teacher, and its tokens where the loss is over them."""

from typing import Any

import pytest
import torch

from mathrl.algorithms.divergences import teacher_divergence
from mathrl.models.model_shape import config_of, shape_of
from mathrl.planning.memory import OF_AN_UPDATE, plan_memory
from tests.learners.kept_bytes import kept_bytes
from tests.planning.test_memory import params

TEACHER_LOSS = ["rl.advantage=distillation", "rl.loss={type: reverse_kl, top_k: 32}", "rl.kl=null"]


def test_a_teacher_and_its_tokens_are_counted() -> None:
    """Qwen2.5-0.5B: a teacher of its size, and for each sampled token 32 log-probs and ids, three times at most."""
    given = params("rollout.engine=torch", *TEACHER_LOSS, "rl.max_tokens=512", preset="gsm8k-ppo-24gb")
    shape = shape_of(config_of(given.model.base))
    found = plan_memory(shape, given, "rl", "cuda", gpu_memory=24e9)
    assert found.standing["teacher (if as large as the policy)"] == 2 * 494_032_768
    sampled = given.rl.prompts_per_step * given.rl.group_size * 512
    assert found.host == {"teacher's tokens of a step": 3 * (4 + 4) * 32 * sampled}
    tokens = given.rl.tokens_per_microbatch
    assert found.phases["forward and backward"]["teacher's tokens (estimate)"] == OF_AN_UPDATE * 32 * tokens
    on_cpu = plan_memory(shape, given, "rl", "cpu")
    assert on_cpu.standing["teacher's tokens of a step"] == found.host["teacher's tokens of a step"]
    sampled_alone = params(TEACHER_LOSS[0], "rl.loss=reinforce", "rl.kl=null", preset="gsm8k-ppo-24gb")
    assert not any("tokens of a step" in part for part in plan_memory(shape, sampled_alone, "rl", "cpu").standing)


@pytest.mark.parametrize("kind", ["forward_kl", "reverse_kl", "jsd"])
def test_a_divergence_keeps_no_more_than_is_planned(kind: Any) -> None:
    policy_NK, teacher_NK = (torch.randn(50, 40).log_softmax(-1)[:, :20].clone() for _ in range(2))
    policy_NK.requires_grad_()
    with kept_bytes(set()) as kept:
        teacher_divergence(kind, policy_NK, teacher_NK).sum()
    inputs = 2 * 4 + 4 + 8  # float32 log-probs of both, the teacher's int32 ids, and those as int64
    assert 0 < sum(kept.values()) + inputs * 50 * 20 <= 1.1 * OF_AN_UPDATE * 50 * 20 * 21 / 20
