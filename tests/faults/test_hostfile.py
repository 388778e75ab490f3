"""A stage that starts itself by DeepSpeed's launcher on the machines of a hostfile, here this one."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not importlib.util.find_spec("deepspeed"), reason="DeepSpeed is not installed: make engines"),
]


def test_two_processes_of_a_hostfile_run_a_stage_to_its_end(breakable: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text("localhost slots=2\n")
    broken = breakable(
        "training.backend=deepspeed",
        "training.deepspeed.stage=1",
        "sft.optimizer.type=adamw",
        "sft.lr=3e-3",
        f"training.deepspeed.hostfile={tmp_path / 'hostfile'}",
        "sft.steps=6",
        "sft.checkpoint_every=3",
        "sft.eval_every=0",
    )
    workspace, state = broken.workspace, tmp_path / "state"
    workspace.environment |= {"MATHRL_STATE": str(state), "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    workspace.run("sft")
    _, rows = workspace.output("sft")
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    left = [each.name for each in state.iterdir() if each.is_dir()]
    assert not left, "the state and what was handed down are gone"
