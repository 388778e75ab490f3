"""A study as a table and pictures: trials.md, trials.json, best.png, slices.png, importance.png."""

from collections.abc import Sequence
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from mathrl.core.files import write_json, write_text
from mathrl.sweeps.pictures import draw_history, draw_importance, draw_slices
from mathrl.sweeps.study import Opened, best

SAID = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "ended early",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "unfinished",
    TrialState.WAITING: "waiting",
}
LEAST = 4  # complete trials, below which importance says nothing


def write_report(opened: Opened) -> dict[str, Any]:
    """Write the table and the pictures; returns what trials.json holds."""
    trials = opened.study.get_trials(deepcopy=False)
    rows, winner = [row(each, list(opened.sweep.space)) for each in trials], best(trials)
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
        complete = sum(each.state == TrialState.COMPLETE for each in trials)
        draw_importance(out["importance"], complete, opened.folder / "importance.png")
    return out


def row(trial: FrozenTrial, keys: Sequence[str]) -> dict[str, Any]:
    """One trial: its state, score, parameters, and why it failed."""
    values = trial.user_attrs.get("values", {})
    seconds = (trial.duration.total_seconds()) if trial.duration else None
    return {
        "trial": trial.number,
        "state": SAID[trial.state],
        "dev": trial.value if trial.state in (TrialState.COMPLETE, TrialState.PRUNED) else None,
        **{key: values.get(key) for key in keys},
        "seconds": seconds,
        "error": trial.user_attrs.get("error"),
    }


def importance(study: optuna.Study, trials: Sequence[FrozenTrial]) -> dict[str, float]:
    """Share of the score's variance that each parameter explains (fANOVA, Hutter et al. 2014)."""
    complete = [each for each in trials if each.state == TrialState.COMPLETE]
    if len(complete) < LEAST or len({each.value for each in complete}) < 2:
        return {}
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {key: float(share) for key, share in shares.items()}


def markdown(out: dict[str, Any]) -> str:
    """The trials, best first."""
    order = sorted(out["trials"], key=lambda r: (r["state"] != "complete", -(r["dev"] or 0.0), r["trial"]))
    columns = [name for name in (order[0] if order else {}) if name != "error"]
    lines = [f"# Study {out['study']}", ""]
    lines += ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_cell(each[name]) for name in columns) + " |" for each in order]
    lines += [
        "",
        "Trial 0 has the parameters that were present when the study began; dev: accuracy on dev "
        "problems, of a trial that ended early, as it then stood.",
    ]
    lines += [f"Trial {each['trial']} failed: {each['error']}" for each in order if each["error"]]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
