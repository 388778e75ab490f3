"""The forecast of a recorded RL run, from its metrics and its parameters."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mathrl.core.forecast import DEV, Forecast, forecast
from mathrl.core.metrics import complete_rows
from mathrl.core.records import RunRecord

PROBLEMS = 128  # of the dev split, where it is not on this machine any more


def forecast_of(record: RunRecord, rows: Sequence[Mapping[str, Any]]) -> Forecast | None:
    """Where the run's dev curve will be at its last step, or for a finished run after half as many steps again.

    None for a run that is not RL, and before enough evaluations.
    """
    rl = record.params.get("rl", {})
    curve = [(int(row["step"]), float(row[DEV])) for row in rows if DEV in row]
    samples = rl.get("dev", {}).get("samples", rl.get("eval_samples"))  # the second of a record of version 0.1
    if record.stage != "rl" or not curve or "steps" not in rl or samples is None:
        return None
    last, steps = curve[-1][0], int(rl["steps"])
    end = steps if last < steps else last + max(1, last // 2)
    return forecast(curve, end, _dev_problems(record) * int(samples))


def recorded_forecast(record: RunRecord) -> Forecast | None:
    """`forecast_of` the metrics that the record has so far."""
    return forecast_of(record, complete_rows(record.metrics_file))


def _dev_problems(record: RunRecord) -> int:
    file = next((Path(record.workspace) / path for path in record.inputs if path.endswith("dev.jsonl")), None)
    if file is None or not file.is_file():
        return PROBLEMS
    with file.open("rb") as stream:
        return sum(1 for _ in stream) or PROBLEMS
