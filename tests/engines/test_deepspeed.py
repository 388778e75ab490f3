"""The DeepSpeed backend on two gloo processes: the torch backend's numbers, resumed and exported."""

import importlib.util
import itertools
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from mathrl.core.errors import UserError
from mathrl.learners.checkpoint import Checkpoint
from mathrl.learners.deepspeed_learner import DeepSpeedLearner, check_supported
from mathrl.params.train import Optimizer

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not importlib.util.find_spec("deepspeed"), reason="DeepSpeed is not installed: make engines"),
]
# Largest seen over ten steps of losses near 3: 2.4e-7 of a loss, 2.4e-6 of a gradient's norm (DeepSpeed adds
# 1e-6 to it when it clips), 1.2e-7 of a weight.
LOSS = 1e-5


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, run_ranks: Callable[..., None]) -> Path:
    folder = tmp_path_factory.mktemp("deepspeed")
    run_ranks(Path(__file__).with_name("deepspeed_runs.py"), folder, 2)
    return folder


@pytest.fixture(scope="module")
def found(out: Path) -> dict[str, Any]:
    made: dict[str, Any] = torch.load(out / "found.pt", weights_only=True)
    return made


@pytest.mark.parametrize(
    ("name", "mode"),
    [("sft", "zero 1"), ("sft", "zero 2"), ("sft", "zero 3"), ("sft", "offloaded"), ("dpo", "zero 2"),
     ("reward_model", "zero 3"), ("ppo", "zero 2"), ("ppo", "zero 3"), ("lora", "zero 3"),
     ("drop", "zero 2"), ("drop", "zero 3")],
)  # fmt: skip
def test_every_figure_of_every_step_is_that_of_the_torch_backend(found: dict[str, Any], name: str, mode: str) -> None:
    weights, rows = found[f"{name}, {mode}"]
    expected_weights, expected = found[f"{name}, torch"]
    assert len(rows) == len(expected) == {"sft": 10, "dpo": 4, "reward_model": 4}.get(name, 3)
    for row, other in zip(rows, expected, strict=True):
        assert row == pytest.approx(other, abs=LOSS), row["step"]
    assert torch.allclose(weights, expected_weights, atol=1e-6)
    # There is something to differ in: a step moves weights and losses by a thousand times the tolerance.
    assert all(row["grad_norm"] > 1e-2 for row in expected)
    if name == "drop":
        dropped = sum(row["dropped_minibatches"] for row in expected)
        assert 0 < dropped < 12, "of twelve"
        assert len({row["dev/accuracy"] for row in expected}) > 1, "some weights are better than others"
    if name == "sft":
        losses = [row["loss"] for row in expected]
        assert min(abs(a - b) for a, b in itertools.pairwise(losses)) > 100 * LOSS
        assert any(row["grad_norm"] > 1 for row in expected), "clipped"


@pytest.mark.parametrize(
    "run", ["sft, zero 1", "sft, zero 2", "sft, zero 3", "half, zero 2", "ppo, zero 2", "ppo, zero 3"]
)
def test_cut_and_resumed_is_uninterrupted_to_the_bit(found: dict[str, Any], run: str) -> None:
    weights, rows = found[f"resumed {run}"]
    expected_weights, expected = found[run]
    assert rows == expected and torch.equal(weights, expected_weights)


@pytest.mark.parametrize("mode", ["torch", "zero 1", "zero 3"])
def test_a_gradient_that_is_no_number_is_skipped_and_counted(found: dict[str, Any], mode: str) -> None:
    weights, rows = found[f"bad, {mode}"]
    expected_weights, expected = found["bad, torch"]
    assert [row["skipped_updates"] for row in rows] == [0.0] * 3 + [1.0] * 7
    assert [row["lr_factor"] == 0 for row in rows].index(True) == 3
    for row, other in zip(rows[4:], expected[4:], strict=True):
        assert row == pytest.approx(other, abs=LOSS), row["step"]
    assert torch.allclose(weights, expected_weights, atol=1e-6) and weights.isfinite().all()


def test_in_bfloat16_it_learns_much_the_same(found: dict[str, Any]) -> None:
    _, rows = found["half, zero 2"]
    _, expected = found["sft, torch"]
    differences = [abs(row["loss"] - other["loss"]) for row, other in zip(rows, expected, strict=True)]
    assert 1e-6 < max(differences) < 0.02  # 4e-4 was seen; the losses fall by 0.5


