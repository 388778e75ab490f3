"""At a temperature other than 1: every log-prob, entropy and KL of a step is of softmax(logits / temperature).

The expectation is a plain forward pass per response with its own softmax. At temperature 1 it is far from what is
expected, so that a place which forgets the temperature fails.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mathrl.learners.distributed import Ranks
from mathrl.learners.torch_learner import TorchLearner
from mathrl.models import head
from mathrl.params.loss import Truncated
from mathrl.params.optimizer import Muon
from mathrl.params.rollout import Rollout
from mathrl.params.run import Prompt
from mathrl.params.train import Rl
from mathrl.rollout.engine import Sampling
from mathrl.rollout.sampler import Sampler
from mathrl.rollout.torch_engine import CopyEngine, TorchEngine
from mathrl.trainers.policy_update import update_gradient
from mathrl.trainers.rl import train_rl
from mathrl.trainers.rollouts import RolloutGroup
from mathrl.trainers.scores import score
from tests.trainers.small import scored_batch

CPU = Ranks(torch.device("cpu"))
T = 0.6
TOLERANCE = 1e-4  # nats; float32 sums in another order differ by 1e-5


def plain(model: Any, groups: Sequence[RolloutGroup], temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of all response tokens, a forward pass per response."""
    rows, tokens = [], []
    for group in groups:
        for response in group.responses:
            ids = torch.tensor([[*group.prompt, *response.tolist()]])
            rows.append(model(input_ids=ids).logits[0, len(group.prompt) - 1 : -1] / temperature)
            tokens.append(ids[0, len(group.prompt) :])
    logits_NV, tokens_N = torch.cat(rows), torch.cat(tokens)
    chosen_N = logits_NV.gather(1, tokens_N[:, None])[:, 0]
    weights_NV = logits_NV.softmax(-1)
    return chosen_N - logits_NV.logsumexp(-1), logits_NV.logsumexp(-1) - (weights_NV * logits_NV).sum(-1)


def sharp_policy(small: Any, seed: int = 3) -> tuple[Any, Sampler]:
    """A policy whose logits are of the order of 1, so that the temperature matters."""
    model, _ = small.policy(seed)
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.data.mul_(6)
    return model, Sampler(TorchEngine(model, small.TOKENIZER, Rollout()), small.TOKENIZER, Prompt())


@pytest.fixture
def groups(small: Any) -> list[RolloutGroup]:
    model, sampler = sharp_policy(small)
    return [replace(group, rewards=(1.0, 0.0, 0.5, 0.25)) for group in small.rollouts(model, sampler)]


def near(computed: Tensor | None, of_the_temperature: Tensor, of_temperature_1: Tensor) -> bool:
    tolerance = TOLERANCE * max(1.0, float(of_the_temperature.abs().max()))  # sums and gradients are larger
    assert (of_the_temperature - of_temperature_1).abs().max() > 100 * tolerance, "this case cannot fail"
    return computed is not None and torch.allclose(computed, of_the_temperature, atol=tolerance, rtol=0)


