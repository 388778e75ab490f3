"""The study: its storage, its first trial, and what may not change on its way."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from mathrl.core.errors import UserError
from mathrl.core.hashing import digest, digest_path
from mathrl.core.paths import workspace_preset
from mathrl.params.schema import READS
from mathrl.params.sweep import Sweep
from mathrl.sweeps.space import check_space, encode, trial_params
from mathrl.sweeps.storage import alone, storage_of, study_folder, study_names

optuna.logging.set_verbosity(optuna.logging.ERROR)


@dataclass(frozen=True)
class Opened:
    """A study with its section, its folder, and the parameters that were present when it began."""

    study: optuna.Study
    sweep: Sweep
    folder: Path
    present: Mapping[str, Any]
    steps: int
    tracked: str  # its name in MLflow: a study of the same name that was begun anew is another


def open_study(sweep: Sweep) -> Opened:
    """The study of the section, begun if it is new, with trial 0 (the present parameters) waiting.

    Raises:
        UserError: a space that does not fit the schema, inputs that are not there, a storage that does not
            answer, or a study of this name that was begun with something else than is there now.
    """
    with alone(sweep):
        study = optuna.create_study(
            storage=storage_of(sweep), study_name=sweep.study, direction="maximize", load_if_exists=True
        )
        known = study.user_attrs.get("mathrl")
        present = known["present"] if known else check_space(sweep)
        params = trial_params(sweep, present)
        study.pruner = _pruner(sweep, params.rl.steps, params.rl.eval_every)
        facts = _facts(sweep, params.model_dump(mode="json", by_alias=True))
        if known is None:
            known = {
                "preset": workspace_preset(),
                "present": present,
                "facts": facts,
                "begun": digest([sweep.study, time.time_ns()])[:6],
            }
            study.set_user_attr("mathrl", known)
        elif known["facts"] != facts:
            differ = sorted(k for k in {**known["facts"], **facts} if known["facts"].get(k) != facts.get(k))
            raise UserError(
                f"study {sweep.study} was begun with another {', '.join(differ)}: its trials could not be "
                "compared with new ones. Put that back, or set sweep.study to a new name"
            )
        if not study.get_trials(deepcopy=False):
            study.enqueue_trial({key: encode(axis, present[key]) for key, axis in sweep.space.items()})
    return Opened(study, sweep, study_folder(sweep.study), present, params.rl.steps, f"{sweep.study}-{known['begun']}")


def read_study(name: str, storage: str = "journal") -> optuna.Study:
    """An existing study, to look at.

    Raises:
        UserError: there is none of this name.
    """
    section = Sweep.model_validate({"study": name, "storage": storage})
    there = study_names(section)
    if name not in there:
        raise UserError(f"no study {name!r}; there are: {', '.join(there) or 'none (mathrl sweep run)'}")
    return optuna.load_study(study_name=name, storage=storage_of(section))


def _pruner(sweep: Sweep, steps: int, eval_every: int) -> optuna.pruners.BasePruner:
    if sweep.pruner == "median":
        return optuna.pruners.MedianPruner(sweep.startup_trials, sweep.warmup_steps)
    if sweep.pruner == "hyperband":
        least = max(1, eval_every, sweep.warmup_steps)
        return optuna.pruners.HyperbandPruner(least, max(least, steps * sweep.seeds))
    return optuna.pruners.NopPruner()


def _facts(sweep: Sweep, params: Mapping[str, Any]) -> dict[str, Any]:
    """What must stay as it is for trials to be compared: parameters that are not varied, measure, inputs."""
    shown = sweep.model_dump(mode="json")
    facts = {f"sweep.{name}": shown[name] for name in ("space", "set", "seeds", "evaluations")}
    for section in READS["rl"]:
        facts |= {f"{section}.{name}": value for name, value in params[section].items()}
    for file in (sweep.start, *sweep.data, sweep.dev, sweep.examples):
        if not Path(file).exists():
            preset = f" --preset {workspace_preset()}" if workspace_preset() else ""
            raise UserError(f"{file}: not there yet; `mathrl run mix{preset}` makes the usual inputs")
        facts[file] = digest_path(Path(file))
    if Path(sweep.test).exists() and digest_path(Path(sweep.test)) == digest_path(Path(sweep.dev)):
        raise UserError(f"{sweep.dev} holds the test problems of {sweep.test}: trials must not see them")
    return facts


def best(trials: Sequence[FrozenTrial]) -> FrozenTrial | None:
    """The complete trial of the highest score, the earliest of equals."""
    complete = [each for each in trials if each.state == TrialState.COMPLETE]
    return max(complete, key=lambda each: (each.value, -each.number), default=None)
