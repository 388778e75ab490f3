"""The pruner `forecast`: which trials it ends, and that a sweep's section opens it."""

import math
from pathlib import Path

import numpy as np
import optuna
import pytest

from mathrl.compose import load_params
from mathrl.core.files import write_jsonl
from mathrl.core.types import Problem
from mathrl.params.train import Rl
from mathrl.sweeps.study import ForecastPruner, _pruner

STEPS = range(10, 201, 10)


def accuracy(step: int, top: float) -> float:
    """A sigmoid; below 0 a curve that is flat until it takes off after three fifths of the run."""
    if top < 0:
        return 0.2 - (0.2 + top) / (1 + math.exp((130 - step) / 6))
    return 0.2 + (top - 0.2) / (1 + (40 / step) ** 2)


def study_of(pruner: optuna.pruners.BasePruner, tops: list[float]) -> dict[int, int | None]:
    """The step at which each trial was ended, None for its end; noise of 512 responses."""
    study = optuna.create_study(direction="maximize", pruner=pruner)
    ended: dict[int, int | None] = {}
    rng = np.random.default_rng(0)

    def run(trial: optuna.Trial) -> float:
        ended[trial.number], value = None, 0.0
        for step in STEPS:
            value = rng.binomial(512, accuracy(step, tops[trial.number])) / 512
            trial.report(value, step)
            if step < STEPS[-1] and trial.should_prune():
                ended[trial.number] = step
                raise optuna.TrialPruned
        return value

    study.optimize(run, n_trials=len(tops))
    return ended


def test_hopeless_trials_end_early_and_one_that_overtakes_does_not() -> None:
    ended = study_of(ForecastPruner(200, 512, startup=2, warmup=0), [0.6, 0.7, 0.3, 0.35, 0.95])
    assert ended[0] is None and ended[1] is None, "the first trials run to their end"
    assert ended[2] is not None and ended[3] is not None, "before their end: a tenth of the run is too short to turn in"
    assert max(ended[2], ended[3]) > 100
    assert ended[4] is None


def test_a_trial_that_takes_off_late_runs_to_its_end() -> None:
    ended = study_of(ForecastPruner(200, 512, startup=2, warmup=0), [0.6, 0.7, -0.95])
    assert ended[2] is None and accuracy(110, -0.95) < 0.25 < 0.9 < accuracy(200, -0.95)


def test_no_trial_ends_before_the_warm_up_or_after_its_first_run() -> None:
    ended = study_of(ForecastPruner(200, 512, startup=1, warmup=120), [0.9, 0.3])
    assert ended[1] is not None and ended[1] > 120
    assert study_of(ForecastPruner(50, 512, startup=1, warmup=50), [0.9, 0.3])[1] is None


def test_the_section_opens_it_with_the_responses_of_an_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    dev = tmp_path / "dev.jsonl"
    write_jsonl(dev, (Problem(f"p{n}", "1+1=", ("2",), "chain", "dev").to_row() for n in range(30)))
    sweep = load_params(overrides=["sweep.pruner=forecast", f"sweep.dev={dev}", "sweep.startup_trials=3"]).sweep
    opened = _pruner(sweep, Rl(steps=70, dev={"samples": 2}))
    assert isinstance(opened, ForecastPruner)
    assert (opened.steps, opened.responses, opened.startup, opened.warmup) == (70, 60, 3, sweep.warmup_steps)
