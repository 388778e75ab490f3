"""The forecast of a dev curve: known curves, their noise, what is too little, and whose record it is."""

from pathlib import Path

import numpy as np
import pytest

from mathrl.core.files import write_jsonl
from mathrl.core.records import RunRecord
from mathrl.core.results import Interval
from mathrl.evaluation.forecast import FEWEST, Forecast, forecast, forecast_of, forecast_sentences, recorded_forecast

STEPS = range(5, 101, 5)


def sigmoid(step: int, start: float = 0.4, top: float = 0.95, half: float = 20.0, steep: float = 2.0) -> float:
    return start + (top - start) / (1 + (half / step) ** steep)


def curve(responses: int, seed: int, **shape: float) -> list[tuple[int, float]]:
    rng = np.random.default_rng(seed)
    return [(step, rng.binomial(responses, sigmoid(step, **shape)) / responses) for step in STEPS]


def test_a_curve_without_noise_is_continued() -> None:
    """By hand at step 100: 0.4 + 0.55 / (1 + 0.2^2) = 0.9288; at 150: 0.4 + 0.55 / (1 + (2/15)^2) = 0.9404."""
    found = forecast([(step, sigmoid(step)) for step in STEPS if step <= 70], 100, 5000)
    assert found is not None and (found.step, found.end, found.further) == (70, 100, 50)
    assert found.in_shape.mean == pytest.approx(0.9288, abs=0.005)
    assert found.gain.mean == pytest.approx(0.9404 - 0.9288, abs=0.006)
    assert found.in_shape.low < 0.9288 < found.in_shape.high < 0.95
    assert found.accuracy.low < 0.5 < found.in_shape.low, "it may still fall"


def test_the_interval_covers_the_end_as_often_as_it_says() -> None:
    """60 seeded curves from their first 40 %; 90 % says 54, and fewer than 46 have a chance of 0.1 %."""
    covered = 0
    for seed in range(60):
        shape = np.random.default_rng(100 + seed)
        start = shape.uniform(0.1, 0.5)
        points = curve(512, seed, start=start, top=shape.uniform(start, 1), half=shape.uniform(8, 60), steep=2.0)
        found = forecast(points[:8], 100, 512)
        assert found is not None
        covered += found.in_shape.low <= points[-1][1] <= found.in_shape.high
    assert covered >= 46


CURVES = {
    "sigmoid": lambda step: 0.2 + 0.6 / (1 + (40 / step) ** 2),
    "exponential": lambda step: 0.3 + 0.5 * (1 - np.exp(-step / 40)),
    "straight": lambda step: 0.2 + 0.005 * step,
    "logarithm": lambda step: 0.2 + 0.1 * np.log1p(step / 5),
    "flat": lambda step: 0.4 + 0 * step,
    "late take-off": lambda step: 0.1 + 0.7 / (1 + np.exp(-(step - 70) / 6)),
    "rise and fall": lambda step: 0.3 + 0.4 * np.exp(-(((step - 50) / 30) ** 2)),
}


@pytest.mark.parametrize(("name", "seen"), [*((name, 50) for name in CURVES), ("rise and fall", 70)])
def test_curves_that_are_no_sigmoid_end_within_the_interval(name: str, seen: int) -> None:
    """90 % says 18 of 20; those that a shape tells of are within the narrower interval too."""
    rng, steps = np.random.default_rng(0), np.array(STEPS, dtype=float)
    within, in_shape = 0, 0
    for _ in range(20):
        points = list(zip(STEPS, (rng.binomial(512, CURVES[name](steps)) / 512).tolist(), strict=True))
        found = forecast(points[: seen // 5], 100, 512)
        assert found is not None
        within += found.accuracy.low <= points[-1][1] <= found.accuracy.high
        in_shape += found.in_shape.low <= points[-1][1] <= found.in_shape.high
    assert within >= 17
    # No shape tells of a turn that is not seen: the take-off at step 70, the fall after step 50.
    assert name == "late take-off" or (name == "rise and fall" and seen == 50) or in_shape >= 15


def test_the_nearer_the_end_the_less_a_curve_can_still_do() -> None:
    points = [(step, sigmoid(step)) for step in STEPS]
    found = [forecast(points[:count], 100, 2000) for count in (8, 14, 19)]
    widths = [one.accuracy.high - one.accuracy.low for one in found if one is not None]
    assert widths[0] > widths[1] > 0.3 > 0.15 > widths[2]


def test_few_points_a_reached_end_and_step_0_give_no_forecast() -> None:
    points = curve(512, 0)
    assert forecast(points[: FEWEST - 1], 100, 512) is None and forecast(points, 100, 512) is None
    assert forecast([(0, 0.4), *points[: FEWEST - 1]], 100, 512) is None, "step 0 has no computation"
    assert forecast(points[:FEWEST], 100, 512) == forecast(points[:FEWEST], 100, 512) is not None


@pytest.mark.parametrize("level", [0.0, 1.0])
def test_curves_at_the_bounds_have_intervals_within_them(level: float) -> None:
    found = forecast([(step, level) for step in STEPS[:8]], 100, 512)
    assert found is not None and 0 <= found.accuracy.low <= found.accuracy.mean <= found.accuracy.high <= 1
    assert abs(found.accuracy.mean - level) < 0.05


def test_the_sentence() -> None:
    whole, shape = Interval(0.93, 0.4, 0.97), Interval(0.93, 0.9, 0.95)
    assert Forecast(40, 100, whole, shape, 50, Interval(0.01, -0.004, 0.03)).sentence() == (
        "if the curve keeps its shape 0.93 [0.90, 0.95] at step 100, [0.40, 0.97] if it may still take off or fall; "
        "in its shape another 50 steps give +0.01 [-0.00, +0.03]"
    )


def test_a_record_gives_the_steps_the_responses_and_the_curve(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "data/dev.jsonl", [{}] * 64)
    rows = [{"step": step, "dev/accuracy": accuracy} for step, accuracy in curve(256, 3)]
    settings = {"rl": {"steps": 100, "dev": {"samples": 4}}}
    record = RunRecord(
        tmp_path / "r", stage="rl", params=settings, workspace=str(tmp_path), inputs={"data/dev.jsonl": "x"}
    )
    half = [{"step": 1, "loss": 0.1}, *rows[:10]]
    assert forecast_of(record, half) == forecast([(row["step"], row["dev/accuracy"]) for row in rows[:10]], 100, 256)
    finished = forecast_of(record, rows)
    assert finished is not None and (finished.step, finished.end) == (100, 150), "half as many steps again"
    assert recorded_forecast(record) is None, "no metrics yet"
    write_jsonl(record.metrics_file, half)
    with record.metrics_file.open("a") as file:
        file.write('{"step": 55, "dev/acc')  # the row that is being written
    assert recorded_forecast(record) == forecast_of(record, half)
    watched = [{"name": "data/exam.jsonl", "samples": 2}]
    record.params = {"rl": {**settings["rl"], "eval_benchmarks": watched}}
    both = [row | {"eval/exam.jsonl/accuracy": row["dev/accuracy"], "eval/exam.jsonl/problems": 50} for row in half[1:]]
    dev, exam = forecast_sentences(record, both)
    assert dev == f"from the dev curve up to step 50: {forecast_of(record, half).sentence()}"  # type: ignore[union-attr]
    made = forecast([(row["step"], row["dev/accuracy"]) for row in rows[:10]], 100, 100)
    assert made is not None and exam == f"from the data/exam.jsonl curve up to step 50: {made.sentence()}"
    sft = RunRecord(tmp_path / "s", stage="sft", params=settings)
    assert forecast_of(sft, rows) is None