def test_the_exported_folder_is_plain_hugging_face(out: Path, found: dict[str, Any]) -> None:
    from mathrl.models.logprobs import response_logprobs
    from mathrl.models.packing import Group

    folder = out / "exported"
    assert {"model.safetensors", "config.json", "generation_config.json", "tokenizer.json", "README.md"} <= {
        file.name for file in folder.iterdir()
    }
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    probe = [Group((5, 6, 7), ((8, 9, 10, 11), (12, 13))), Group((20,), ((9, 3),))]
    assert torch.allclose(response_logprobs(model, probe)[0], found["exported"], atol=1e-5)
    ids = torch.tensor([[5, 6, 7, 8, 9, 10, 11]])
    plain = model(input_ids=ids).logits[0].log_softmax(-1)[2:-1].gather(1, ids[0, 3:, None])[:, 0]
    assert torch.allclose(plain, found["exported"][:4], atol=1e-5)


def test_the_checkpoint_names_deepspeeds_files_with_their_digests(out: Path) -> None:
    from mathrl.learners.checkpoint import CheckpointFolder

    folder = CheckpointFolder(out / "sft zero 3" / "checkpoints")
    saved = folder.latest()
    assert saved is not None and saved.step == 10 and saved.parts is not None
    (file, *_) = sorted(saved.parts.rglob("*optim_states.pt"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.warns(UserWarning, match="optim_states.pt: its digest"):
        before = folder.latest()
    assert before is not None and before.step == 8


def test_a_full_disk_is_told_as_one_and_leaves_no_checkpoint(out: Path, found: dict[str, Any]) -> None:
    assert found["full"].startswith("disk full: True, ") and "step-00000002.parts/sft" in found["full"]
    assert not list((out / "full" / "checkpoints").glob("*.json"))


class Touches:
    """What is called when a pickle with it is read."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


def reads(file: Path) -> Any:
    """A learner whose engine reads a file as DeepSpeed's own does."""
    learner: Any = object.__new__(DeepSpeedLearner)
    learner.name = "rl"

    def load_checkpoint(folder: str, tag: str) -> Any:
        learner.read = torch.load(file, map_location="cpu", weights_only=False)

    learner.engine = SimpleNamespace(load_checkpoint=load_checkpoint)
    return learner


def test_a_checkpoint_with_code_in_it_is_refused_unread(tmp_path: Path) -> None:
    (tmp_path / "rl").mkdir()
    file, marker = tmp_path / "rl" / "states.pt", tmp_path / "it ran"
    torch.save({"weights": torch.zeros(3), "code": Touches(marker)}, file)
    learner = reads(file)
    with pytest.raises(pickle.UnpicklingError, match="not an allowed global"):
        learner.load(Checkpoint(1, {}, {}, tmp_path), {"updates": 1, "bad": 0})
    assert not marker.exists()
    learner.engine.load_checkpoint("", "")
    assert marker.exists(), "else it would have been run"


@dataclass
class OldEnum:
    """A member of an enumeration as Python 3.11.2 pickles it."""

    kind: Any
    name: str

    def __reduce__(self) -> Any:
        return getattr, (self.kind, self.name)


def test_a_stage_that_an_older_python_pickled_is_read_and_no_other_attribute(tmp_path: Path) -> None:
    from deepspeed.runtime.fp16.loss_scaler import LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum

    (tmp_path / "rl").mkdir()
    file = tmp_path / "rl" / "states.pt"
    learner, saved = reads(file), Checkpoint(1, {}, {}, tmp_path)
    torch.save({"zero_stage": OldEnum(ZeroStageEnum, "gradients")}, file)
    learner.load(saved, {"updates": 1, "bad": 0})
    assert learner.read == {"zero_stage": ZeroStageEnum.gradients}
    torch.save({"zero_stage": OldEnum(LossScaler, "update_scale")}, file)
    with pytest.raises(pickle.UnpicklingError, match=r"getattr of .*LossScaler.* is not allowed"):
        learner.load(saved, {"updates": 1, "bad": 0})


def test_what_it_does_not_have_is_refused_with_what_to_set() -> None:
    with pytest.raises(UserError, match=r"set rl\.optimizer\.type to adamw and rl\.ema to null"):
        check_supported(Optimizer(type="muon"), "rl", 0.9)
    check_supported(Optimizer(type="adamw"), "rl", None)
