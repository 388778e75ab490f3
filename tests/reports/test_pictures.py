"""Pictures of few and of many models: nothing collapses, nothing is drawn over, each model looks its own."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from matplotlib import image
from optuna.distributions import CategoricalDistribution
from optuna.trial import create_trial

from mathrl.core import figures
from mathrl.core.results import GroupFigures, Interval, ModelFigures
from mathrl.params.sweep import Categorical
from mathrl.reports import pictures
from mathrl.sweeps.report import draw_importance, draw_slices

LATEX = r"congruences $\pmod{n}$"  # a subject of a mathematical data set: matplotlib knows part of LaTeX alone
NAMES = ("base", LATEX, "rft", "online_rft", "grpo", "grpo_process", "ppo", "dpo", "on_random")


def figures_of(place: int) -> ModelFigures:
    mean = 0.1 + 0.08 * place
    rate = Interval(mean, mean - 0.03, mean + 0.03)
    passed = {k: min(1.0, mean + 0.05 * k**0.5) for k in (2, 8, 64)}
    return ModelFigures(
        problems=500,
        samples=64,
        pass_at_k={1: rate} | {k: Interval(value, value - 0.02, value) for k, value in passed.items()},
        maj_at_k=dict.fromkeys(passed, rate),
        response_length=20.0,
        truncated_share=0.0,
        by_level={str(n): GroupFigures(100, rate) for n in (2, 3, 4, 5, LATEX)},
    )


def draw_levels(models: Mapping[str, ModelFigures], file: Path, title: str) -> None:
    pictures.draw_groups({name: model.groups("level") for name, model in models.items()}, file, title)


@pytest.mark.parametrize("draw", [pictures.draw_accuracy, pictures.draw_pass_at_k, draw_levels])
@pytest.mark.parametrize("count", [4, 9])
def test_axes_keep_their_room(draw: Callable[..., None], count: int, tmp_path: Path) -> None:
    models = {name: figures_of(place) for place, name in enumerate(NAMES[:count])}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns where a legend leaves no room for the axes
        draw(models, tmp_path / "a.png", f"Accuracy on {LATEX}")
        if count == 4:
            draw(models, tmp_path / "b.png", f"Accuracy on {LATEX}")
            assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    height, width, _ = image.imread(tmp_path / "a.png").shape
    assert 1.2 < width / height < 3


def test_models_look_different() -> None:
    drawn = [(figures.colour(name, place), figures.marker(name, place)) for place, name in enumerate(NAMES)]
    assert len(set(drawn)) == len(NAMES)
    many = {(figures.colour("x", place), figures.marker("x", place)) for place in range(20)}
    assert len(many) == 20


def test_pictures_of_a_study_show_values_with_latex(tmp_path: Path) -> None:
    """Such as prompts that a space varies."""
    key, values = r"own.$\no$", [r"Solve $\pmod{n$: {question}", "{question}"]
    space = {key: Categorical(kind="choice", values=values)}
    trials = [
        create_trial(params={key: value}, distributions={key: CategoricalDistribution(values)}, value=0.5)
        for value in values
    ]
    draw_slices(trials, space, tmp_path / "slices.png")
    draw_importance({key: 1.0}, 4, tmp_path / "importance.png")
    assert all((tmp_path / name).stat().st_size for name in ("slices.png", "importance.png"))
