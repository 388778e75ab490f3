"""The study: its storage, what it may not change on its way, and who has which trial.

Every worker sees home() (on several machines: $MATHRL_HOME on a shared disk), where trainers resume from. A
trial belongs to the process that its lease names. A worker that died leaves its trial RUNNING; the next claim
adopts it, with its number, parameters and folder, so that its trainer resumes from its last checkpoint.
Claims are made one at a time under a lock: no trial is lost, and none is run twice.
"""

import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
import psutil
from filelock import FileLock
from optuna.trial import FrozenTrial, Trial, TrialState

from mathrl.core.errors import UserError
from mathrl.core.files import write_json
from mathrl.core.hashing import digest_path
from mathrl.core.places import home
from mathrl.core.seeding import derive_seed
from mathrl.params.schema import READS
from mathrl.params.sweep import Categorical, Integer, Sweep
from mathrl.sweeps.space import check_space, distribution, encode, trial_params

STORAGE = "MATHRL_SWEEP_STORAGE"
AWAY_SECONDS = 300.0  # another machine's worker that has not renewed its lease for so long is dead
optuna.logging.set_verbosity(optuna.logging.ERROR)


@dataclass(frozen=True)
class Opened:
    """A study with its section, its folder, and the parameters that were present when it began."""

    study: optuna.Study
    sweep: Sweep
    folder: Path
    present: Mapping[str, Any]
    steps: int


def study_folder(name: str) -> Path:
    return home() / "sweeps" / name


def open_study(sweep: Sweep) -> Opened:
    """The study of the section, begun if it is new, with trial 0 (the present parameters) waiting.

    Raises:
        UserError: a space that does not fit the schema, inputs that are not there, a storage that does not
            answer, or a study of this name that was begun with something else than is there now.
    """
    folder = study_folder(sweep.study)
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "claim.lock"):
        study = _connect(sweep, folder)
        known = study.user_attrs.get("mathrl")
        present = known["present"] if known else check_space(sweep)
        params = trial_params(sweep, present)
        study.pruner = _pruner(sweep, params.rl.steps, params.rl.eval_every)
        facts = _facts(sweep, params.model_dump(mode="json", by_alias=True))
        if known is None:
            study.set_user_attr("mathrl", {"present": present, "facts": facts})
        elif known["facts"] != facts:
            differ = sorted(k for k in {**known["facts"], **facts} if known["facts"].get(k) != facts.get(k))
            raise UserError(
                f"study {sweep.study} was begun with another {', '.join(differ)}: its trials could not be "
                "compared with new ones. Put that back, or set sweep.study to a new name"
            )
        if not study.get_trials(deepcopy=False):
            study.enqueue_trial({key: encode(axis, present[key]) for key, axis in sweep.space.items()})
    return Opened(study, sweep, folder, present, params.rl.steps)


def read_study(name: str, storage: str = "journal") -> optuna.Study:
    """An existing study, to look at.

    Raises:
        UserError: there is none of this name.
    """
    folder = study_folder(name)
    there = sorted(each.name for each in folder.parent.glob("*") if (each / "claim.lock").exists())
    if name not in there:
        raise UserError(f"no study {name!r}; there are: {', '.join(there) or 'none (mathrl sweep run)'}")
    return _connect(Sweep.model_validate({"study": name, "storage": storage}), folder)


def _connect(sweep: Sweep, folder: Path) -> optuna.Study:
    if sweep.storage == "journal":
        backend = optuna.storages.journal.JournalFileBackend(str(folder / "journal.log"))
        storage: Any = optuna.storages.JournalStorage(backend)
        return _create(sweep.study, storage)
    url = os.environ.get(STORAGE, "")
    if not url.startswith("postgresql"):
        raise UserError(f"sweep.storage is environment: put a postgresql:// URL into ${STORAGE}")
    try:
        storage = optuna.storages.RDBStorage(url)
        return _create(sweep.study, storage)
    except Exception as error:  # whose message may hold the URL with its password
        kind = type(error).__name__
    hint = "; pip install psycopg2-binary" if kind in ("ImportError", "ModuleNotFoundError") else ""
    raise UserError(f"the database in ${STORAGE} cannot be used ({kind}){hint}")


