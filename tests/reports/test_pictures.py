"""Pictures of few and of many models: nothing collapses, nothing is drawn over, each model looks its own."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib import image

from mathrl.reports import pictures

NAMES = ("base", "sft", "rft", "online_rft", "grpo", "grpo_process", "ppo", "dpo", "on_random")


def figures(place: int) -> dict[str, Any]:
    mean = 0.1 + 0.08 * place
    out: dict[str, Any] = {"pass_at_1": mean, "pass_at_1_low": mean - 0.03, "pass_at_1_high": mean + 0.03}
    for k in (2, 8, 64):
        some = min(1.0, mean + 0.05 * k**0.5)
        out |= {f"pass_at_{k}": some, f"pass_at_{k}_low": some - 0.02, f"pass_at_{k}_high": some, f"maj_at_{k}": mean}
    level = {name: out[name] for name in ("pass_at_1", "pass_at_1_low", "pass_at_1_high")}
    return out | {"by_level": {str(n): level for n in range(2, 7)}}


@pytest.mark.parametrize("draw", [pictures.draw_accuracy, pictures.draw_pass_at_k, pictures.draw_levels])
@pytest.mark.parametrize("count", [1, 4, 5, 9])
def test_axes_keep_their_room(draw: Callable[..., None], count: int, tmp_path: Path) -> None:
    models = {name: figures(place) for place, name in enumerate(NAMES[:count])}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns where a legend leaves no room for the axes
        draw(models, tmp_path / "a.png", "Accuracy on test")
        draw(models, tmp_path / "b.png", "Accuracy on test")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    height, width, _ = image.imread(tmp_path / "a.png").shape
    assert 1.2 < width / height < 3


def test_models_look_different() -> None:
    drawn = [(pictures.colour(name, place), pictures.marker(name, place)) for place, name in enumerate(NAMES)]
    assert len(set(drawn)) == len(NAMES)
    many = {(pictures.colour("x", place), pictures.marker("x", place)) for place in range(20)}
    assert len(many) == 20
