"""Filters between grading and training: what each catches, and that what is caught has no loss and keeps its reward."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mathrl.core.errors import UserError
from mathrl.learners.distributed import Ranks
from mathrl.learners.torch_learner import TorchLearner
from mathrl.params.optimizer import Muon
from mathrl.params.responses import FunctionFilter, Gibberish, Repetition, SureRun
from mathrl.params.train import Rl
from mathrl.trainers.policy_update import update_gradient
from mathrl.trainers.response_filters import (
    GradedResponse,
    catcher,
    filter_groups,
    filter_label,
    filter_metrics,
    has_gibberish,
    longest_sure_run,
)
from mathrl.trainers.rollouts import RolloutGroup
from tests.trainers.small import TOKENIZER, policy, rollouts, scored_batch

CPU = Ranks(torch.device("cpu"))


def response(tokens: list[int], probabilities: list[float], **more: Any) -> GradedResponse:
    given = {"text": "", "reward": 0.0, "correct": False, "truncated": False, "repeated": 0.0, "parts": {}} | more
    ids = np.array(tokens, np.int32)
    return GradedResponse(tokens=ids, sampled=ids, logprobs=np.log(np.array(probabilities, np.float32)), **given)


def long_and_wrong(given: GradedResponse, least: int) -> bool:
    return not given.correct and len(given.tokens) >= least


def test_what_each_filter_catches_by_hand() -> None:
    # A uniform choice from 1,000 tokens has probability 1e-3; e less than that is 3.7e-4.
    gibberish = catcher(Gibberish(token_above=800, offset=1.0), 1000)
    assert gibberish(response([5, 900], [0.9, 3e-4])) and not gibberish(response([5, 900], [0.9, 4e-4]))
    assert not gibberish(response([800, 900], [1e-6, 0.5])), "unlikely alone, or rare alone, is no gibberish"
    below = np.array([-8.0]), 800, -8.0
    assert not has_gibberish(np.array([900]), *below) and has_gibberish(np.array([900]), np.array([-8.5]), *below[1:])
    sure = catcher(SureRun(window=3, probability=0.9), 1000)
    assert sure(response([1] * 5, [0.5, 0.95, 0.95, 0.95, 0.5])) and sure(response([1] * 3, [0.95] * 3))
    assert not sure(response([1] * 5, [0.95, 0.95, 0.9, 0.95, 0.95])), "0.9 itself is not above 0.9"
    assert longest_sure_run(np.log(np.array([0.9])), 0.9) == 0 and longest_sure_run(np.array([]), 0.9) == 0
    repetition = catcher(Repetition(share=0.3), 1000)
    assert repetition(response([1], [1.0], repeated=0.31)) and not repetition(response([1], [1.0], repeated=0.3))
    own = FunctionFilter(path=f"{__name__}:long_and_wrong", options={"least": 2})  # type: ignore[arg-type]
    assert filter_label(own) == "long_and_wrong"
    assert catcher(own, 1000)(response([1, 2], [1.0, 1.0])) and not catcher(own, 1000)(response([1], [1.0]))
    for path in ("tests.trainers.test_response_filters:nothing", f"{__name__}:CPU"):
        with pytest.raises(UserError, match=r"rl\.filters: .*(cannot be imported|is not callable)"):
            catcher(FunctionFilter(path=path), 1000)


SEEN: list[GradedResponse] = []


def remember(given: GradedResponse) -> bool:
    SEEN.append(given)
    return False


def test_a_filter_sees_all_of_a_response_and_which_tokens_were_sampled() -> None:
    one, end = TOKENIZER.encode("1")[0], TOKENIZER.eos_token_id
    group = RolloutGroup(
        problem=0, prompt=(one,), responses=((one, one, end), (one, one)), logprobs=((-0.5, -2), (-0.25, -1)),
        rewards=(1.0, 0.5), correct=(True, False), truncated=(False, True), parts=({"form": 1.0}, {"form": 0.5}),
        repeated=(0.25, 0.5), sampled=(np.array([True, False, True]), np.array([True, True])),
    )  # fmt: skip
    SEEN.clear()
    own = FunctionFilter(path=f"{__name__}:remember")
    assert filter_label(own) == "remember"
    found = filter_groups([group, replace(group, repeated=())], [own], TOKENIZER)
    assert all((each.caught, each.left_out) == (("", ""), (False, False)) for each in found)
    rows = [
        {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(each).items()}
        for each in SEEN
    ]
    first = {"text": "11", "tokens": [one, one, end], "sampled": [one, end], "logprobs": [-0.5, -2], "reward": 1.0}
    first |= {"correct": True, "truncated": False, "repeated": 0.25, "parts": {"form": 1.0}}
    second = {"text": "11", "tokens": [one, one], "sampled": [one, one], "logprobs": [-0.25, -1], "reward": 0.5}
    second |= {"correct": False, "truncated": True, "repeated": 0.5, "parts": {"form": 0.5}}
    assert rows == [first, second, first | {"repeated": 0.0}, second | {"repeated": 0.0}]


def test_a_caught_response_has_no_loss_and_its_reward_stays_in_the_mean() -> None:
    """As if it were truncated and rl.truncated were mask; the first filter that catches it counts."""
    model, sampler = policy()
    groups = [replace(group, truncated=(False,) * 4) for group in rollouts(model, sampler)]
    groups = [replace(group, repeated=(0.0, 0.9, 0.0, 0.6)) for group in groups]
    params = Rl(filters=[{"type": "repetition", "share": 0.7}, {"type": "sure_run", "window": 1, "enforce": False}])  # type: ignore[arg-type]
    found = filter_groups(groups, params.filters, TOKENIZER)
    assert all(group.left_out == (False, True, False, False) for group in found)
    assert all(group.caught[1] == "repetition" for group in found)
    masked = [replace(group, truncated=(False, True, False, False)) for group in groups]

    def gradient(given: Any, params: Rl) -> torch.Tensor:
        learner = TorchLearner(model, Muon(lr=1e-3), 10)
        update_gradient(learner, params, scored_batch(given, params, CPU, model)[0], 0.0)
        return learner.flat.gradients.clone()

    expected = gradient(masked, Rl(truncated="mask"))
    assert torch.equal(gradient(found, params), expected) and expected.norm() > 1e-3
    assert not torch.allclose(gradient(groups, Rl()), expected, atol=1e-4), "the filter matters"
    figures = filter_metrics(found, params.filters)
    assert figures["filter/repetition"] == figures["filter/left_out_share"] == 0.25
    assert 0 <= figures["filter/sure_run"] <= 0.75 and filter_metrics(found, ()) == {}