def _create(name: str, storage: Any) -> optuna.Study:
    return optuna.create_study(storage=storage, study_name=name, direction="maximize", load_if_exists=True)


def _sampler(sweep: Sweep, begun: int) -> optuna.samplers.BaseSampler:
    """TPE; its random numbers follow from the trials begun so far, so that workers do not draw alike."""
    seed = derive_seed(sweep.sampler_seed, "sweep", begun) % 2**32
    return optuna.samplers.TPESampler(n_startup_trials=sweep.startup_trials, seed=seed, constant_liar=True)


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
            raise UserError(
                f"{file}: not there yet; `mathrl run mix` or `dvc repro mix` makes the usual inputs"
            )
        facts[file] = digest_path(Path(file))
    if Path(sweep.test).exists() and digest_path(Path(sweep.test)) == digest_path(Path(sweep.dev)):
        raise UserError(f"{sweep.dev} holds the test problems of {sweep.test}: trials must not see them")
    return facts


def claim(opened: Opened, until: float | None = None) -> Trial | None:
    """A trial to run: one whose worker died, else a new one; None when all are begun or time is up."""
    study, sweep = opened.study, opened.sweep
    lock = opened.folder / "claim.lock"
    with FileLock(lock):
        lock.touch()
        now = lock.stat().st_mtime  # the shared disk's clock
        trials = study.get_trials(deepcopy=False)
        begun = sum(each.state != TrialState.WAITING for each in trials)
        study.sampler = _sampler(sweep, begun)
        for each in trials:
            if each.state == TrialState.RUNNING and not is_held(opened.folder, each.number, now):
                renew(opened.folder, each.number)
                return _suggest(Trial(study, each._trial_id), sweep)
        if (sweep.trials is not None and begun >= sweep.trials) or (
            until is not None and time.time() > until
        ):
            return None
        trial = study.ask()
        renew(opened.folder, trial.number)
        return _suggest(trial, sweep)


def _suggest(trial: Trial, sweep: Sweep) -> Trial:
    """Draw what is not drawn yet: a worker may have died between two parameters."""
    for key, axis in sweep.space.items():
        drawn: Any = distribution(axis)
        if isinstance(axis, Categorical):
            trial.suggest_categorical(key, drawn.choices)
        elif isinstance(axis, Integer):
            trial.suggest_int(key, drawn.low, drawn.high, step=drawn.step)
        else:
            trial.suggest_float(key, drawn.low, drawn.high, log=drawn.log)
    return trial


def renew(folder: Path, number: int, child: int | None = None) -> None:
    """Hold a trial's lease; `child` is the process that runs the trainer."""
    me = psutil.Process()
    holders = [[me.pid, me.create_time()]]
    if child is not None and psutil.pid_exists(child):
        holders.append([child, psutil.Process(child).create_time()])
    write_json(_lease(folder, number), {"host": socket.gethostname(), "processes": holders})


def give_back(folder: Path, number: int) -> None:
    _lease(folder, number).unlink(missing_ok=True)


def is_held(folder: Path, number: int, now: float) -> bool:
    """Whether a living process has the trial: here by its number and start, elsewhere by the lease's age."""
    file = _lease(folder, number)
    try:
        lease, age = json.loads(file.read_text()), now - file.stat().st_mtime
    except FileNotFoundError:
        return False
    if lease["host"] != socket.gethostname():
        return age < AWAY_SECONDS
    return any(_lives(pid, born) for pid, born in lease["processes"])


def _lives(pid: int, born: float) -> bool:
    try:
        process = psutil.Process(pid)
        same: bool = abs(process.create_time() - born) < 1.0
        return same and bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _lease(folder: Path, number: int) -> Path:
    return folder / "leases" / f"{number:04d}.json"


def best(trials: Sequence[FrozenTrial]) -> FrozenTrial | None:
    """The complete trial of the highest score, the earliest of equals."""
    complete = [each for each in trials if each.state == TrialState.COMPLETE]
    return max(complete, key=lambda each: (each.value, -each.number), default=None)
