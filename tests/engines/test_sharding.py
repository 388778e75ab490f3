"""ZeRO 3 from a start that is sharded as it is loaded: no rank ever holds a model whole, and the numbers are equal."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from tests.marks import needs_deepspeed

LARGEST = 103 * 64  # elements of the embedding, the largest weight

pytestmark = [pytest.mark.engines, needs_deepspeed]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, run_ranks: Callable[..., None]) -> Path:
    folder = tmp_path_factory.mktemp("sharding")
    run_ranks(Path(__file__).with_name("sharded_runs.py"), {folder: 2})
    return folder


@pytest.fixture(scope="module")
def ranks(out: Path) -> list[dict[str, Any]]:
    return [torch.load(out / f"{rank}.pt", weights_only=True) for rank in range(2)]


def files(folder: Path) -> dict[str, torch.Tensor]:
    return {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert value.dtype == other[name].dtype and torch.equal(value, other[name]), name


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_weights_and_buffers_are_those_of_a_model_that_is_loaded_whole(
    ranks: list[dict[str, Any]], precision: str
) -> None:
    for results in ranks:
        assert_equal(*results[f"loaded {precision}"])
        assert torch.equal(*results[f"scored {precision}"])


@pytest.mark.parametrize(
    ("run", "expected"),
    [("sharded", "whole"), ("offloaded", "whole"), ("resumed", "sharded"), ("sharded, adapters", "whole, adapters")],
)
def test_training_gives_the_same_numbers(out: Path, ranks: list[dict[str, Any]], run: str, expected: str) -> None:
    rows, others = ranks[0][run], ranks[0][expected]
    assert len(rows) == len(others) == 2
    for row, other in zip(rows, others, strict=True):
        assert row == pytest.approx(other, rel=1e-6, abs=1e-6)
        assert row["grad_norm"] > 1e-2
    weights, expected_weights, start = (files(out / name) for name in (run, expected, "start"))
    assert weights.keys() == expected_weights.keys() == start.keys()
    assert all(torch.allclose(value, expected_weights[name], atol=1e-6) for name, value in weights.items())
    assert any(not torch.allclose(value, start[name], atol=1e-4) for name, value in weights.items())


def test_an_engine_with_weights_of_its_own_samples_from_those_of_the_shards(ranks: list[dict[str, Any]]) -> None:
    assert all(row["rollout/canary_gap"] < 1e-5 for row in ranks[0]["asynchronous"])


@pytest.mark.parametrize("phase", ["load", "copies", "scoring", "sync", "export"])
def test_no_rank_holds_more_than_a_weight_whole(ranks: list[dict[str, Any]], phase: str) -> None:
    for results in ranks:
        assert 0 < results["count"][phase] <= 2 * LARGEST
        assert results["count"]["loaded whole"] > 15 * LARGEST, "the count would notice"


def test_an_export_has_several_files_of_the_same_weights_that_transformers_reads(out: Path) -> None:
    assert_equal(files(out / "exported"), files(out / "start"))  # the best weights, which had changed since
    index = json.loads((out / "exported" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {f"model-0000{n}-of-00006.safetensors" for n in range(1, 7)}
    start = AutoModelForCausalLM.from_pretrained(out / "start")
    assert_equal(AutoModelForCausalLM.from_pretrained(out / "exported").state_dict(), start.state_dict())
    scorer = AutoModelForTokenClassification.from_pretrained(out / "scorer")
    assert not scorer.score.weight.any()
    assert_equal(scorer.base_model.state_dict(), start.model.state_dict())


def test_adapters_are_also_exported_on_their_own(out: Path) -> None:
    adapters = files(out / "sharded, adapters" / "adapter"), files(out / "whole, adapters" / "adapter")
    assert adapters[0].keys() == adapters[1].keys() and len(adapters[0]) > 0
    assert all(torch.allclose(value, adapters[1][name], atol=1e-6) for name, value in adapters[0].items())
