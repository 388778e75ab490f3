"""Tool calls with vLLM in process: it stops at strings, and every turn is a plain call of the engine."""

import json
from pathlib import Path

import pytest

from tests.marks import needs_vllm, run_program

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600), needs_vllm]


def test_turns_of_vllm_are_plain_calls_with_the_models_log_probs(tmp_path: Path) -> None:
    run_program(Path(__file__).parent / "vllm_turns.py", tmp_path)
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["calls"] > 10 and results["refused"] > 0
    assert results["same"] == 1 and results["gap"] < 1e-4
