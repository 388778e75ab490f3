"""Four steps of SFT, DPO and reward models log what they logged before: the wiring of the supervised loop."""

import json

import pytest

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
