"""A study as a table and pictures: trials.md, trials.json, best.png, slices.png, importance.png."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from mathrl.core.figures import BLUE, GREY, SOFT, VERMILION, panels, picture, plain
from mathrl.core.files import write_json, write_text
from mathrl.core.markdown import cell, code, table
from mathrl.params.sweep import Axis, Categorical, ZeroOrLog
from mathrl.sweeps.space import floor
from mathrl.sweeps.study import OpenStudy, best

STATE_NAMES = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "ended early",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "unfinished",
    TrialState.WAITING: "waiting",
}
FEWEST_TRIALS = 4  # complete trials that importance needs


def write_report(opened: OpenStudy) -> dict[str, Any]:
    """Write the table and the pictures; returns what trials.json holds."""
    trials = opened.study.get_trials(deepcopy=False)
    rows, winner = [row(trial, list(opened.sweep.space)) for trial in trials], best(trials)
    out: dict[str, Any] = {
        "study": opened.sweep.study,
        "trials": rows,
        "best": winner.number if winner else None,
        "importance": importance(opened.study, trials),
    }
    write_json(opened.folder / "trials.json", out)
    write_text(opened.folder / "trials.md", markdown(out))
    if winner is not None:
        draw_history(trials, opened.folder / "best.png")
        draw_slices(trials, opened.sweep.space, opened.folder / "slices.png")
    if out["importance"]:
        complete = sum(trial.state == TrialState.COMPLETE for trial in trials)
        draw_importance(out["importance"], complete, opened.folder / "importance.png")
    return out


def row(trial: FrozenTrial, keys: Sequence[str]) -> dict[str, Any]:
    """One trial: its state, score, parameters, and the error if it failed."""
    values = trial.user_attrs.get("values", {})
    seconds = (trial.duration.total_seconds()) if trial.duration else None
    return {
        "trial": trial.number,
        "state": STATE_NAMES[trial.state],
        "dev": trial.value if trial.state in (TrialState.COMPLETE, TrialState.PRUNED) else None,
        **{key: values.get(key) for key in keys},
        "seconds": seconds,
        "error": trial.user_attrs.get("error"),
    }


def importance(study: optuna.Study, trials: Sequence[FrozenTrial]) -> dict[str, float]:
    """Share of the score's variance that each parameter explains (fANOVA, Hutter et al. 2014)."""
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    if len(complete) < FEWEST_TRIALS or len({trial.value for trial in complete}) < 2:
        return {}
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {key: float(share) for key, share in shares.items()}


def best_first(trials: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(trials, key=lambda r: (r["state"] != "complete", -(r["dev"] or 0.0), r["trial"]))


def cells(trials: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The trials, best first, as rows of a table on the terminal."""
    return [{name: _cell(value) for name, value in entry.items() if name != "error"} for entry in best_first(trials)]


def markdown(out: dict[str, Any]) -> str:
    """The trials, best first."""
    order = best_first(out["trials"])
    columns = [name for name in (order[0] if order else {}) if name != "error"]
    lines = [f"# Study {cell(out['study'])}", ""]
    lines += table(columns, ([_cell(entry[name]) for name in columns] for entry in order))
    lines += [
        "",
        "Trial 0 has the parameters that were present when the study began; dev: accuracy on the dev "
        "problems, for a trial that ended early the accuracy at its end.",
    ]
    lines += [f"Trial {entry['trial']} failed: {code(str(entry['error']))}" for entry in order if entry["error"]]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


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
        bars = axes.barh(list(map(plain, names)), [shares[name] for name in names], color=BLUE)
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
        axes.set_xticks(range(len(position)), list(map(plain, position)))
    elif axis.kind in ("log", "zero_or_log"):
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter("")
        low = floor(axis) if isinstance(axis, ZeroOrLog) else axis.low
        axes.set_xlim(low * 0.9, axis.high * 1.1)
    if isinstance(axis, ZeroOrLog):
        axes.axvline(axis.low, color=SOFT, linestyle=":", linewidth=1)
    axes.set(xlabel=plain(key) + (" (left of the line: 0)" if isinstance(axis, ZeroOrLog) else ""))