@pytest.mark.parametrize("most_logits", [1 << 26, 100])  # a table of logits, or the head without one
def test_the_policys_loss_and_gradient_by_an_independent_formula(
    small: Any, groups: list[RolloutGroup], most_logits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "MOST_LOGITS", most_logits)
    model, reference = sharp_policy(small)[0], sharp_policy(small, seed=8)[0].requires_grad_(False)
    params = Rl(temperature=T, loss={"type": "reinforce", "entropy_coef": 0.2}, kl={"coef": 0.3, "estimator": "k3"})
    policy = TorchLearner(model, Muon(lr=1e-3), 10)
    batch, _ = scored_batch(groups, params, CPU, model, reference, kl_coef=params.kl_coef)
    figures = update_gradient(policy, params, batch, params.kl_coef)
    computed = policy.flat.gradients.clone()

    def expected(temperature: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        policy.flat.gradients.zero_()
        logprobs_N, entropies_N = plain(model, groups, temperature)
        gap_N = plain(reference, groups, temperature)[0] - logprobs_N
        kl_N = gap_N.exp() - gap_N - 1
        loss = (-batch.advantages_N * logprobs_N + 0.3 * kl_N - 0.2 * entropies_N).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach(), entropies_N.sum().detach(), kl_N.sum().detach(), policy.flat.gradients.clone()

    got = (figures.loss, figures.entropy, figures.kl, computed)
    for value, right, wrong in zip(got, expected(T), expected(1.0), strict=True):
        assert near(torch.as_tensor(value), right, wrong)


def test_every_other_models_log_probs(small: Any, groups: list[RolloutGroup]) -> None:
    """Old log-probs of the trainer, the reference's, the teacher's, and the KL that is only measured."""
    policy, other = sharp_policy(small)[0], sharp_policy(small, seed=8)[0]
    with torch.no_grad():
        of_policy, of_other = ([plain(model, groups, at)[0] for at in (T, 1.0)] for model in (policy, other))
    old_N = torch.cat([torch.from_numpy(values) for group in groups for values in group.logprobs])

    batch, figures = scored_batch(groups, Rl(temperature=T, importance=Truncated()), CPU, policy)
    assert near(batch.old_N, *of_policy)
    weights = [(logprobs_N - old_N).exp().clamp(max=2.0) for logprobs_N in of_policy]
    assert near(batch.importance_N, *weights)

    with torch.no_grad():
        entropies = [plain(policy, groups, at)[1] for at in (T, 1.0)]
    batch, _ = scored_batch(groups, Rl(temperature=T, loss={"top_entropy": 0.2}), CPU, policy)
    assert near(batch.entropies_N, *entropies)

    batch, _ = scored_batch(groups, Rl(temperature=T, kl={"coef": 0.1}), CPU, policy, reference=other, kl_coef=0.1)
    assert near(batch.reference_N, *of_other)
    params = Rl(temperature=T, kl={"type": "reward", "coef": 0.1})
    _, figures = scored_batch(groups, params, CPU, policy, reference=other, kl_coef=0.1)
    assert near(torch.tensor(figures["kl"]), *((old_N - logprobs_N).mean() for logprobs_N in of_other))

    batch, _ = scored_batch(groups, Rl(temperature=T, advantage="distillation"), CPU, policy, teacher=other)
    assert near(batch.advantages_N, *(logprobs_N - old_N for logprobs_N in of_other))

    k3 = [((gap := logprobs_N - old_N).exp() - gap - 1).mean() for logprobs_N in of_other]
    probing = Rl(temperature=T, kl={"type": "probe", "groups": 4})
    _, figures = scored_batch(groups, probing, CPU, policy, reference=other)
    assert near(torch.tensor(figures["kl"]), *k3)
    measured = score(groups, probing, CPU, policy, reference=other)
    assert measured.reference_N is None, "a KL that is only measured is of the probe"


def test_the_sampler_gives_the_log_probs_that_it_sampled_with(small: Any) -> None:
    model, sampler = sharp_policy(small)
    prompts = [tuple(sampler.prompt_tokens(problem) or ()) for problem in small.PROBLEMS[:4]]
    sampled = sampler.engine.generate(prompts, Sampling(4, T, 10), seed=1)
    groups = [
        replace(small.rollouts(model, sampler)[0], prompt=prompt, responses=tuple(c.tokens for c in completions))
        for prompt, completions in zip(prompts, sampled, strict=True)
    ]
    logprobs_N = torch.cat([torch.from_numpy(c.logprobs) for completions in sampled for c in completions])
    with torch.no_grad():
        assert near(logprobs_N, *(plain(model, groups, at)[0] for at in (T, 1.0)))


def test_a_step_at_a_temperature_is_on_policy(small: Any, tmp_path: Path) -> None:
    """Sampler, update, reference and canary of one run agree: ratio 1, KL 0, no gap."""
    model, sampler = sharp_policy(small)
    sampler.engine = CopyEngine(copy.deepcopy(model), small.TOKENIZER, Rollout(), 1e-4)
    params = Rl(
        temperature=T, steps=1, prompts_per_step=4, group_size=4, max_tokens=10, kl={"coef": 0.1}, dev={"every": 0}
    )
    train_rl(model, sampler, small.PROBLEMS, (), small.CountsOnes(), params, small.training_run(tmp_path))
    row = small.without_timings(tmp_path / "metrics.jsonl")[0]
    assert row["grad_norm"] > 1e-3, "a step without a gradient computes nothing"
    assert row["rollout/logprob_alignment"] == pytest.approx(1, abs=TOLERANCE)
    assert row["ratio/max"] == pytest.approx(1, abs=1e-3) and row["kl"] == pytest.approx(0, abs=1e-6)
    assert row["rollout/canary_gap"] < TOLERANCE
