"""A model that learns: schedule by updates made, what is skipped, the average, what a checkpoint holds."""

import math
from typing import Any

import pytest
import torch

from mathrl.core.errors import UserError
from mathrl.learners.checkpoint import Checkpoint
from mathrl.learners.distributed import Ranks
from mathrl.learners.optimizer import optimizer_arguments
from mathrl.learners.torch_learner import TorchLearner, share_gradients
from mathrl.params.optimizer import AdamW, Muon
from mathrl.params.training import Training

SGD_LIKE = AdamW(lr=0.01, warmup_steps=2, schedule="linear", clip_norm=None)


def learner(small: Any, ema: float | None = None) -> TorchLearner:
    made = TorchLearner(small.policy()[0], SGD_LIKE, updates=4, ema=ema)
    made.flat.gradients.fill_(0.5)
    return made


def test_the_schedule_follows_the_updates(small: Any) -> None:
    policy = learner(small)
    assert (policy.updates, policy.bad, policy.norm, policy.factor, policy.best) == (0, 0, 0.0, 0.0, None)
    factors = []
    for _ in range(4):
        policy.update(loss=1.0)
        factors.append(policy.factor)
    # Warm-up of two times a decay that ends one step after the last.
    assert factors == pytest.approx([0.5, 0.75, 0.5, 0.25]) and policy.counts == {"updates": 4, "bad": 0}
    assert policy.norm == pytest.approx(0.5 * math.sqrt(len(policy.flat.weights)))


def test_an_optimizer_has_every_setting_of_its_section() -> None:
    settings: dict[str, Any] = {"beta1": 0.8, "beta2": 0.7, "eps": 1e-5, "weight_decay": 0.3}
    adamw = {"lr": 0.5, "betas": (0.8, 0.7), "eps": 1e-5, "weight_decay": 0.3, "foreach": True, "fused": False}
    assert optimizer_arguments(AdamW(lr=0.5, **settings), fused=False) == {"AdamW": adamw}
    muon = optimizer_arguments(Muon(lr=0.5, adamw_scale=0.5, **settings), fused=True)
    assert muon["AdamW"] == adamw | {"lr": 0.25, "foreach": False, "fused": True}
    assert muon["Muon"] == {"lr": 0.5, "weight_decay": 0.3} and len(muon) == 2


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_non_finite_updates_change_nothing_and_end_the_run_after_ten(small: Any, where: str) -> None:
    policy = learner(small, ema=0.5)
    policy.update(1.0)
    before, averaged = policy.flat.weights.clone(), policy.evaluated_weights().clone()
    assert not torch.equal(before, averaged)
    if where == "gradient":
        policy.flat.gradients[3] = math.inf
    for _ in range(10):
        policy.update(math.nan if where == "loss" else 1.0)
    assert torch.equal(policy.flat.weights, before) and torch.equal(policy.evaluated_weights(), averaged)
    assert policy.counts == {"updates": 11, "bad": 10} and policy.factor == 0
    with pytest.raises(UserError, match=r"rl: 11 updates .* lower rl\.optimizer\.lr, or raise training"):
        policy.update(math.nan if where == "loss" else 1.0)


def test_how_many_are_skipped_before_the_end_is_a_parameter(small: Any) -> None:
    ranks = Ranks(torch.device("cpu"), Training(most_bad_updates=2))
    policy = TorchLearner(small.policy()[0], SGD_LIKE, 9, ranks)
    for _ in range(2):
        policy.update(math.inf)
    with pytest.raises(UserError, match=r"3 updates .* or raise training\.most_bad_updates"):
        policy.update(math.inf)


def test_the_average_moves_by_one_minus_its_decay(small: Any) -> None:
    policy = learner(small, ema=0.75)
    before = policy.flat.weights.clone()
    policy.update(1.0)
    expected = 0.75 * before + 0.25 * policy.flat.weights
    assert torch.allclose(policy.evaluated_weights(), expected, atol=1e-7)
    assert not torch.equal(policy.flat.weights, before)
    plain = learner(small)
    assert plain.evaluated_weights() is plain.flat.weights


@pytest.mark.parametrize("ema", [None, 0.75])
def test_the_best_weights_are_those_that_were_evaluated(small: Any, ema: float | None) -> None:
    policy = learner(small, ema)
    policy.update(1.0)
    with policy.with_evaluated_weights():
        evaluated = policy.flat.weights.clone()
    assert torch.equal(evaluated, policy.flat.weights) == (ema is None)
    policy.keep_best()
    policy.update(1.0)
    assert not torch.equal(policy.evaluated_weights(), evaluated)
    policy.finish()
    assert torch.equal(policy.flat.weights, evaluated)


def test_it_goes_on_from_its_tensors_and_passes_over_those_of_others(small: Any) -> None:
    policy, again = learner(small, ema=0.5), learner(small, ema=0.5)
    for _ in range(2):
        policy.update(1.0)
    tensors = {name: value.clone() for name, value in policy.tensors().items()}
    assert all(name.startswith("rl/") for name in tensors)
    others = {"rl.critic/weights": torch.zeros(3), "best": torch.zeros(1)}
    again.load(Checkpoint(2, {**tensors, **others}, {}), policy.counts)
    for each in (policy, again):
        each.flat.gradients.fill_(0.1)
        each.update(1.0)
    assert torch.equal(policy.flat.weights, again.flat.weights) and policy.factor == again.factor
    assert torch.equal(policy.evaluated_weights(), again.evaluated_weights())


def test_learners_that_take_turns_share_the_gradients_buffer(small: Any) -> None:
    """And learn what they learn apart; the longer buffer serves both, whichever it is."""

    def two() -> list[TorchLearner]:
        made = [learner(small), learner(small)]
        cut = next(iter(made[1].flat.named.values()))
        cut.requires_grad_(False)
        made[1] = TorchLearner(made[1].model, SGD_LIKE, updates=4)
        return made

    apart, shared = two(), two()
    share_gradients(shared)
    assert len({each.flat.gradients.data_ptr() for each in shared}) == 1
    assert len({len(each.flat.gradients) for each in shared}) == 2

    def loss(each: TorchLearner, scale: float) -> Any:
        return sum((scale * weight).sin().sum() for weight in each.flat.named.values()), {}

    for step in range(3):
        for each in (*apart, *shared):
            for (number,), counts in each.micro_batches([1, 1], tokens=1):
                value, _ = each.through_root(loss)(each, step + number + 1.0)
                each.backward(value * counts)
            each.update(loss=1.0)
    for one, other in zip(apart, shared, strict=True):
        assert one.norm == other.norm > 0 and torch.equal(one.flat.weights, other.flat.weights)


def test_an_evaluation_without_averaged_weights_copies_none(small: Any) -> None:
    policy = learner(small)
    before = [weight._version for weight in policy.flat.masters.values()]
    with policy.with_evaluated_weights():
        assert policy.averaged is None
    assert [weight._version for weight in policy.flat.masters.values()] == before


def test_the_trained_weights_are_back_after_an_error_in_an_evaluation(small: Any) -> None:
    policy = learner(small, ema=0.5)
    policy.update(1.0)
    before = policy.flat.weights.clone()
    with pytest.raises(KeyError), policy.with_evaluated_weights():
        assert not torch.equal(policy.flat.weights, before)
        raise KeyError
    assert torch.equal(policy.flat.weights, before)
