"""A step's numbers a token, from settings, against loops over plain lists."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from mathrl.algorithms.own_functions import AdvantageInput
from mathrl.learners.distributed import Ranks
from mathrl.models.logprobs import response_logprobs
from mathrl.models.scores import make_scorer, token_scores
from mathrl.params.advantage import Gae
from mathrl.params.train import Rl
from mathrl.trainers.batch import Batch, cut, make_batch, response_advantages, token_advantages
from mathrl.trainers.rollouts import RolloutGroup
from mathrl.trainers.scores import Scores
from tests.trainers.small import scored_batch

CPU = Ranks(torch.device("cpu"))
# Two groups of two responses, of 2, 1 and 1, 3 tokens.
GROUPS = [
    RolloutGroup(
        problem=0, prompt=(4, 5), responses=((6, 7), (8,)), logprobs=((-0.1, -0.2), (-0.3,)),
        rewards=(1.0, 0.0), correct=(True, False), truncated=(False, True), parts=({}, {}), baseline=0.25,
        step_ends=((0, 1), (0,)), step_rewards=((1.0, 0.0), (0.0,)),
    ),
    RolloutGroup(
        problem=1, prompt=(9,), responses=((6,), (7, 8, 9)), logprobs=((-0.4,), (-0.5, -0.6, -0.7)),
        rewards=(0.5, 0.5), correct=(False, True), truncated=(False, False), parts=({}, {}), baseline=1.0,
        step_ends=((0,), (1,)), step_rewards=((1.0,), (1.0,)),
    ),
]  # fmt: skip


def advantages(groups: list[RolloutGroup] = GROUPS, **settings: Any) -> list[float]:
    batch, _ = scored_batch(groups, Rl(group_size=2, **settings), CPU, None)
    return [float(each) for each in batch.advantages_N]


def test_advantages_of_outcomes_by_hand() -> None:
    root = 0.5**0.5
    assert advantages(advantage={"eps": 0.0}) == pytest.approx([root, root, -root, 0, 0, 0, 0])
    assert advantages(advantage="dr_grpo") == [0.5, 0.5, -0.5, 0, 0, 0, 0]
    assert advantages(advantage="rloo") == [1, 1, -1, 0, 0, 0, 0]
    assert advantages(advantage="reinforce") == [1, 1, 0, 0.5, 0.5, 0.5, 0.5]
    assert advantages(advantage={"type": "reinforce", "gamma": 0.5}) == [0.5, 1, 0, 0.5, 0.125, 0.25, 0.5]
    assert advantages(advantage="remax") == [0.75, 0.75, -0.25, -0.5, -0.5, -0.5, -0.5]
    assert advantages(advantage="rft") == [1, 1, 0, 0, 1, 1, 1]
    # Steps 1, 0 | 0: mean 1/3, std 1/sqrt(3): +2, -1, -1 over sqrt(3); suffix sums 1, -1 | -1.
    unit = 3**-0.5
    assert advantages(advantage={"type": "process", "eps": 0.0}) == pytest.approx([unit, -unit, -unit, 0, 0, 0, 0])
    means = advantages(advantage={"type": "process", "step_returns": "mean", "eps": 0.0})
    assert means == pytest.approx([unit / 2, -unit, -unit, 0, 0, 0, 0])


def test_whitening_is_over_the_tokens_of_the_batch_that_count() -> None:
    tokens = torch.tensor([1, 1, 0, 0.5, 0.5, 0.5, 0.5])
    expected = (tokens - tokens.mean()) / tokens.std()
    assert advantages(advantage={"type": "reinforce", "whiten": True}) == pytest.approx(expected.tolist(), abs=1e-6)
    # The response that was cut off (token 2) is neither in the mean nor among the advantages.
    counted = torch.tensor([1, 1, 0.5, 0.5, 0.5, 0.5])
    white = ((counted - counted.mean()) / counted.std()).tolist()
    found = advantages(advantage={"type": "reinforce", "whiten": True}, truncated="mask")
    assert found == pytest.approx([*white[:2], 0.0, *white[2:]], abs=1e-6)


def test_kl_in_the_reward_reaches_every_outcome_advantage(small: Any) -> None:
    reference = small.policy()[0]
    packed = [group.group for group in GROUPS]
    with torch.no_grad():
        told, _ = response_logprobs(reference, packed)
    old = [-0.1, -0.2, -0.3, -0.4, -0.5, -0.6, -0.7]
    k1 = [a - b for a, b in zip(old, told.tolist(), strict=True)]
    beta = 0.1
    kinds: dict[str, Any] = {"group_size": 2, "kl": {"type": "reward", "coef": beta}}

    def found(**settings: Any) -> list[float]:
        params = Rl(**kinds, **settings)
        batch, figures = scored_batch(GROUPS, params, CPU, None, reference=reference, kl_coef=beta)
        assert figures["kl"] == pytest.approx(sum(k1) / 7, abs=1e-5)
        assert batch.reference_N is None, "the KL is not in the loss too"
        return [float(each) for each in batch.advantages_N]

    # The reward at the last token, minus beta k1 at each; returns are sums to the end.
    returns = [
        1 - beta * (k1[0] + k1[1]),
        1 - beta * k1[1],
        -beta * k1[2],
        0.5 - beta * k1[3],
        0.5 - beta * (k1[4] + k1[5] + k1[6]),
        0.5 - beta * (k1[5] + k1[6]),
        0.5 - beta * k1[6],
    ]
    assert found(advantage="reinforce") == pytest.approx(returns, abs=1e-5)
    greedy = [r - b for r, b in zip(returns, [0.25] * 3 + [1.0] * 4, strict=True)]
    assert found(advantage="remax") == pytest.approx(greedy, abs=1e-5)
    first, second = (returns[0] - returns[2]) / 2, (returns[3] - returns[4]) / 2
    grouped = [first, first, -first, second, -second, -second, -second]
    assert found(advantage="dr_grpo") == pytest.approx(grouped, abs=1e-5)


def test_with_a_critic_the_targets_are_raw_advantages_plus_values(small: Any) -> None:
    model = small.policy()[0]
    critic = make_scorer(model)
    with torch.no_grad():
        critic.score.weight.fill_(0.3)
        values = token_scores(critic, [group.group for group in GROUPS])
    params: dict[str, Any] = {"group_size": 2}
    batch, _ = scored_batch(GROUPS, Rl(**params, advantage=Gae(gamma=0.9, lam=0.5)), CPU, model, critic=critic)
    v = [float(each) for each in values]
    last = 1.0 - v[1]
    assert batch.advantages_N[1].item() == pytest.approx(last, abs=1e-5)
    assert batch.advantages_N[0].item() == pytest.approx(0.9 * v[1] - v[0] + 0.45 * last, abs=1e-5)
    assert batch.advantages_N[2].item() == pytest.approx(0.0 - v[2], abs=1e-5)
    whitened = Gae(gamma=0.9, lam=0.5, whiten=True)
    white, _ = scored_batch(GROUPS, Rl(**params, advantage=whitened), CPU, model, critic=critic)
    assert torch.allclose(white.returns_N, batch.advantages_N + values)  # type: ignore[arg-type]
    assert white.advantages_N.mean().item() == pytest.approx(0, abs=1e-6)
    assert white.advantages_N.std().item() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("lam", [0.5, {"alpha": 0.5}])
def test_the_critic_has_a_lambda_of_its_own(lam: Any) -> None:
    """Responses of 2, 1, 1 and 3 tokens, rewards 1, 0, 1/2, 1/2, a value of 1/5 for every token, gamma 1."""
    values_N = torch.full((7,), 0.2)
    scores = Scores(torch.zeros(7), values_N=values_N)
    advantage = {"type": "gae", "lam": lam, "critic": {"lam": 1.0}}
    batch, _ = make_batch(GROUPS, Rl(group_size=2, advantage=advantage), scores, 0.0)  # type: ignore[arg-type]
    assert batch.returns_N is not None
    assert batch.returns_N.tolist() == pytest.approx([1, 1, 0, 0.5, 0.5, 0.5, 0.5]), "the rewards to come"
    # Deltas: 0 and 0.8 | -0.2 | 0.3 | 0, 0 and 0.3. By length: 1 - 1 / (alpha l) is 0 for 2 tokens, 1/3 for 3.
    two, three = (0.5, 0.5) if lam == 0.5 else (0.0, 1 / 3)
    expected = [0.8 * two, 0.8, -0.2, 0.3, 0.3 * three**2, 0.3 * three, 0.3]
    assert batch.advantages_N.tolist() == pytest.approx(expected, abs=1e-6)
    one, _ = make_batch(GROUPS, Rl(group_size=2, advantage={**advantage, "critic": {}}), scores, 0.0)  # type: ignore[arg-type]
    assert one.returns_N is not None
    assert torch.equal(one.advantages_N, batch.advantages_N)
    assert torch.allclose(one.returns_N, batch.advantages_N + values_N), "else the policy's"


def test_a_critic_of_lambda_1_has_targets_without_rounding() -> None:
    """Equal rewards are equal targets, whatever the values: the variance of rounding is explained by nothing."""
    equal = [replace(group, rewards=(0.3,) * 2) for group in GROUPS]
    scores = Scores(torch.zeros(7), values_N=torch.linspace(0.1, 2.3, 7))
    advantage: Any = {"type": "gae", "lam": 0.9, "critic": {"lam": 1.0}}
    batch, _ = make_batch(equal, Rl(group_size=2, advantage=advantage), scores, 0.0)
    assert batch.returns_N is not None and len(set(batch.returns_N.tolist())) == 1
    half: Any = {"type": "gae", "lam": 0.9, "gamma": 0.5, "critic": {"lam": 0.999999}}
    near, _ = make_batch(equal, Rl(group_size=2, advantage=half), scores, 0.0)
    exact, _ = make_batch(equal, Rl(group_size=2, advantage=half | {"critic": {"lam": 1.0}}), scores, 0.0)
    assert near.returns_N is not None and exact.returns_N is not None
    assert torch.allclose(near.returns_N, exact.returns_N, atol=1e-5)


def test_distillation_is_of_the_updated_policy_where_another_sampled(small: Any) -> None:
    policy, teacher = small.policy()[0], small.policy(seed=8)[0]
    with torch.no_grad():
        own, told = (response_logprobs(model, [group.group for group in GROUPS])[0] for model in (policy, teacher))
    params = Rl(advantage="distillation", group_size=2, importance={"when": "always"})
    batch, _ = scored_batch(GROUPS, params, CPU, policy, teacher=teacher)
    assert torch.allclose(batch.advantages_N, told - own, atol=1e-5)


def test_a_part_that_a_response_lacks_counts_as_0() -> None:
    parts = (({"a": 1.0, "b": 1.0}, {"a": 0.0}), ({"a": 0.5}, {"a": 1.0}))
    lacking, whole = (
        [
            replace(group, parts=tuple(dict(absent, **each) for each in row))
            for group, row in zip(GROUPS, parts, strict=True)
        ]
        for absent in ({}, {"b": 0.0})
    )
    found = advantages(lacking, advantage="gdpo")
    assert found == advantages(whole, advantage="gdpo") and len(set(found)) > 2


def own_score(responses: AdvantageInput) -> torch.Tensor:
    forms = torch.tensor([parts.get("form", 0.0) for parts in responses.parts])
    return responses.correct_S + 10 * responses.truncated_S + forms


def test_an_advantage_of_ones_own_sees_verdicts_truncation_and_parts() -> None:
    parts = (({"form": 0.25}, {}), ({"form": 0.5}, {"form": 0.75}))
    groups = [replace(group, parts=row) for group, row in zip(GROUPS, parts, strict=True)]
    found = advantages(groups, advantage={"type": "function", "path": f"{__name__}:own_score"})
    assert found == [1.25, 1.25, 10.0, 0.5, 1.75, 1.75, 1.75]


def test_gdpo_takes_the_deviation_of_the_parameters() -> None:
    """Two responses with a and b: over ddof 1 each is sqrt(1/2) from the mean in deviations, over ddof 0 it is 1."""
    groups = [replace(group, parts=({"a": 1.0, "b": 0.0}, {"a": 0.0, "b": 0.0})) for group in GROUPS]
    for ddof, one in ((1, 0.5**0.5), (0, 1.0)):
        found = advantages(groups, advantage={"type": "gdpo", "ddof": ddof, "eps": 0.0})
        assert found == pytest.approx([one, one, -one, one, -one, -one, -one])


def test_a_part_holds_the_tokens_of_its_groups() -> None:
    batch, _ = scored_batch(GROUPS, Rl(group_size=2, truncated="mask", advantage="reinforce"), CPU, None)
    part = batch.part([1, 0])
    assert [group.problem for group in part.groups] == [1, 0]
    assert part.lengths_S.tolist() == [1, 3, 2, 1] and part.counted_S.tolist() == [1, 3, 2, 0]
    assert part.old_N.tolist() == pytest.approx([-0.4, -0.5, -0.6, -0.7, -0.1, -0.2, -0.3])
    assert part.advantages_N.tolist() == [0.5, 0.5, 0.5, 0.5, 1, 1, 0]
    assert part.kept_N.tolist() == [True] * 6 + [False]
    assert isinstance(part, Batch) and part.values_N is None
    assert batch.part([1]).old_N.tolist() == pytest.approx([-0.4, -0.5, -0.6, -0.7])


def test_groups_are_cut_between_responses_to_fit_the_budget() -> None:
    big = replace(
        GROUPS[0],
        responses=((1,) * 4, (2,) * 3, (3,) * 9, (4,) * 2),
        **{name: (getattr(GROUPS[0], name) * 2) for name in ("logprobs", "rewards", "correct", "truncated")},
        parts=({},) * 4,
        step_ends=(),
        step_rewards=(),
    )
    # Packed: 2 of the prompt, then 3, 2, 8, 1.
    parts = cut([big, GROUPS[1]], 7)
    assert [part.responses for part in parts] == [
        big.responses[:2],
        big.responses[2:3],
        big.responses[3:],
        GROUPS[1].responses,
    ]
    assert [part.group.packed_tokens for part in parts] == [7, 10, 3, 3], "one response alone may be larger"
    assert [part.rewards for part in parts] == [(1.0, 0.0), (1.0,), (0.0,), (0.5, 0.5)]
    assert cut(GROUPS, 100) == GROUPS and cut([big], 16) == [big]
    batch, _ = scored_batch(GROUPS, Rl(group_size=2), CPU, None)
    small = batch.cut(2, "cpu")
    assert len(small.groups) == 4 and small.part([1, 3]).lengths_S.tolist() == [1, 3]
    assert torch.equal(small.part([0, 1]).old_N, batch.part([0]).old_N)


def test_pass_at_k_takes_the_epsilon_of_the_parameters() -> None:
    advantages = []
    for eps in (1e-6, 1.0):
        params = Rl(advantage={"type": "pass_at_k", "k": 2, "eps": eps}, group_size=2)  # type: ignore[arg-type]
        group = RolloutGroup(
            problem=0, prompt=(4,), responses=((6,), (7,), (8,)), logprobs=((-0.1,),) * 3, rewards=(1.0, 0.0, 0.0),
            correct=(True, False, False), truncated=(False,) * 3, parts=({},) * 3,
        )  # fmt: skip
        advantages.append(response_advantages([group], torch.ones(3, dtype=torch.long), None, params.advantage))
    assert advantages[0].abs().max() > 1.2 * advantages[1].abs().max() > 0


def test_a_response_without_steps_has_no_advantage() -> None:
    params = Rl(advantage={"type": "process"})  # type: ignore[arg-type]
    group = replace(GROUPS[0], step_rewards=((), ()), step_ends=((), ()))
    assert token_advantages([group], torch.tensor([2, 1]), None, params.advantage).tolist() == [0.0] * 3  # type: ignore[arg-type]


def test_rejection_veto_and_normalised_weights_reach_the_batch() -> None:
    """The trainer's log-probs are those of GROUPS by 0, 0, 0 and 0, 1, -10, 0."""
    sampler_N = torch.tensor([value for group in GROUPS for response in group.logprobs for value in response])
    policy_N = sampler_N + torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0, -10.0, 0.0])
    scores = Scores(sampler_N, policy_N, None, None, None, None)

    def batch(**importance: Any) -> tuple[Batch, dict[str, float]]:
        return make_batch(GROUPS, Rl(importance={"when": "always", **importance}), scores, 0.0)  # type: ignore[arg-type]

    plain, figures = batch()
    assert plain.kept_N.all() and plain.importance_N is not None
    vetoed, told = batch(veto=1e-4)
    assert vetoed.kept_N.tolist() == [True] * 4 + [False] * 3
    assert told["importance/masked_share"] == pytest.approx(3 / 7) and figures["importance/masked_share"] == 0
    rejected, _ = batch(reject={"level": "token", "low": 0.5, "high": 2.0})
    assert rejected.kept_N.tolist() == [True] * 4 + [False, False, True]
    rejected, _ = batch(reject={"level": "token", "low": 0.5, "high": 5.0})  # the old policy over the sampler's
    assert rejected.kept_N.tolist() == [True] * 5 + [False, True]
    # The ratio of the last response is exp(-9), its geometric mean exp(-3).
    rejected, _ = batch(reject={"level": "geometric", "low": 0.06, "high": 2.0})
    assert rejected.kept_N.tolist() == [True] * 4 + [False] * 3
    rejected, _ = batch(reject={"level": "geometric", "low": 0.04, "high": 2.0})
    assert rejected.kept_N.all()
    both, _ = batch(reject={"level": "token", "low": 0.5, "high": 2.0}, veto=1e-9)
    assert both.kept_N.tolist() == [True] * 4 + [False, False, True], "a veto takes back no rejection"
    normalised, told = batch(normalise=True)
    assert normalised.importance_N is not None and float(normalised.importance_N.mean()) == pytest.approx(1)
    assert told["importance/mean"] == figures["importance/mean"], "what is told is the mismatch"
