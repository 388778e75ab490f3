"""The rules about tool calls, on planted metrics."""

from typing import Any

import pytest

from mathrl.health.watch import examine
from mathrl.params.train import Rl
from mathrl.params.training import Health

HEALTH = Health(window=2, patience=4)
RULES = {"tool_down", "tool_calls", "told_answers"}


def raised(**series: list[float]) -> set[str]:
    """The rules about tools that find something in these metrics; all else is healthy."""
    steps = max(map(len, series.values()))
    rows: list[dict[str, Any]] = []
    for step in range(steps):
        row = {"step": step + 1, "reward/accuracy": 0.5, "tool/calls": 1.0, "tool/unavailable_rate": 0.0}
        rows.append(row | {f"tool/{name}": values[min(step, len(values) - 1)] for name, values in series.items()})
        if "accuracy" in series:
            rows[-1]["reward/accuracy"] = rows[-1].pop("tool/accuracy")
    return {finding["rule"] for finding in examine(rows, HEALTH, Rl()).report()["findings"]} & RULES


@pytest.mark.parametrize(
    ("series", "rules"),
    [
        ({"calls": [1.0] * 6}, set()),
        ({"unavailable_rate": [0.0, 0.0, 0.2, 0.2]}, {"tool_down"}),
        ({"unavailable_rate": [0.0, 0.0, 0.04, 0.04]}, set()),
        ({"calls": [0.8, 0.8, 1.0, 1.4, 2.0, 2.4]}, {"tool_calls"}),
        ({"calls": [0.8, 0.8, 1.0, 1.4, 2.0, 2.4], "accuracy": [0.2, 0.3, 0.4, 0.5, 0.6, 0.7]}, set()),
        ({"calls": [0.1, 0.1, 0.2, 0.3, 0.4, 0.5]}, set()),  # the model learns to call: not more than one each
        ({"echo_rate": [0.9] * 3}, {"told_answers"}),
        ({"echo_rate": [0.9] * 3, "calls": [0.01]}, set()),
        ({"echo_rate": [0.3] * 3}, set()),
    ],
)
def test_each_rule_finds_its_own(series: dict[str, list[float]], rules: set[str]) -> None:
    assert raised(**series) == rules
