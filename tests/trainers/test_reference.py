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


@pytest.mark.parametrize("kind", ["loss", "reward"])
def test_the_kl_is_measured_from_the_policy_after_every_second_step(kind: str) -> None:
    """At steps 1, 3 and 5 the reference is the policy that samples: a KL of 0."""
    params = changed(PARAMS, kl={"type": kind, "coef": 0.2, "reset_every": 2})
    _, rows, _ = run(params)
    assert [row["reference_step"] for row in rows] == [0, 2, 2, 4, 4]
    kls = [abs(row["kl"]) for row in rows]
    assert max(kls[0], kls[2], kls[4]) < 1e-5 and min(kls[1], kls[3]) > 3e-4
    _, stays, _ = run(changed(params, kl={"reset_every": None}))
    assert "reference_step" not in stays[0] and abs(stays[2]["kl"]) > 3e-4
    assert stays[1] == {name: value for name, value in rows[1].items() if name != "reference_step"}
    assert stays[2]["grad_norm"] != rows[2]["grad_norm"]


@pytest.mark.parametrize("last", [1, 2, 3])
def test_a_resumed_run_has_the_reference_it_had(tmp_path: Path, last: int) -> None:
    _, rows, _ = run(PARAMS, tmp_path / "whole")
    with pytest.raises(Killed):
        run(PARAMS, tmp_path / "parts", last=last)
    saved = CheckpointFolder(tmp_path / "parts" / "checkpoints").latest()
    names = {each.partition("/")[0] for each in saved.tensors} if saved is not None else set()
    assert names == ({"rl"} if last == 1 else {"rl", "reference"}), "the start's weights need no saving"
    assert run(PARAMS, tmp_path / "parts")[1] == rows


def test_the_reference_is_a_copy_without_gradients(tmp_path: Path) -> None:
    model, sampler = policy()
    setup = open_rl(model, sampler, PROBLEMS, CountsOnes(), PARAMS, training_run(tmp_path), Helpers())
    assert setup.reference is not model and not any(each.requires_grad for each in setup.reference.parameters())
    assert all(each.requires_grad for each in model.parameters())


def test_a_reference_that_was_given_is_replaced() -> None:
    _, rows, _ = run(PARAMS, reference=policy(seed=8)[0])
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
