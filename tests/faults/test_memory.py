"""Out of memory, by a real limit on the process: the part is named, or micro-batches are halved."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mathrl.core.errors import UserError
from mathrl.core.overflow import OutOfMemory, is_out_of_memory, memory_part
from mathrl.params import load_params

ROOT = Path(__file__).parents[2]


def test_halved_micro_batches_make_the_same_weights(tmp_path: Path) -> None:
    script = Path(__file__).with_name("memory_limited.py")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], env=environment, capture_output=True, text=True,
        check=False, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = torch.load(tmp_path / "found.pt", weights_only=True)
    assert "out of memory for the activations of a micro-batch (tried to allocate" in found["said"]
    assert "lower sft.tokens_per_microbatch (now 12000)" in found["said"]
    assert "halved 0 times" in done.stdout and done.stdout.splitlines()[0] != "halved 0 times"
    assert "sft: out of memory, going on with micro-batches of 6000 tokens" in done.stderr
    # The order of sums differs; a step moves weights by 1e-2.
    assert torch.allclose(found["halved"], found["whole"], atol=1e-6)


def test_the_innermost_part_is_named_and_other_errors_pass() -> None:
    said = r"out of memory for the logits \(.*1125899906842624.*\): do less"
    with pytest.raises(OutOfMemory, match=said), memory_part("activations", "no"):  # noqa: SIM117
        with memory_part("logits", "do less"):
            torch.empty(2**48)  # a petabyte, which no machine gives
    with pytest.raises(RuntimeError, match="inconsistent tensor size"), memory_part("logits", "do less"):
        torch.ones(2) @ torch.ones(3)
    assert is_out_of_memory(MemoryError()) and not is_out_of_memory(ValueError("out of memory"))


def test_halving_within_deepspeed_is_refused() -> None:
    with pytest.raises(UserError, match="on_out_of_memory halve needs backend torch"):
        load_params(
            ROOT / "params", overrides=["training.backend=deepspeed", "training.on_out_of_memory=halve"]
        )
