"""A study as a table and pictures: trials.md, trials.json, best.png, slices.png, importance.png."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from mathrl.core.files import write_json, write_text
from mathrl.core.markdown import cell, code, table
from mathrl.sweeps.pictures import draw_history, draw_importance, draw_slices
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
