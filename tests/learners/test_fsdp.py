"""The FSDP backend over gloo ranks gives plain torch's numbers, also after a resume at another number of ranks."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from mathrl.core.errors import UserError
from mathrl.learners.checkpoint import CheckpointFolder
from mathrl.learners.shards import open_shards
from mathrl.models.fsdp import mixed_precision

# Of losses near 3, and of weights that a step moves by 1e-2.
LOSS = 1e-6
# Plain torch's norm, one float32 sum, is off by 2e-6 for 17,000 weights and 9e-6 for 137,000; FSDP's is float64's.
NORM = 2e-5
WIDTH = 64
BACKENDS = ("fsdp", "torch")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, run_program: Callable[..., str]) -> Path:
    folder = tmp_path_factory.mktemp("fsdp")
    run_program(Path(__file__).with_name("fsdp_runs.py"), folder)
    return folder


@pytest.fixture(scope="module")
def worlds(out: Path) -> dict[int, dict[str, Any]]:
    return {world: torch.load(out / f"{world}.pt", weights_only=True) for world in (1, 2, 3, 4)}


def assert_equal_rows(row: dict[str, float], expected: dict[str, float]) -> None:
    norms = {name: expected[name] for name in expected if name.endswith("grad_norm")}
    assert {name: row[name] for name in norms} == pytest.approx(norms, rel=NORM, nan_ok=True)
    assert row | norms == pytest.approx(expected, rel=LOSS, abs=LOSS, nan_ok=True), row["step"]


def assert_equal_runs(run: Any, other: Any) -> None:
    (weights, rows), (expected_weights, expected) = run, other
    assert len(rows) == len(expected) > 1
    for row, values in zip(rows, expected, strict=True):
        assert_equal_rows(row, values)
    assert torch.allclose(weights, expected_weights, atol=LOSS)


@pytest.mark.parametrize(
    ("ranks", "name"), [(2, "sft"), (2, "ppo"), (2, "groups"), (2, "kept"), (2, "bad"), (4, "sft")]
)
def test_every_metric_of_every_step_equals_plain_torchs(worlds: dict[int, Any], ranks: int, name: str) -> None:
    """Muon's (kept) too: its bfloat16 products would make more of a larger difference between gradients."""
    results = worlds[2] | worlds[ranks] if name == "sft" else worlds[ranks]  # SFT is the same over any ranks
    run, other = (
        results[f"bad {backend}, {backend}" if name == "bad" else f"{name}, {backend}"] for backend in BACKENDS
    )
    assert_equal_runs(run, other)
    rows = other[1]
    if name == "bad":
        assert [row["skipped_updates"] for row in rows] == [0.0] * 3 + [1.0] * 2
    if name == "groups":
        assert 0 < sum(row["dropped_minibatches"] for row in rows) < 8, "of eight"
    if name == "ppo":
        assert all(row["kl"] > 0 and row["critic/grad_norm"] > 1e-3 for row in rows[1:])
    if name == "sft":
        losses = [row["loss"] for row in rows]
        assert min(abs(a - b) for a, b in itertools.pairwise(losses)) > 100 * LOSS
        assert any(row["grad_norm"] > 1 for row in rows), "clipped"


def test_a_resumed_run_equals_the_uninterrupted_one_to_the_bit(worlds: dict[int, Any]) -> None:
    weights, rows = worlds[2]["resumed, fsdp"]
    expected_weights, expected = worlds[2]["sft, fsdp"]
    assert rows == expected and torch.equal(weights, expected_weights)


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_run_of_two_ranks_goes_on_at_another_number(worlds: dict[int, Any], ranks: int) -> None:
    """What was resumed is equal to the bit; later steps up to the order of the sums over ranks."""
    kinds = {"value", "exp_avg", "exp_avg_sq", "momentum_buffer", "averaged", "best"}
    for name, expected_kinds in (("sft", {"value", "exp_avg", "exp_avg_sq"}), ("kept", kinds)):
        held, expected = worlds[ranks][f"{name}, held"], worlds[2][f"{name}, held"]
        assert held.keys() == expected.keys() and {key.split("/")[0] for key in held} == expected_kinds
        assert all(torch.equal(held[key], expected[key]) for key in expected)
        assert all(value.abs().max() > 0 for key, value in held.items() if key.startswith(("momentum", "exp_avg_sq")))
    assert_equal_runs(worlds[ranks][f"sft of {ranks}, fsdp"], worlds[2]["sft, fsdp"])


def test_a_rank_holds_its_share_of_weights_gradients_and_optimizer_states(worlds: dict[int, Any]) -> None:
    count = len(worlds[2]["sft, torch"][0])
    for name, states in (("sft", 8), ("kept", None)):
        held = worlds[2][f"{name}, bytes"]
        share = 4 * count / 2
        assert held["weights"] == held["gradients"] == pytest.approx(share, rel=0.01), "one row more at rank 0"
        assert held["states"] == pytest.approx(2 * share, rel=0.01) if states else share < held["states"] < 2 * share


