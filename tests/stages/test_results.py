"""Where a stage's results change, its number in stages/results.toml must: by it an upgraded project runs it again."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mathrl.params.schema import READS
from mathrl.rollout.launch import GLOO, NCCL
from tests.stages.rl_runs import prepare
from tests.stages.stage_results import FILE, OPTIONS, changed, numbers, run_stage

GOLDEN: Mapping[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
# `register` writes names and digests; `pages` reads a corpus (tests/corpus/test_corpus*.py).
OTHERS = {"resolve", "register", "pages"}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("stages")
    prepare(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MATHRL_HOME", str(folder / "home"))
        patch.setenv("MATHRL_MIRROR", "none")
        for name in (GLOO, NCCL):
            patch.setenv(name, "lo")
        return {stage: run_stage(stage) for stage in OPTIONS}


def test_every_stage_has_a_number_and_a_small_run() -> None:
    assert numbers().keys() == {*READS, "resolve"}
    assert GOLDEN.keys() == OPTIONS.keys() == numbers().keys() - OTHERS


@pytest.mark.parametrize("stage", OPTIONS)
def test_results_change_with_the_number_alone(stage: str, results: dict[str, Any]) -> None:
    lines = changed({stage: results[stage]}, GOLDEN).get(stage, [])
    assert not lines, "\n".join(
        [*lines[:20], f"If it is meant: raise {stage} in mathrl/stages/results.toml, and python -m "
         "tests.stages.stage_results --write"]
    )  # fmt: skip
    assert GOLDEN[stage]["number"] == numbers()[stage], "python -m tests.stages.stage_results --write"


def test_each_run_results_in_something(results: dict[str, Any]) -> None:
    for stage, found in results.items():
        assert any(found.values()), stage
    assert results["dpo"]["report/metrics.jsonl"]["loss"] != results["reward_model"]["report/metrics.jsonl"]["loss"]
    weights = [Path(name) for found in results.values() for name in found if name.endswith(".safetensors")]
    assert len(weights) == 6
