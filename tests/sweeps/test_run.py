"""Studies of the real trainer on tiny problems."""

from pathlib import Path
from typing import Any

Place = Any


def test_a_study_runs_to_its_end(place: Place) -> None:
    said = place.sweep("first")
    assert "trial 0: dev accuracy" in said and "trial 1: dev accuracy" in said
    assert Path(place.home / "sweeps" / "first" / "trials.md").exists()
