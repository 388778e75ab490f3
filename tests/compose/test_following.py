"""What follows from a composition is part of its parameters, beneath everything that somebody said."""

from pathlib import Path

import pytest

from mathrl.compose import load_params
from mathrl.compose.experiment import split_choices
from mathrl.compose.load import Layers, read_layers
from mathrl.core.errors import UserError

CHOICES = ("data=gsm8k", "model=Qwen/Qwen2.5-1.5B-Instruct", "method=grpo", "hardware=1x24GB")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "params").mkdir()
    return tmp_path / "params"


def layers(folder: Path, *choices: str) -> Layers:
    return read_layers(folder, None, None, split_choices(choices)[0])


def test_what_nobody_said_follows_and_says_so(folder: Path) -> None:
    found = layers(folder, *CHOICES)
    params, stated = found.params(), found.stated()
    assert params.training.backend == "deepspeed" and stated.training.backend == "torch"
    assert params.training.deepspeed.offload_optimizer and params.rl.tokens_per_microbatch == 2048
    said = found.said_by()
    assert said["training.backend"].startswith("derived: 1.54 billion parameters leave no room on a GPU of 24.0 GB")
    assert said["rl.max_tokens"] == "data=gsm8k" and said["run.processes"] == "hardware=1x24GB"


def test_a_file_and_the_command_line_are_above_what_follows(folder: Path) -> None:
    (folder / "rl.yaml").write_text("tokens_per_microbatch: 1536\n")
    params = load_params(folder, overrides=[*CHOICES, "rl.lora={}"])
    assert params.rl.tokens_per_microbatch == 1536 and params.training.backend == "torch"
    assert params.rl.optimizer.lr == pytest.approx(1e-5), "adapters take ten times the rate"
    set_too = load_params(folder, overrides=[*CHOICES, "rl.lora={}", "rl.optimizer.lr=3e-6"])
    assert set_too.rl.optimizer.lr == 3e-6


def test_only_the_stages_of_a_run_have_to_fit(folder: Path) -> None:
    large = layers(folder, "data=gsm8k", "model=Qwen/Qwen2.5-7B-Instruct", "method=grpo", "hardware=1x8GB")
    assert large.params().rl.optimizer.lr == 1e-6, "without stages nothing is refused"
    with pytest.raises(UserError, match=r"do not fit 1x8GB: it would fit with LoRA .*, or 2x80GB, or a smaller model"):
        large.derived(stages=["curate", "sft", "rl"])
    assert large.derived(stages=["curate", "evaluate"])


def test_nothing_follows_for_the_toy() -> None:
    demo = read_layers(Path(__file__).parents[2] / "params")
    assert demo.derived() == [] and demo.params() == demo.stated()
