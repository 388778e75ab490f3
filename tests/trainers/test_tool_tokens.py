"""Outputs of tools are read, never trained on: no gradient, ratio, KL, entropy or length counts their tokens."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mathrl.core.types import Completion, Graded, ToolCall
from mathrl.learners.distributed import Ranks
from mathrl.learners.torch_learner import TorchLearner
from mathrl.models.logprobs import response_logprobs
from mathrl.models.packing import Group
from mathrl.models.prepared import Prepared, compute_as
from mathrl.models.scores import make_scorer, token_scores
from mathrl.params.advantage import Critic
from mathrl.params.optimizer import Muon
from mathrl.params.train import Rl
from mathrl.trainers.policy_update import update_gradient
from mathrl.trainers.pooled_group import PooledGroup
from mathrl.trainers.rollouts import RolloutGroup, rollout_groups
from tests.trainers.small import scored_batch

CPU = Ranks(torch.device("cpu"))


def graded(small: Any, wrong_logprob: float = 0.0) -> tuple[Any, list[tuple[int, ...]], list[list[Graded]]]:
    """The policy and its rollouts; in each response of six tokens or more, tokens 2 to 4 are a tool's."""
    model, sampler = small.policy()
    prompts, groups = [], []
    for group in small.rollouts(model, sampler):
        prompts.append(group.prompt)
        row = []
        for number, (tokens, logprobs) in enumerate(zip(group.responses, group.logprobs, strict=True)):
            calls = (ToolCall(2, 5, "1+1", "2", "ok", 0.5),) if len(tokens) > 5 else ()
            logprobs = logprobs.copy()
            for call in calls:
                logprobs[call.start : call.end] = wrong_logprob
            completion = Completion(tokens, logprobs, "", "length", calls)
            row.append(Graded("p", completion, group.correct[number], group.rewards[number], {}, None, ""))
        groups.append(row)
    return model, prompts, groups


def tool_groups(small: Any, **options: Any) -> tuple[Any, list[RolloutGroup]]:
    model, prompts, groups = graded(small, **options)
    with torch.no_grad():  # off policy, so that ratios differ from 1
        for weight in model.parameters():
            weight.add_(0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    return model, rollout_groups(range(4), prompts, groups)


def everything_sampled(group: RolloutGroup) -> RolloutGroup:
    """The planted mistake: the tool's tokens count, with the log-prob 0 that they have."""
    logprobs = []
    for mask, values in zip(group.sampled, group.logprobs, strict=True):
        whole = np.zeros(len(mask), np.float32)
        whole[mask] = values
        logprobs.append(whole)
    return replace(group, logprobs=tuple(logprobs), sampled=())


def gradient(model: Any, groups: Any, params: Rl, **models: Any) -> tuple[torch.Tensor, Any]:
    policy = TorchLearner(model, Muon(lr=1e-3), 10)
    batch, figures = scored_batch(groups, params, CPU, model, kl_coef=params.kl_coef, **models)
    update = update_gradient(policy, params, batch, params.kl_coef)
    return policy.flat.gradients.clone(), (update, figures, batch)


KINDS = [
    {"loss": {"type": "gspo", "aggregation": "sequence_mean"}},
    {"loss": {"type": "gmpo", "aggregation": "sequence_mean"}},
    {"loss": {"type": "clip", "entropy_coef": 0.1, "log_ratio_penalty": 0.1}, "kl": {"coef": 0.1}},
    {"loss": "clip", "kl": {"type": "reward", "coef": 0.1}, "advantage": "reinforce"},
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))
def test_the_gradient_is_that_of_the_sampled_tokens_alone(small: Any, kind: dict[str, Any]) -> None:
    params = Rl(max_tokens=10, **kind)
    reference = {"reference": small.policy(7)[0]} if params.kl_coef else {}
    found, (update, _, batch) = gradient(*tool_groups(small), params, **reference)
    sampled = sum(int(mask.sum()) for group in tool_groups(small)[1] for mask in group.sampled)
    tokens = sum(len(response) for group in batch.groups for response in group.responses)
    assert found.norm() > 1e-3 and sampled < tokens - 20
    assert len(batch.old_N) == int(batch.lengths_S.sum()) == sampled
    # What an engine reports for the tool's tokens has no effect, to the bit.
    other, (other_update, _, _) = gradient(*tool_groups(small, wrong_logprob=-5.0), params, **reference)
    assert torch.equal(found, other) and update == other_update
    # Nor have micro-batches.
    cut, _ = gradient(*tool_groups(small), params.model_copy(update={"tokens_per_microbatch": 16}), **reference)
    assert torch.allclose(cut, found, atol=1e-6)
    model, groups = tool_groups(small)
    wrong, _ = gradient(model, [everything_sampled(group) for group in groups], params, **reference)
    assert not torch.allclose(wrong, found, rtol=1e-2, atol=1e-4), "a mask that counts the tool's tokens shows"


