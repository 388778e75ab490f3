"""Pictures of a study: the best so far, importance, one slice per parameter."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from mathrl.core.figures import BLUE, GREY, SOFT, VERMILION, panels, picture
from mathrl.params.sweep import Axis, Categorical, ZeroOrLog
from mathrl.sweeps.space import floor

PANEL = 3.2


def draw_history(trials: Sequence[FrozenTrial], file: Path) -> None:
    """Score by trial, and the best so far; trials that ended early are grey."""
    with picture(file) as axes:
        done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
        early = [t for t in trials if t.state == TrialState.PRUNED and t.value is not None]
        at = [t.number for t in early]
        axes.scatter(at, [t.value for t in early], color=GREY, marker="x", label="ended early")
        axes.scatter([t.number for t in done], [t.value for t in done], color=BLUE, label="complete")
        bests = [max(t.value or 0.0 for t in done[: n + 1]) for n in range(len(done))]
        last = max(t.number for t in [*done, *early])
        axes.step(
            [*(t.number for t in done), last], [*bests, bests[-1]], where="post", color=VERMILION, label="best so far"
        )
        axes.set(xlabel="trial (0: the present parameters)", ylabel="dev accuracy", title="Trials")
        axes.legend(fontsize=8)


def draw_importance(shares: Mapping[str, float], complete: int, file: Path) -> None:
    """Bars of each parameter's share of the score's variance over `complete` trials."""
    with picture(file, height=1.2 + 0.4 * len(shares)) as axes:
        names = list(shares)[::-1]
        bars = axes.barh(names, [shares[name] for name in names], color=BLUE)
        axes.bar_label(bars, [f"{shares[name]:.2f}" for name in names], padding=3, fontsize=8)
        axes.set(
            xlim=(0, 1.1),
            xlabel="share of the variance of dev accuracy",
            title=f"Importance, from {complete} complete trials",
        )


def draw_slices(trials: Sequence[FrozenTrial], space: Mapping[str, Axis], file: Path) -> None:
    """Score over each parameter alone; trial 0 is orange. Exact zeros are left of the dotted line."""
    shown = [t for t in trials if t.state in (TrialState.COMPLETE, TrialState.PRUNED) and t.value is not None]
    with panels(file, len(space), PANEL * len(space), PANEL, sharey=True) as all_axes:
        for axes, (key, axis) in zip(all_axes, space.items(), strict=True):
            _slice(axes, shown, key, axis)
        all_axes[0].set_ylabel("dev accuracy")


def _slice(axes: Any, trials: Sequence[FrozenTrial], key: str, axis: Axis) -> None:
    position = {repr(value): x for x, value in enumerate(axis.values)} if isinstance(axis, Categorical) else None
    for trial in trials:
        value = trial.params[key]
        early = trial.state == TrialState.PRUNED
        axes.scatter(
            position[repr(value)] if position is not None else value,
            trial.value,
            s=30,
            color=VERMILION if trial.number == 0 else GREY if early else BLUE,
            marker="x" if early else "o",
        )
    if position is not None:
        axes.set_xticks(range(len(position)), list(position))
    elif axis.kind in ("log", "zero_or_log"):
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter("")
        low = floor(axis) if isinstance(axis, ZeroOrLog) else axis.low
        axes.set_xlim(low * 0.9, axis.high * 1.1)
    if isinstance(axis, ZeroOrLog):
        axes.axvline(axis.low, color=SOFT, linestyle=":", linewidth=1)
    axes.set(xlabel=key + (" (left of the line: 0)" if isinstance(axis, ZeroOrLog) else ""))
