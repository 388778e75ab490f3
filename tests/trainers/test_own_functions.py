"""A loss and an advantage of one's own: as the built-in one where it is the same, refused where it is none."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mathrl.algorithms.own_functions import LossInput, OwnFunction
from mathrl.compose import load_params
from mathrl.core.code_values import code_values
from mathrl.core.errors import UserError
from mathrl.learners.distributed import Ranks
from mathrl.learners.torch_learner import TorchLearner
from mathrl.models.logprobs import response_logprobs
from mathrl.trainers.policy_update import update_gradient

ROOT = Path(__file__).parents[2]
HERE = "tests.trainers.own_losses"
CPU = Ranks(torch.device("cpu"))
VARIANTS: dict[str, dict[str, Any]] = {
    "two updates, masked truncated responses": {"minibatches": 2, "truncated": "mask"},
    "whitened, with a KL": {"advantage": {"whiten": True}, "kl": {"coef": 0.01}},
}


def own(name: str, **options: Any) -> dict[str, Any]:
    return {"type": "function", "path": f"{HERE}:{name}", "options": options}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_clipped_loss_and_an_advantage_of_ones_own_train_as_the_built_in_ones(variant: str, small: Any) -> None:
    changes = VARIANTS[variant]
    theirs = {**changes, "advantage": own("group_mean", scale=True) | changes.get("advantage", {})}
    params = small.short_rl(steps=2, loss={"high": 0.3}, **changes)
    _, expected, _ = small.run(params)
    params = small.short_rl(steps=2, loss=own("clipped", high=0.3), **theirs)
    _, rows, _ = small.run(params)
    for row, before in zip(rows, expected, strict=True):
        before.pop("advantage/mean", None)
        assert row == pytest.approx(before, rel=1e-5, abs=1e-6)
    assert any(row["grad_norm"] > 0 for row in rows)


SEEN: list[LossInput] = []


def remember(tokens: LossInput) -> torch.Tensor:
    SEEN.append(tokens)
    return -tokens.logprobs_N * tokens.advantages_N


def test_a_loss_sees_the_entropies_what_is_kept_and_the_lengths(small: Any) -> None:
    model, sampler = small.policy()
    groups = [replace(small.rollouts(model, sampler)[1], truncated=(True, False, False, False))]
    params = small.short_rl(loss={"type": "function", "path": f"{__name__}:remember"}, truncated="mask")
    batch, _ = small.scored_batch(groups, params, CPU, model)
    SEEN.clear()
    update_gradient(TorchLearner(model, params.optimizer, 10), params, batch, 0.0)
    (seen,) = SEEN
    logprobs_N, entropies_N = response_logprobs(model, [groups[0].group], params.temperature)
    assert torch.allclose(seen.entropies_N, entropies_N, atol=1e-5)
    assert torch.allclose(seen.logprobs_N, logprobs_N, atol=1e-5)
    assert seen.lengths_S.tolist() == groups[0].lengths
    assert seen.kept_N.tolist() == [number != 0 for number, each in enumerate(groups[0].lengths) for _ in range(each)]


def test_an_advantage_per_token_is_that_of_its_response(small: Any) -> None:
    runs = [small.run(small.short_rl(steps=1, advantage=own(name)))[1] for name in ("group_mean", "per_token")]
    assert runs[0] == runs[1] and runs[0][0]["grad_norm"] > 0


@pytest.mark.parametrize("name", ["clipped", "by_response"])
def test_right_losses_pass(name: str) -> None:
    OwnFunction("rl.loss", f"{HERE}.{name}", {}).check_loss(skips_zero=True)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("unclamped", "the loss of a token is not finite with log-ratios of up to 25"),
        ("one_number", r"a loss per token, \[8\], found one number"),
        ("detached", "no gradient reaches the loss"),
        ("blind", "a token with an advantage has no gradient"),
        ("wrong_sign", "return minus the advantage times the ratio"),
        ("with_entropy", "set rl.loss.skip_zero_variance to false"),
        ("normalised", "depends on the others of its micro-batch .*compute it per response"),
        ("of_masked", "depends on tokens that are masked"),
        ("random", "two calls with the same tokens give different losses"),
        ("raises", "KeyError: 'two'"),
        ("none", r"cannot be imported .*write package\.module\.name"),
        ("LossInput", "unexpected|missing"),
    ],
)
def test_a_loss_that_is_none_is_refused_by_the_property_that_it_breaks(name: str, problem: str, small: Any) -> None:
    with pytest.raises(UserError, match=f"rl.loss: {HERE}:{name}.*(?:{problem})|rl.loss: '{HERE}:{name}' {problem}"):
        small.run(small.short_rl(steps=1, loss=own(name) | {"skip_zero_variance": True}))


def test_a_loss_with_a_term_beside_the_advantage_takes_all_groups(small: Any) -> None:
    params = small.short_rl(steps=1, loss=own("with_entropy") | {"skip_zero_variance": False})
    assert small.run(params)[1][0]["grad_norm"] > 0


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("divided_by_zero", "an advantage is not finite where all rewards of a group are equal"),
        ("by_place", "depends on its place in the group"),
        ("too_few", r"an advantage per response, \[5\], or per token, \[9\], found \[4\]"),
    ],
)
def test_an_advantage_that_is_none_is_refused(name: str, problem: str, small: Any) -> None:
    with pytest.raises(UserError, match=f"rl.advantage: {HERE}:{name}: .*{problem}"):
        small.run(small.short_rl(steps=1, advantage=own(name)))


def test_a_function_of_tokens_or_responses_needs_no_row() -> None:
    loss = f"rl.loss={{type: function, path: '{HERE}:clipped', options: {{high: 1}}}}"
    advantage = f"rl.advantage={{type: function, path: '{HERE}:by_place'}}"
    rl = load_params(ROOT / "params", overrides=[loss, advantage]).rl
    assert rl.loss.type == rl.advantage.type == "function"


def test_options_are_checked_before_a_run_and_another_engine_refuses_it() -> None:
    loss = f"rl.loss={{type: function, path: '{HERE}:clipped', options: {{hgih: 1}}}}"
    with pytest.raises(UserError, match=r"loss\.options\.hgih: unknown option \(did you mean high\?\)"):
        load_params(ROOT / "params", overrides=[loss])
    with pytest.raises(UserError, match=r"loss.path: .* defines no 'cliped' \(did you mean clipped\?\)"):
        load_params(ROOT / "params", overrides=[f"rl.loss={{type: function, path: '{HERE}:cliped'}}"])
    for engine in ("trl", "verl"):
        with pytest.raises(UserError, match=r"rl\.loss\.type"):
            overrides = [f"rl.engine={engine}", f"rl.loss={{type: function, path: '{HERE}:clipped'}}"]
            load_params(ROOT / "params", overrides=overrides)


def test_a_changed_loss_reruns_what_was_trained_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MATHRL_HOME", str(tmp_path / "home"))
    (tmp_path / "my_project").mkdir()
    (tmp_path / "params").mkdir()
    (tmp_path / "pyproject.toml").write_text('[tool.mathrl]\ncode = ["my_project"]\n')
    (tmp_path / "params" / "rl.yaml").write_text("loss: {type: function, path: my_project.losses:mine}\n")
    module = tmp_path / "my_project" / "losses.py"
    module.write_text("def mine(tokens):\n    return -tokens.advantages_N * tokens.logprobs_N\n")
    before = code_values(tmp_path)["own"]
    module.write_text("def mine(tokens):  # the same\n    return -tokens.advantages_N * tokens.logprobs_N\n")
    assert code_values(tmp_path)["own"] == before != ""
    module.write_text("def mine(tokens):\n    return -2 * tokens.advantages_N * tokens.logprobs_N\n")
    assert code_values(tmp_path)["own"] != before
    assert "my_project.losses" not in sys.modules
