"""A stage that starts itself by DeepSpeed's launcher on the machines of a hostfile, here this one."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not importlib.util.find_spec("deepspeed"), reason="DeepSpeed is not installed: make engines"),
]
ROOT = Path(__file__).parents[2]


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
    folder, state = broken.workspace.folder, tmp_path / "state"
    outside = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    environment = outside | {
        "MATHRL_HOME": str(folder / "home"),
        "MATHRL_STATE": str(state),
        "MATHRL_MIRROR": "none",
        "PYTHONPATH": str(ROOT),
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
    }

    done = subprocess.run(
        [sys.executable, "-m", "mathrl.stages.sft"],
        cwd=folder,
        env=environment,
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = (folder / "reports" / "sft" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    left = [each.name for each in state.iterdir() if each.is_dir()]
    assert not left, "the state and what was handed down are gone"
