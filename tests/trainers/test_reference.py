"""The reference of the KL gets the policy's weights after some steps, and a run resumes with the one it had."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from mathrl.learners.checkpoint import CheckpointFolder
from mathrl.params.train import Rl
from mathrl.trainers.open_rl import Helpers, open_rl
from tests.trainers.small import PROBLEMS, CountsOnes, Killed, changed, policy, run, short_rl, training_run

PARAMS = changed(short_rl(), steps=5, checkpoint_every=1, kl={"coef": 0.2, "reset_every": 2})


def test_the_kl_is_measured_from_the_policy_after_every_second_step() -> None:
    """At steps 1, 3 and 5 the reference is the policy that samples: a KL of 0. (In the loss: its golden trace.)"""
    params = changed(PARAMS, kl={"type": "reward", "coef": 0.2, "reset_every": 2})
    _, rows, _ = run(params)
    assert [row["reference_step"] for row in rows] == [0, 2, 2, 4, 4]
    kls = [abs(row["kl"]) for row in rows]
    assert max(kls[0], kls[2], kls[4]) < 1e-5 and min(kls[1], kls[3]) > 3e-4
    _, stays, _ = run(changed(params, kl={"reset_every": None}))
    assert "reference_step" not in stays[0]
    assert stays[1] == {name: value for name, value in rows[1].items() if name != "reference_step"}


def test_a_resumed_run_has_the_reference_it_had(tmp_path: Path) -> None:
    params = changed(PARAMS, steps=4)
    _, rows, _ = run(params, tmp_path / "whole")
    for last, parts in ((1, {"rl"}), (3, {"rl", "reference"})):
        state = tmp_path / str(last)
        with pytest.raises(Killed):
            run(params, state, last=last)
        saved = CheckpointFolder(state / "checkpoints").latest()
        names = {each.partition("/")[0] for each in saved.tensors} if saved is not None else set()
        assert names == parts, "the start's weights need no saving"
        assert run(params, state)[1] == rows


def test_the_reference_is_a_copy_without_gradients(tmp_path: Path) -> None:
    model, sampler = policy()
    setup = open_rl(model, sampler, PROBLEMS, CountsOnes(), PARAMS, training_run(tmp_path), Helpers())
    assert setup.reference is not model and not any(each.requires_grad for each in setup.reference.parameters())
    assert all(each.requires_grad for each in model.parameters())


def test_a_reference_that_was_given_is_replaced() -> None:
    _, rows, _ = run(changed(PARAMS, steps=3), reference=policy(seed=8)[0])
    assert rows[0]["kl"] > 1e-3 and rows[1]["kl"] > 1e-3 and abs(rows[2]["kl"]) < 1e-5


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"kl": {"coef": 0.0, "reset_every": 5}}, "without it there is no reference"),
        ({"kl": {"reset_every": 5}, "lora": {}}, "set lora null"),
        ({"kl": {"type": "probe", "reset_every": 5}}, "reset_every"),
    ],
)
def test_without_a_reference_of_its_own_nothing_is_reset(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(ValidationError, match=what):
        Rl(**settings)
