"""Ranks that share the tokens of a micro-batch compute plain torch's numbers, each with its part of the activations."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.models.base import character_tokenizer, fresh_config
from mathrl.models.model_shape import shape_of
from mathrl.planning.memory import kept_activations
from tests.learners import context_runs
from tests.learners.test_fsdp import assert_equal_runs

VALUES = 2e-6  # of log-probs near 3: products of fewer rows may add in another order


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, run_program: Callable[..., str]) -> Path:
    folder = tmp_path_factory.mktemp("context")
    run_program(Path(__file__).with_name("context_runs.py"), folder)
    return folder


@pytest.fixture(scope="module")
def worlds(out: Path) -> dict[int, Any]:
    return {world: torch.load(out / f"{world}.pt", weights_only=True) for world in (2, 4)}


@pytest.mark.parametrize("name", context_runs.RUNS)
def test_two_ranks_that_share_micro_batches_train_as_plain_torch(worlds: dict[int, Any], name: str) -> None:
    """Every metric of every step: losses, gradient norms, KL, entropies, ratios, the numbers of tokens."""
    plain, shared = worlds[2][name]
    assert_equal_runs(shared, plain)
    rows = plain[1]
    assert all(row["grad_norm"] > 1e-3 for row in rows)
    if name == "gspo":
        assert all(row["entropy"] > 0.1 and row["kl"] >= 0 and row["trained_tokens"] > 0 for row in rows)


def test_of_four_ranks_two_or_all_share(worlds: dict[int, Any]) -> None:
    """A key head is computed at two ranks where all share. SFT is the same over any number of ranks."""
    plain, shared = worlds[4]["ppo"]
    assert_equal_runs(shared, plain)
    assert_equal_runs(worlds[4]["sft"], worlds[2]["sft"][0])


@pytest.mark.parametrize("fault", ["own tokens", "figures"])
def test_a_mistake_shows(worlds: dict[int, Any], fault: str) -> None:
    with pytest.raises(AssertionError):
        assert_equal_runs(worlds[2][fault], worlds[2]["sft"][0])


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", context_runs.ROWS)
def test_each_kind_of_row_has_the_values_and_gradients_of_a_rank_alone(
    worlds: dict[int, Any], ranks: int, name: str
) -> None:
    expected, expected_gradient, values, gradient = worlds[ranks]["rows"][name]
    assert expected.std() > 0.01 and torch.allclose(values, expected, rtol=0, atol=VALUES)
    assert expected_gradient.norm() > 1e-3
    assert (gradient - expected_gradient).norm() < 1e-5 * expected_gradient.norm()


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_keeps_its_part_of_the_activations_as_planned(worlds: dict[int, Any], ranks: int) -> None:
    held = worlds[ranks]["bytes"]
    assert held["shared"] < 1.1 * held["alone"] / ranks
    shape = shape_of(fresh_config(context_runs.WIDE, character_tokenizer(context_runs.WIDE)))
    tokens = held["tokens"] // ranks
    given = load_params(Path(__file__).parents[2] / "params", overrides=["model.precision=float32"])
    planned = sum(
        size for name, size in kept_activations(shape, tokens, 80, given, False).items() if "temporaries" not in name
    )
    assert held["shared"] == pytest.approx(planned + 4 * tokens * shape.vocabulary, rel=0.1)


def test_what_cannot_be_shared_is_refused_with_a_value_that_can(worlds: dict[int, Any]) -> None:
    heads, padded, positions = worlds[2]["refusals"]
    assert "3 query heads and 3 key heads" in heads and heads.endswith("set it to 1")
    assert "qwen2 are computed padded" in padded and "set it to 1" in padded
    assert "rope dynamic" in positions
    with pytest.raises(UserError, match=r"there are 3 ranks: make run\.processes .* a multiple of 2"):
        context_runs.sharing(2).check_ranks(3)
    context_runs.sharing(2).check_ranks(4)
