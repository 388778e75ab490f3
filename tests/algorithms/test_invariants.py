"""What must hold for any batch, however it is laid out, cut and ordered."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mathrl.algorithms.advantages import group_advantages, process_advantages, whiten
from mathrl.algorithms.aggregation import spread, token_weights
from mathrl.algorithms.alignment import importance_weights
from mathrl.algorithms.kl import kl_estimate
from mathrl.algorithms.policy_loss import Clip, policy_loss
from mathrl.algorithms.returns import discounted_returns, gae, token_rewards
from mathrl.learners.distributed import Ranks
from mathrl.learners.torch_learner import TorchLearner
from mathrl.models.base import character_tokenizer, fresh_network
from mathrl.params.optimizer import Muon
from mathrl.params.run import FreshModel
from mathrl.params.train import Rl
from mathrl.trainers.batch import Batch
from mathrl.trainers.policy_update import update_gradient
from mathrl.trainers.rollouts import RolloutGroup
from tests.trainers.small import scored_batch

torch.set_num_threads(1)
KINDS = ("grpo", "dr_grpo", "rloo")
LOSSES = ("clip", "gspo", "cispo", "reinforce")
AGGREGATIONS = ("token_mean", "sequence_mean", "sequence_sum")
numbers = st.floats(-3, 3, allow_nan=False, width=32)
lengths = st.lists(st.integers(1, 7), min_size=1, max_size=6)
seeds = st.integers(0, 2**20)


def noise(count: int, seed: int, scale: float = 1.0) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


# -- Padding and neighbours: a response's numbers do not depend on how long another one is -------------------


@given(sizes=lengths, longer=st.integers(8, 30), seed=seeds)
@settings(max_examples=50, deadline=None)
def test_a_longer_neighbour_changes_nothing(sizes: list[int], longer: int, seed: int) -> None:
    few, more = torch.tensor(sizes), torch.tensor([*sizes, longer])
    count = sum(sizes)
    rewards, values, old, now, advantages = (noise(count + longer, seed + i) for i in range(5))
    for alone, beside in (
        (discounted_returns(rewards[:count], few, 0.9), discounted_returns(rewards, more, 0.9)),
        *zip(gae(rewards[:count], values[:count], few, 0.9, 0.8), gae(rewards, values, more, 0.9, 0.8), strict=True),
        *zip(
            importance_weights(now[:count], old[:count], few, "masked", "sequence", 0.5, 2.0),
            importance_weights(now, old, more, "masked", "sequence", 0.5, 2.0),
            strict=True,
        ),
        *(
            (
                policy_loss(kind, now[:count], old[:count], advantages[:count], few, Clip(0.2, 0.28))[0],
                policy_loss(kind, now, old, advantages, more, Clip(0.2, 0.28))[0],
            )
            for kind in LOSSES
        ),
    ):
        assert torch.equal(alone, beside[:count])


# -- Advantages ---------------------------------------------------------------------------------------------


@given(rewards=st.lists(numbers, min_size=2, max_size=9), shift=numbers, data=st.data())
@settings(max_examples=80, deadline=None)
def test_advantages_of_a_group(rewards: list[float], shift: float, data: st.DataObject) -> None:
    values = torch.tensor([rewards], dtype=torch.float64)
    order = data.draw(st.permutations(range(len(rewards))))
    for kind in KINDS:
        found = group_advantages(values, kind)  # type: ignore[arg-type]
        assert abs(float(found.sum())) < 1e-8
        assert torch.allclose(group_advantages(values[:, order], kind), found[:, order], atol=1e-9)  # type: ignore[arg-type]
        both = group_advantages(torch.cat([values, values + 7]), kind)  # type: ignore[arg-type]
        assert torch.allclose(both[0], found[0], atol=1e-9)  # one group knows nothing of another
        if float(values.std()) > 1e-3:
            shifted = group_advantages(values + shift, kind)  # type: ignore[arg-type]
            assert torch.allclose(shifted, found, atol=1e-6)
    size = len(rewards)
    centred, left_out = (group_advantages(values, kind) for kind in ("dr_grpo", "rloo"))  # type: ignore[arg-type]
    assert torch.allclose(left_out, centred * size / (size - 1), atol=1e-9)
    if float(values.std()) > 1e-3:
        scaled = group_advantages(values * 5, "grpo", eps=0.0)
        assert torch.allclose(scaled, group_advantages(values, "grpo", eps=0.0), atol=1e-9)


@given(sizes=lengths, seed=seeds)
@settings(max_examples=40, deadline=None)
def test_whitened_advantages_have_mean_0_and_variance_1_over_what_counts(sizes: list[int], seed: int) -> None:
    values, kept = noise(sum(sizes), seed), noise(sum(sizes), seed + 1) > -0.5
    white = whiten(values, kept)
    assert float(white[~kept].abs().sum()) == 0
    if int(kept.sum()) > 1:
        assert abs(float(white[kept].mean())) < 1e-9
        variance = float(values[kept].var())
        assert float(white[kept].var()) == pytest.approx(variance / (variance + 1e-8), rel=1e-9), "eps as verl's"
    far = values + torch.where(kept, 0.0, 1e6)
    assert torch.allclose(whiten(far, kept), white)


@given(sizes=st.lists(st.integers(2, 7), min_size=2, max_size=5), seed=seeds)
@settings(max_examples=40, deadline=None)
def test_process_supervision_with_one_step_at_the_end_is_outcome_supervision(sizes: list[int], seed: int) -> None:
    lengths_S, rewards = torch.tensor(sizes), noise(len(sizes), seed)
    found = process_advantages(rewards, torch.arange(len(sizes)), lengths_S - 1, lengths_S)
    assert torch.allclose(found, spread(group_advantages(rewards[None], "grpo")[0], lengths_S))
    # Steps normalised together sum to 0; a token after the last step has none to come.
    steps = torch.cat([rewards, noise(len(sizes), seed + 1)])
    places = torch.cat([torch.zeros(len(sizes), dtype=torch.long), lengths_S - 2])
    found = process_advantages(steps, torch.arange(len(sizes)).repeat(2), places, lengths_S)
    starts = lengths_S.cumsum(0) - lengths_S
    assert abs(float(found[starts].sum())) < 1e-6 and not found[starts + lengths_S - 1].any()


@given(sizes=lengths, seed=seeds)
@settings(max_examples=40, deadline=None)
def test_gae_at_its_ends(sizes: list[int], seed: int) -> None:
    lengths_S, rewards, values = torch.tensor(sizes), noise(len(sizes), seed), noise(sum(sizes), seed + 1)
    rewards_N = token_rewards(rewards, lengths_S)
    whole, targets = gae(rewards_N, values, lengths_S, 1.0, 1.0)
    assert torch.allclose(whole, spread(rewards, lengths_S) - values)
    assert torch.allclose(targets, spread(rewards, lengths_S))
    last = torch.zeros(sum(sizes), dtype=torch.bool)
    last[lengths_S.cumsum(0) - 1] = True
    following = torch.where(last, 0.0, values.roll(-1))
    one_step, _ = gae(rewards_N, values, lengths_S, 0.9, 0.0)
    assert torch.allclose(one_step, rewards_N + 0.9 * following - values)
    # A critic that is right leaves nothing over.
    right = discounted_returns(rewards_N, lengths_S, 0.9)
    assert gae(rewards_N, right, lengths_S, 0.9, 0.7)[0].abs().max() < 1e-12


# -- Losses -------------------------------------------------------------------------------------------------


@given(sizes=lengths, seed=seeds)
@settings(max_examples=50, deadline=None)
def test_on_policy_all_have_the_policy_gradient_and_without_advantage_none(sizes: list[int], seed: int) -> None:
    lengths_S, advantages = torch.tensor(sizes), noise(sum(sizes), seed)
    shared = spread(noise(len(sizes), seed), lengths_S)  # GSPO's theorem is for one advantage a response
    for kind in LOSSES:
        taken = shared if kind == "gspo" else advantages
        now = (-noise(sum(sizes), seed + 1).abs()).requires_grad_()
        loss, clipped = policy_loss(kind, now, now.detach().clone(), taken, lengths_S, Clip(0.2, 0.28, 3.0))  # type: ignore[arg-type]
        loss.sum().backward()
        assert torch.allclose(now.grad, -taken) and not clipped.any()  # type: ignore[arg-type]
        away = (now.detach() + noise(sum(sizes), seed + 2)).requires_grad_()
        loss, _ = policy_loss(kind, away, now.detach(), torch.zeros(sum(sizes)), lengths_S, Clip(0.2, 0.28))  # type: ignore[arg-type]
        loss.sum().backward()
        assert not loss.any() and not away.grad.any()  # type: ignore[union-attr]


@given(sizes=lengths, seed=seeds)
@settings(max_examples=50, deadline=None)
def test_clipping_is_pessimistic_and_the_dual_clip_bounds_it(sizes: list[int], seed: int) -> None:
    lengths_S, advantages = torch.tensor(sizes), noise(sum(sizes), seed)
    now, old = noise(sum(sizes), seed + 1), noise(sum(sizes), seed + 2)
    ratio = (now - old).exp()
    plain, _ = policy_loss("clip", now, old, advantages, lengths_S, Clip(0.2, 0.28))
    bounded, _ = policy_loss("clip", now, old, advantages, lengths_S, Clip(0.2, 0.28, 3.0))
    assert (plain >= -ratio * advantages - 1e-12).all() and (bounded <= plain).all()
    assert (bounded <= 3.0 * advantages.abs() + 1e-12).all()
    assert torch.equal(policy_loss("clip", now, old, advantages, lengths_S, Clip(0.2, 0.28, 1e9))[0], plain)
    assert torch.equal(bounded[advantages > 0], plain[advantages > 0])


@given(sizes=lengths, absent=st.integers(0, 3))
@settings(max_examples=50, deadline=None)
def test_weights_of_a_batch(sizes: list[int], absent: int) -> None:
    """A loss of 1 everywhere: 1 for the means; responses without loss count nowhere."""
    lengths_S = torch.tensor([*sizes, *[0] * absent])
    for kind, expected in zip(AGGREGATIONS, (1, 1, sum(sizes) / len(sizes) / 9), strict=True):
        weights = token_weights(lengths_S, kind, 9)  # type: ignore[arg-type]
        assert float((weights * lengths_S).sum()) == pytest.approx(expected, rel=1e-6)
        assert torch.equal(weights[: len(sizes)], token_weights(torch.tensor(sizes), kind, 9))  # type: ignore[arg-type]


# -- KL, exactly over a small vocabulary --------------------------------------------------------------------

logits = st.lists(st.floats(-3, 3), min_size=3, max_size=6)


@given(one=logits, data=st.data())
@settings(max_examples=60, deadline=None)
def test_expected_values_and_gradients_of_the_estimators(one: list[float], data: st.DataObject) -> None:
    z = torch.tensor(one, dtype=torch.float64, requires_grad=True)
    other = data.draw(st.lists(st.floats(-3, 3), min_size=len(one), max_size=len(one)))
    reference = torch.log_softmax(torch.tensor(other, dtype=torch.float64), 0)

    def kl(a: Tensor, b: Tensor) -> Tensor:
        return (a.exp() * (a - b)).sum()

    def gradient(value: Tensor) -> Tensor:
        return torch.autograd.grad(value, z, retain_graph=True)[0]

    policy = torch.log_softmax(z, 0)
    chance = policy.exp().detach()  # samples do not depend on the weights that are differentiated
    expected = {kind: (chance * kl_estimate(policy, reference, kind)).sum() for kind in ("k1", "k2", "k3", "k3+")}  # type: ignore[arg-type]
    true = kl(policy, reference)
    for kind in ("k1", "k3", "k3+"):
        assert expected[kind].item() == pytest.approx(true.item(), abs=1e-9)
    assert gradient(expected["k1"]).abs().max() < 1e-12
    for kind in ("k2", "k3+"):
        assert torch.allclose(gradient(expected[kind]), gradient(true), atol=1e-9)
    assert torch.allclose(gradient(expected["k3"]), gradient(kl(reference, policy)), atol=1e-9)
    assert (kl_estimate(policy.detach(), reference, "k3") >= 0).all()
    # KL in the reward, by the score function: -beta k1 as a reward has the gradient of -beta KL.
    score = (chance * (kl_estimate(policy, reference, "k1").detach()) * policy).sum()
    assert torch.allclose(gradient(score), gradient(true), atol=1e-9)


# -- The whole update: micro-batches, processes, order ------------------------------------------------------

BASE = FreshModel(hidden_size=16, intermediate_size=24, layers=1, heads=2, kv_heads=1, alphabet="arithmetic")
MODEL = fresh_network(BASE, character_tokenizer(BASE), seed=3).eval()
LEARNER = TorchLearner(MODEL, Muon(lr=1e-3), 10)


def backend(rank: int = 0, world: int = 1) -> Any:
    """One process of several, without the others: sums stay partial."""
    one: Any = Ranks(torch.device("cpu"))
    one.rank, one.world = rank, world
    one.sum_, one.gather = lambda tensor: None, lambda value: [value]
    return one


def random_groups(seed: int, count: int, size: int) -> list[RolloutGroup]:
    draw = torch.Generator().manual_seed(seed)

    def tokens(most: int) -> tuple[int, ...]:
        length = int(torch.randint(1, most, (1,), generator=draw))
        return tuple(torch.randint(3, 20, (length,), generator=draw).tolist())

    groups = []
    for number in range(count):
        responses = tuple(tokens(9) for _ in range(size))
        rewards = tuple(torch.randint(0, 2, (size,), generator=draw).float().tolist()) if number else (1.0,) * size
        old = tuple(tuple((-torch.rand(len(each), generator=draw) * 3 - 1).tolist()) for each in responses)
        groups.append(
            RolloutGroup(
                problem=number,
                prompt=tokens(6),
                responses=responses,
                logprobs=old,
                rewards=rewards,
                correct=tuple(bool(each) for each in rewards),
                parts=({},) * size,
                truncated=tuple((torch.rand(size, generator=draw) < 0.3).tolist()),
            )
        )
    return groups


def gradient(batch: Batch, params: Rl, world: int = 1) -> tuple[Tensor, float]:
    total, loss = torch.zeros_like(LEARNER.flat.gradients), 0.0
    for rank in range(world):
        LEARNER.ranks = backend(rank, world)
        figures = update_gradient(LEARNER, params, batch, params.kl_coef)
        total += LEARNER.flat.gradients
        loss += figures.loss
    return total, loss


def made(groups: Sequence[RolloutGroup], params: Rl) -> Batch:
    batch, _ = scored_batch(groups, params, backend(), MODEL)
    return batch


settings_of_loss = st.fixed_dictionaries(
    {
        "loss": st.fixed_dictionaries(
            {
                "aggregation": st.sampled_from(AGGREGATIONS),
                "type": st.sampled_from(LOSSES),
                "entropy_coef": st.sampled_from([0.0, 0.01]),
            }
        ),
        "advantage": st.fixed_dictionaries({"type": st.sampled_from(KINDS), "whiten": st.booleans()}),
        "truncated": st.sampled_from(["keep", "mask"]),
        "max_tokens": st.just(10),
    }
)


@given(options=settings_of_loss, seed=seeds, budget=st.integers(16, 60), world=st.integers(1, 3), data=st.data())
@settings(max_examples=25, deadline=None)
def test_the_gradient_is_of_the_batch_and_not_of_how_it_is_cut(
    options: dict[str, Any], seed: int, budget: int, world: int, data: st.DataObject
) -> None:
    params, groups = Rl(**options), random_groups(seed, 5, 3)
    whole, loss = gradient(made(groups, params), params)
    loss_of_all = params.loss.model_copy(update={"skip_zero_variance": False})
    cut = params.model_copy(update={"tokens_per_microbatch": budget, "loss": loss_of_all})
    order = data.draw(st.permutations(range(5)))
    turned = [groups[i] for i in order]
    shuffled, shuffled_loss = gradient(made(turned, cut), cut, world)
    tolerance = 1e-5 * (1 + float(whole.abs().max()))
    assert torch.allclose(shuffled, whole, atol=tolerance) and shuffled_loss == pytest.approx(loss, abs=1e-5)


def test_a_process_alone_has_another_gradient() -> None:
    """Were each process's share normalised by itself, or one's taken for all, the sum would not be right."""
    params, groups = Rl(max_tokens=10), random_groups(4, 5, 3)
    whole, _ = gradient(made(groups, params), params)
    for rank in range(2):
        LEARNER.ranks = backend(rank, 2)
        update_gradient(LEARNER, params, made(groups, params), 0.0)
        assert (LEARNER.flat.gradients - whole).norm() > 0.05 * whole.norm() > 1e-4
    apart, _ = gradient(made(groups[2:], params), params)
    assert (apart - whole).norm() > 0.05 * whole.norm()


@pytest.mark.parametrize("kind", KINDS)
def test_groups_without_a_difference_have_no_gradient(kind: str) -> None:
    uniform = random_groups(1, 1, 4)
    params = Rl(advantage=kind, loss={"skip_zero_variance": False}, max_tokens=10)  # type: ignore[arg-type]
    found, loss = gradient(made(uniform, params), params)
    assert loss == 0 and not found.any()
    # They count in the denominators: beside them the others weigh less.
    other = random_groups(2, 2, 4)[1:]
    alone, _ = gradient(made(other, params), params)
    beside, _ = gradient(made([*other, *uniform], params), params)
    tokens = [sum(len(each) for group in groups for each in group.responses) for groups in (other, uniform)]
    assert torch.allclose(beside, alone * tokens[0] / sum(tokens), atol=1e-6) and alone.norm() > 1e-3


def test_masked_responses_change_nothing_but_by_their_absence() -> None:
    """A truncated response that is masked: its advantage counts in its group, its tokens nowhere."""
    params = Rl(truncated="mask", max_tokens=10, loss={"aggregation": "token_mean"})
    (group,) = random_groups(7, 2, 3)[1:]
    masked = RolloutGroup(**{**vars_of(group), "truncated": (False, False, True)})
    batch = made([masked], params)
    found, _ = gradient(batch, params)
    kept = sum(len(each) for each in group.responses[:2])
    by_hand = Batch(
        batch.groups, batch.lengths_S, batch.old_N, batch.advantages_N * batch.kept_N, torch.ones_like(batch.kept_N)
    )
    over_all, _ = gradient(by_hand, params)
    assert torch.allclose(found, over_all * len(batch.old_N) / kept, atol=1e-6)
    assert math.isfinite(float(found.norm())) and int(batch.counted_S[2]) == 0


def vars_of(group: RolloutGroup) -> dict[str, Any]:
    return {name: getattr(group, name) for name in RolloutGroup.__dataclass_fields__}