def test_models_are_divided_as_they_are_loaded(worlds: dict[int, Any]) -> None:
    results = worlds[2]["loaded"]
    for precision in ("float32", "bfloat16"):
        found = results[precision]
        one, *others = found["weights"]
        assert all(torch.equal(one, other) for other in others) and found["buffers"] and found["tied"]
        assert all(torch.equal(found["logprobs"][0], other) for other in found["logprobs"][1:])
        assert not found["scores"].any(), "a critic is zero at first"
        total, rows = found["rows"]
        assert total / 2 <= rows < total / 2 + 10 * WIDTH
    assert results["types"] == ["torch.float32"], "what the optimizer steps"
    assert all(results["sent"].values()) and {"lm_head.weight", "model.norm.weight"} <= set(results["sent"])


def test_two_layers_and_the_tied_embedding_are_whole_at_a_time(worlds: dict[int, Any]) -> None:
    widest = worlds[2]["loaded"]["widest"]
    total = worlds[2]["loaded"]["float32"]["rows"][0]
    outside = total - 4 * widest["layer"]
    assert widest["sampling"] == total, "the count notices"
    assert outside < widest["update"] <= outside + 2 * widest["layer"]
    assert outside < widest["scoring"] <= outside + 2 * widest["layer"]


def test_bfloat16_is_a_value_and_learns_about_as_well(worlds: dict[int, Any]) -> None:
    policy = mixed_precision(torch.bfloat16)
    assert (policy.param_dtype, policy.reduce_dtype) == (torch.bfloat16, torch.float32)
    differences = [
        abs(row["loss"] - other["loss"])
        for row, other in zip(worlds[2]["half, fsdp"][1], worlds[2]["sft, torch"][1], strict=True)
    ]
    assert 1e-6 < max(differences) < 0.02


def files(folder: Path) -> dict[str, torch.Tensor]:
    return {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}


def test_adapters_train_beside_a_divided_model_and_are_exported(out: Path, worlds: dict[int, Any]) -> None:
    rows, expected = (worlds[2][f"adapted, {backend}"] for backend in BACKENDS)
    for row, other in zip(rows, expected, strict=True):
        assert_equal_rows(row, other)
        assert row["grad_norm"] > 1e-3
    for part in ("", "adapter"):
        weights, others = (files(out / f"adapted {backend}" / part) for backend in BACKENDS)
        assert weights.keys() == others.keys() and len(weights) > 0
        assert all(torch.allclose(value, others[name], atol=LOSS) for name, value in weights.items())
    model = AutoModelForCausalLM.from_pretrained(out / "adapted fsdp")
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in files(out / "adapted fsdp").items())


def test_a_head_of_its_own_trains_from_a_divided_start(out: Path, worlds: dict[int, Any]) -> None:
    rows, expected = (worlds[2][f"untied, {backend}"] for backend in BACKENDS)
    for row, other in zip(rows, expected, strict=True):
        assert_equal_rows(row, other)
    weights, others, start = (files(out / name) for name in ("untied fsdp", "untied torch", "untied start"))
    assert weights.keys() == others.keys() == start.keys() and "lm_head.weight" in start
    assert all(torch.allclose(value, others[name], atol=LOSS) for name, value in weights.items())
    assert all(not torch.equal(value, start[name]) for name, value in weights.items() if value.dim() > 1)


def test_an_engine_with_weights_of_its_own_samples_from_those_of_the_shards(worlds: dict[int, Any]) -> None:
    assert all(row["rollout/canary_gap"] < 1e-5 for row in worlds[2]["ahead"])


def test_a_bfloat16_model_is_exported_as_one(out: Path) -> None:
    assert json.loads((out / "half" / "config.json").read_text())["dtype"] == "bfloat16"
    assert {value.dtype for value in files(out / "half").values()} == {torch.bfloat16}
    assert (out / "half" / "model.safetensors.index.json").is_file(), "several files"


def test_the_checkpoint_has_a_digest_of_every_shard_and_no_pickle(out: Path) -> None:
    folder = out / "sft fsdp" / "checkpoints"
    assert {file.suffix for file in folder.rglob("*") if file.is_file()} == {".json", ".safetensors"}
    saved = CheckpointFolder(folder).latest()
    assert saved is not None and saved.step == 6 and saved.parts is not None
    assert len(list(saved.parts.rglob("rank-*.safetensors"))) == 2
    other = CheckpointFolder(out / "sft torch" / "checkpoints").latest()
    assert other is not None
    with pytest.raises(UserError, match=r"not one of this training\.backend"):
        open_shards(other, "sft")