def test_the_loss_is_that_written_by_hand(small: Any) -> None:
    model, groups = tool_groups(small)
    params = Rl(max_tokens=10, loss={"type": "gspo", "aggregation": "sequence_mean", "skip_zero_variance": False})
    found, (update, _, batch) = gradient(model, groups, params)
    model.zero_grad()
    advantages_S = batch.advantages_N[batch.lengths_S.cumsum(0) - 1]
    total, advantages, losses = torch.zeros(()), iter(advantages_S.tolist()), []
    for group in groups:
        whole = Group(group.prompt, group.responses)
        per_response = torch.split(response_logprobs(model, [whole])[0], [len(r) for r in group.responses])
        for logprobs, mask, old in zip(per_response, group.sampled, group.logprobs, strict=True):
            ratio = (logprobs[torch.from_numpy(mask)] - torch.from_numpy(old)).mean().exp()  # GSPO, equation 7
            advantage = next(advantages)
            clipped = ratio.clamp(1 - params.loss.low, 1 + params.loss.high)
            losses.append(-torch.minimum(ratio * advantage, clipped * advantage))
    total = torch.stack(losses).mean()
    total.backward()
    expected = torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])
    assert update.loss == pytest.approx(float(total.detach()), abs=1e-6)
    assert found.norm() == pytest.approx(float(expected.norm()), rel=1e-4)


@pytest.mark.parametrize("packed", [True, False])
def test_masked_groups_give_the_same_numbers_of_fewer_tokens(small: Any, packed: bool) -> None:
    model, groups = tool_groups(small)
    compute_as(model, Prepared(packed=packed))
    masked = [group.group for group in groups]
    whole = [Group(group.prompt, group.responses) for group in masked]
    chosen = torch.from_numpy(np.concatenate([mask for group in masked for mask in group.sampled]))
    for found, full in zip(response_logprobs(model, masked), response_logprobs(model, whole), strict=True):
        assert torch.allclose(found, full[chosen], atol=1e-5)
    alone = [single for group in masked for single in group.alone()]
    assert torch.allclose(response_logprobs(model, alone)[0], response_logprobs(model, masked)[0], atol=1e-5)
    if packed:
        scorer = make_scorer(model)
        torch.nn.init.normal_(scorer.score.weight, generator=torch.Generator().manual_seed(4))
        assert torch.allclose(token_scores(scorer, masked), token_scores(scorer, whole)[chosen], atol=1e-5)


def test_a_critics_advantages_pass_over_the_tool(small: Any) -> None:
    model, groups = tool_groups(small)
    params = Rl(max_tokens=10, advantage={"type": "gae", "critic": Critic(), "lam": 0.9, "gamma": 0.9})
    scorer = make_scorer(model)
    torch.nn.init.normal_(scorer.score.weight, generator=torch.Generator().manual_seed(4))
    batch, _ = scored_batch(groups, params, CPU, model, critic=scorer)
    assert batch.values_N is not None
    rewards, start = [reward for group in groups for reward in group.rewards], 0
    for reward, length in zip(rewards, batch.lengths_S.tolist(), strict=True):
        values = [*batch.values_N[start : start + length].tolist(), 0.0]
        advantage = 0.0
        for place in reversed(range(length)):  # the next state after a call is the first token after the tool's
            earned = reward if place == length - 1 else 0.0
            advantage = earned + 0.9 * values[place + 1] - values[place] + 0.81 * advantage
            assert batch.advantages_N[start + place] == pytest.approx(advantage, abs=1e-4)
        start += length


def test_rollouts_with_calls_survive_a_checkpoint(small: Any) -> None:
    _, _, rows = graded(small)
    group = PooledGroup(3, 0, len(rows[0]), graded=list(rows[0]))
    read = PooledGroup.from_row(json.loads(json.dumps(group.to_row())))
    assert read.graded == group.graded
    seconds = [call.seconds for g in read.graded for call in g.completion.calls]
    assert seconds and set(seconds) == {0.5}
