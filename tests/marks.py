"""Marks of tests that need an engine, and the programs that such tests start."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

needs_deepspeed = pytest.mark.skipif(
    not importlib.util.find_spec("deepspeed"), reason="DeepSpeed is not installed: make engines"
)
needs_vllm = pytest.mark.skipif(not importlib.util.find_spec("vllm"), reason="vLLM is not installed: make engines")


def run_program(*arguments: str | Path) -> str:
    """The output of `python ARGUMENTS` in its own process with one thread; a failure shows the end of its errors."""
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=root,
        env=os.environ | {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
        timeout=580,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout
