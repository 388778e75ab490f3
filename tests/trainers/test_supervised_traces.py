"""Four steps of SFT, DPO and reward models log what they logged before: the wiring of the supervised loop."""

import json
from pathlib import Path
from typing import Any

import pytest

from mathrl.core.environment import Variable
from tests.stages.rl_runs import differences
from tests.trainers.supervised_traces import CASES, FILE, trace

GOLDEN = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", CASES)
def test_the_trace_is_the_files(name: str) -> None:
    found = differences(trace(name), GOLDEN[name])
    assert not found, "\n".join([*found, "If it is meant: python -m tests.trainers.supervised_traces --write"])


def test_no_two_cases_train_alike() -> None:
    assert list(GOLDEN) == list(CASES), "python -m tests.trainers.supervised_traces --write"
    for name in CASES:
        assert min(map(abs, GOLDEN[name]["metrics"]["grad_norm"])) > 0, name
        for other in CASES:
            ours, theirs = (GOLDEN[each]["weights"] for each in (name, other))
            assert name == other or differences(ours, theirs) or "evaluated" in name + other, (name, other)


@pytest.mark.parametrize("name", ["sft", "dpo", "reward_model"])
def test_progress_is_told_by_steps_under_the_sections_name(
    name: str, small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(Variable.PROGRESS, str(tmp_path / "progress"))
    case = CASES[{"sft": "SFT", "dpo": "DPO"}.get(name, "a reward model")]
    case(tmp_path)
    (tmp_path / "checkpoints" / "step-00000004.json").unlink()  # and on after the third
    case(tmp_path)
    (*_, row) = small.without_timings(tmp_path / "metrics.jsonl")
    told = json.loads((tmp_path / "progress").read_text())
    assert (told["title"], told["done"], told["total"]) == (name, *(2 * [row["step"]]))
    assert told["figures"] == pytest.approx({"loss": row["loss"]})
