"""The DeepSpeed backend in two gloo processes gives the torch backend's numbers, also after a resume and an export."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from mathrl.core.errors import UserError
from mathrl.learners.deepspeed_learner import check_supported
from mathrl.params.optimizer import AdamW, Muon
from tests.marks import needs_deepspeed

pytestmark = [pytest.mark.engines, needs_deepspeed]
# Largest differences over ten steps of losses near 3: 2.4e-7 of a loss, 2.4e-6 of a gradient norm (DeepSpeed adds
# 1e-6 to it when it clips), 1.2e-7 of a weight.
LOSS = 1e-5


def test_what_a_gpu_would_be_given_is_accepted_and_steps(run_program: Callable[..., str]) -> None:
    """ZeRO 1 was refused on every GPU: DeepSpeed overlaps no communication there without its own accumulation."""
    output = run_program(Path(__file__).with_name("deepspeed_cuda_config.py"))
    assert sum(line.startswith("ZeRO ") for line in output.splitlines()) == 6
    presets = [line for line in output.splitlines() if line.startswith("preset ")]
    assert len(presets) >= 10 and "preset dapo-32b, rl learner" in presets


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, run_ranks: Callable[..., None]) -> Path:
    folder = tmp_path_factory.mktemp("deepspeed")
    run_ranks(Path(__file__).with_name("deepspeed_runs.py"), {folder: 2})
    return folder


@pytest.fixture(scope="module")
def results(out: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(out / "results.pt", weights_only=True)
    return loaded


@pytest.mark.parametrize(
    ("name", "mode"),
    [("sft", "zero 1"), ("sft", "zero 2"), ("sft", "zero 3"), ("sft", "offloaded"), ("dpo", "zero 2"),
     ("reward_model", "zero 3"), ("ppo", "zero 2"), ("ppo", "zero 3"), ("lora", "zero 3"),
     ("drop", "zero 2"), ("drop", "zero 3")],
)  # fmt: skip
def test_every_metric_of_every_step_equals_the_torch_backends(results: dict[str, Any], name: str, mode: str) -> None:
    weights, rows = results[f"{name}, {mode}"]
    expected_weights, expected = results[f"{name}, torch"]
    assert len(rows) == len(expected) == {"sft": 10, "dpo": 4, "reward_model": 4}.get(name, 3)
    for row, other in zip(rows, expected, strict=True):
        assert row == pytest.approx(other, abs=LOSS), row["step"]
    assert torch.allclose(weights, expected_weights, atol=1e-6)
    # The comparison could fail: a step moves weights and losses by a thousand times the tolerance.
    assert all(row["grad_norm"] > 1e-2 for row in expected)
    if name == "drop":
        dropped = sum(row["dropped_minibatches"] for row in expected)
        assert 0 < dropped < 12, "of twelve"
        assert len({row["dev/accuracy"] for row in expected}) > 1, "some weights are better than others"
    if name == "sft":
        losses = [row["loss"] for row in expected]
        assert min(abs(a - b) for a, b in itertools.pairwise(losses)) > 100 * LOSS
        assert any(row["grad_norm"] > 1 for row in expected), "clipped"


def test_zero_3_gathers_the_head_once_around_its_slices(results: dict[str, Any]) -> None:
    """Once in the forward pass; in the backward pass DeepSpeed asks once per output, at most two times."""
    weights, rows = results["sliced, zero 3"]
    expected_weights, expected = results["sft, torch"]
    assert [row["loss"] for row in rows] == pytest.approx([row["loss"] for row in expected], abs=LOSS)
    assert torch.allclose(weights, expected_weights, atol=1e-6)
    passes, forward, backward, slices = results["head"]
    assert forward == passes > 10 and 0 < backward <= 2 * passes < slices


@pytest.mark.parametrize(
    "run", ["sft, zero 1", "sft, zero 2", "sft, zero 3", "half, zero 2", "ppo, zero 2", "ppo, zero 3"]
)
def test_a_resumed_run_equals_the_uninterrupted_one_to_the_bit(results: dict[str, Any], run: str) -> None:
    weights, rows = results[f"resumed {run}"]
    expected_weights, expected = results[run]
    assert rows == expected and torch.equal(weights, expected_weights)


@pytest.mark.parametrize("mode", ["torch", "zero 1", "zero 3"])
def test_a_non_finite_gradient_is_skipped_and_counted(results: dict[str, Any], mode: str) -> None:
    weights, rows = results[f"bad, {mode}"]
    expected_weights, expected = results["bad, torch"]
    assert [row["skipped_updates"] for row in rows] == [0.0] * 3 + [1.0] * 7
    assert [row["lr_factor"] == 0 for row in rows].index(True) == 3
    for row, other in zip(rows[4:], expected[4:], strict=True):
        assert row == pytest.approx(other, abs=LOSS), row["step"]
    assert torch.allclose(weights, expected_weights, atol=1e-6) and weights.isfinite().all()


def test_bfloat16_learns_about_as_well(results: dict[str, Any]) -> None:
    _, rows = results["half, zero 2"]
    _, expected = results["sft, torch"]
    differences = [abs(row["loss"] - other["loss"]) for row, other in zip(rows, expected, strict=True)]
    assert 1e-6 < max(differences) < 0.02  # 4e-4 was measured; the losses fall by 0.5


def test_the_exported_folder_is_a_plain_hugging_face_model(out: Path, results: dict[str, Any]) -> None:
    from mathrl.models.logprobs import response_logprobs
    from mathrl.models.packing import Group

    folder = out / "exported"
    assert {"model.safetensors", "config.json", "generation_config.json", "tokenizer.json", "README.md"} <= {
        file.name for file in folder.iterdir()
    }
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    probe = [Group((5, 6, 7), ((8, 9, 10, 11), (12, 13))), Group((20,), ((9, 3),))]
    assert torch.allclose(response_logprobs(model, probe)[0], results["exported"], atol=1e-5)
    ids = torch.tensor([[5, 6, 7, 8, 9, 10, 11]])
    plain = model(input_ids=ids).logits[0].log_softmax(-1)[2:-1].gather(1, ids[0, 3:, None])[:, 0]
    assert torch.allclose(plain, results["exported"][:4], atol=1e-5)


def test_the_checkpoint_names_the_shards_with_their_digests(out: Path) -> None:
    from mathrl.learners.checkpoint import CheckpointFolder

    folder = CheckpointFolder(out / "sft zero 3" / "checkpoints")
    saved = folder.latest()
    assert saved is not None and saved.step == 10 and saved.parts is not None
    (file, *_) = sorted(saved.parts.rglob("rank-*.safetensors"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.warns(UserWarning, match="rank-00000.safetensors: its digest"):
        before = folder.latest()
    assert before is not None and before.step == 8


def test_a_full_disk_is_reported_and_leaves_no_checkpoint(out: Path, results: dict[str, Any]) -> None:
    assert results["full"].startswith("disk full: True, ") and "step-00000002.parts/sft" in results["full"]
    assert not list((out / "full" / "checkpoints").glob("*.json"))


def test_unsupported_settings_are_refused_with_what_to_set() -> None:
    with pytest.raises(UserError, match=r"set rl\.optimizer\.type to adamw and rl\.ema to null"):
        check_supported(Muon(lr=0.01), "rl", 0.9)
    check_supported(AdamW(lr=0.01), "rl", None)
