"""The study: its storage and locks, its first trial, its pruner by forecast, what must not change while it runs; and
the next trial for a worker, with the worker's hold on it.

The storage is a journal file in the study's folder, or a PostgreSQL database for several machines. A running trial
belongs to the worker that holds its lock, which is free as soon as that worker is dead. The next claim then adopts the
trial, with its number, parameters and folder, so that its trainer resumes from its last checkpoint (on another machine
only if home() is on a shared disk, else from the start). Claims are made one at a time: no trial is lost, and none runs
twice. Each claim writes a new token into the trial: a worker that slept while another one took over its trial finds a
different token, and writes nothing more (`while_holding`).
"""

import fcntl
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import optuna
from filelock import FileLock
from optuna import Study
from optuna.pruners import BasePruner
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from mathrl.core.environment import Variable
from mathrl.core.errors import UserError
from mathrl.core.hashing import derive_seed, digest, digest_path
from mathrl.core.paths import home, with_driver, workspace_preset
from mathrl.core.types import read_problems
from mathrl.evaluation.forecast import forecast
from mathrl.params.schema import READS
from mathrl.params.sweep import Categorical, Integer, Sweep
from mathrl.params.train import Rl
from mathrl.sweeps.space import check_space, distribution, encode, trial_params

JOURNAL = "journal.log"
# PostgreSQL frees the locks of a machine that has been silent for two minutes.
KEEPALIVE = "SET tcp_keepalives_idle = 60; SET tcp_keepalives_interval = 20; SET tcp_keepalives_count = 3"
TrialLock = IO[bytes] | Connection  # closed with its process, however that ends


def study_folder(name: str) -> Path:
    return home() / "sweeps" / name


def storage_of(sweep: Sweep) -> BaseStorage:
    """The storage that section sweep names; a new database gets its tables.

    Raises:
        UserError: no URL, no driver, or a database that does not answer; the URL is not in the message.
    """
    if sweep.storage == "journal":
        folder = study_folder(sweep.study)
        folder.mkdir(parents=True, exist_ok=True)
        return JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
    with _clear_errors():
        return RDBStorage(_url())


def study_names(sweep: Sweep) -> list[str]:
    """The names of existing studies."""
    if sweep.storage == "journal":
        return sorted(file.parent.name for file in study_folder("").glob(f"*/{JOURNAL}"))
    return sorted(optuna.study.get_all_study_names(storage_of(sweep)))


@contextmanager
def study_lock(sweep: Sweep) -> Iterator[None]:
    """One process at a time works on the study, on every machine; released when its holder is killed."""
    if sweep.storage == "journal":
        folder = study_folder(sweep.study)
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / "claim.lock"):
            yield
        return
    with _connect() as connection:  # the server frees the lock when the connection ends
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _key(sweep)})
        yield


def trial_lock(sweep: Sweep, number: int) -> TrialLock | None:
    """The lock of a trial, held until it is closed or this process ends; None if another worker holds it."""
    if sweep.storage == "journal":
        return locked_file(study_folder(sweep.study) / "locks" / f"{number:04d}")
    connection = _connect()
    if connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": _key(sweep, number)}):
        return connection
    connection.close()
    return None


def locked_file(path: Path) -> IO[bytes] | None:
    """The file, locked until this process and those that inherit it have closed it; None if it is locked already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def _connect() -> Connection:
    with _clear_errors():
        connection = create_engine(_url(), poolclass=NullPool, isolation_level="AUTOCOMMIT").connect()
        connection.execute(text(KEEPALIVE))
        return connection


def _key(sweep: Sweep, *number: int) -> int:
    return int(digest(["sweep", sweep.study, *number])[:15], 16)


def _url() -> str:
    url = Variable.SWEEP_STORAGE.get()
    if not url.startswith("postgres"):
        raise UserError(
            "sweep.storage is environment: put postgresql://USER:PASSWORD@HOST:PORT/DATABASE into "
            f"${Variable.SWEEP_STORAGE}"
        )
    return with_driver(url)


@contextmanager
def _clear_errors() -> Iterator[None]:
    try:
        yield
    except ImportError:
        raise UserError("psycopg2 is missing: pip install -c constraints.txt 'mathrl[sweep]'") from None
    except SQLAlchemyError as error:
        kind = type(error).__name__  # not its message, which may hold the URL with its password
        raise UserError(
            f"the database in ${Variable.SWEEP_STORAGE} cannot be used ({kind}): is the server running, and is the "
            "URL right?"
        ) from None


optuna.logging.set_verbosity(optuna.logging.ERROR)


@dataclass(frozen=True)
class OpenStudy:
    """A study with its section, its folder, and the parameters that were present when it was created."""

    study: optuna.Study
    sweep: Sweep
    folder: Path
    present: Mapping[str, Any]
    steps: int
    tracked: str  # its name in MLflow, with the id of the study: one created again under its name is another


def open_study(sweep: Sweep) -> OpenStudy:
    """The study of the section, created if it is new, with trial 0 (the present parameters) waiting.

    Raises:
        UserError: a space that does not fit the schema, missing inputs, a storage that does not answer, or a
            study of this name whose fixed parameters or inputs have changed.
    """
    with study_lock(sweep):
        study = optuna.create_study(
            storage=storage_of(sweep), study_name=sweep.study, direction="maximize", load_if_exists=True
        )
        stored = study.user_attrs.get("mathrl")
        present = stored["present"] if stored else check_space(sweep)
        params = trial_params(sweep, present)
        study.pruner = _pruner(sweep, params.rl)
        facts = _facts(sweep, params.model_dump(mode="json", by_alias=True))
        if stored is None:
            stored = {
                "preset": workspace_preset(),
                "present": present,
                "facts": facts,
                "begun": digest([sweep.study, time.time_ns()])[:6],
            }
            study.set_user_attr("mathrl", stored)
        elif stored["facts"] != facts:
            before = stored["facts"]
            changed = sorted(name for name in {**before, **facts} if before.get(name) != facts.get(name))
            raise UserError(
                f"study {sweep.study} was created with another {', '.join(changed)}: its trials cannot be "
                "compared with new ones. Restore the old values, or set sweep.study to a new name"
            )
        if not study.get_trials(deepcopy=False):
            study.enqueue_trial({key: encode(axis, present[key]) for key, axis in sweep.space.items()})
    return OpenStudy(
        study, sweep, study_folder(sweep.study), present, params.rl.steps, f"{sweep.study}-{stored['begun']}"
    )


def read_study(name: str, storage: str = "journal") -> optuna.Study:
    """An existing study, for reading.

    Raises:
        UserError: there is none of this name.
    """
    section = Sweep.model_validate({"study": name, "storage": storage})
    names = study_names(section)
    if name not in names:
        raise UserError(f"no study {name!r}; existing studies: {', '.join(names) or 'none (mathrl sweep run)'}")
    return optuna.load_study(study_name=name, storage=storage_of(section))


def _pruner(sweep: Sweep, rl: Rl) -> optuna.pruners.BasePruner:
    if sweep.pruner == "median":
        return optuna.pruners.MedianPruner(sweep.startup_trials, sweep.warmup_steps)
    if sweep.pruner == "hyperband":
        first = max(1, rl.dev.every, sweep.warmup_steps)
        return optuna.pruners.HyperbandPruner(first, max(first, rl.steps * sweep.seeds))
    if sweep.pruner == "forecast" and Path(sweep.dev).exists():  # `_facts` reports one that is missing
        responses = len(read_problems(Path(sweep.dev))) * rl.dev.samples
        return ForecastPruner(rl.steps, responses, sweep.startup_trials, sweep.warmup_steps)
    return optuna.pruners.NopPruner()


def _facts(sweep: Sweep, params: Mapping[str, Any]) -> dict[str, Any]:
    """What must not change for trials to be comparable: fixed parameters, the score, inputs."""
    section_values = sweep.model_dump(mode="json")
    facts = {f"sweep.{name}": section_values[name] for name in ("space", "set", "seeds", "evaluations")}
    for section in READS["rl"]:
        facts |= {f"{section}.{name}": value for name, value in params[section].items()}
    for file in (sweep.start, *sweep.data, sweep.dev, sweep.examples):
        if not Path(file).exists():
            preset = f" --preset {workspace_preset()}" if workspace_preset() else ""
            raise UserError(f"{file}: missing; `mathrl run mix{preset}` makes the default inputs")
        facts[file] = digest_path(Path(file))
    if Path(sweep.test).exists() and digest_path(Path(sweep.test)) == digest_path(Path(sweep.dev)):
        raise UserError(f"{sweep.dev} holds the test problems of {sweep.test}: trials must not see them")
    return facts


def best(trials: Sequence[FrozenTrial]) -> FrozenTrial | None:
    """The complete trial of the highest score, the earliest of equals."""
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    return max(complete, key=lambda trial: (trial.value, -trial.number), default=None)


class ForecastPruner(BasePruner):  # type: ignore[misc]
    """Ends a trial during its first run if the forecast for that run's end stays below the best complete trial.

    That is, if the upper end of the 90 % interval does, of the one that allows for a late take-off: such a trial would
    be the best with a chance of 5 % at most.
    `steps` are those of one run, `responses` what a dev evaluation grades; the first `startup` trials run to their end,
    and before `warmup` steps none is ended.
    """

    def __init__(self, steps: int, responses: int, startup: int, warmup: int) -> None:
        self.steps, self.responses, self.startup, self.warmup = steps, responses, startup, warmup

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        last = trial.last_step
        complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if last is None or last <= self.warmup or last >= self.steps or len(complete) < self.startup:
            return False
        prediction = forecast(sorted(trial.intermediate_values.items()), self.steps, self.responses)
        return prediction is not None and prediction.accuracy.high < max(other.value or 0.0 for other in complete)


HOLDER = "holder"


class TrialLost(Exception):
    """The trial no longer belongs to this worker; the message says why."""


@dataclass(frozen=True)
class ClaimedTrial:
    """A trial that this worker claimed, and holds while the storage has `holder` and `lock` is open.

    For example holder = {"host": "node1", "pid": 4711, "token": "5f3a…"}.
    """

    trial: Trial
    sweep: Sweep
    lock: TrialLock
    holder: dict[str, Any]


def claim(opened: OpenStudy, until: float | None = None) -> ClaimedTrial | None:
    """A trial to run: one whose worker died, else a new one; None if all were started or time is up."""
    with study_lock(opened.sweep):
        trials = opened.study.get_trials(deepcopy=False)
        started = sum(trial.state != TrialState.WAITING for trial in trials)
        opened.study.sampler = _sampler(opened.sweep, started)
        for trial in trials:
            if trial.state == TrialState.RUNNING and (lock := trial_lock(opened.sweep, trial.number)):
                return _claim(Trial(opened.study, trial._trial_id), opened.sweep, lock)
        late = until is not None and time.time() > until
        if late or (opened.sweep.trials is not None and started >= opened.sweep.trials):
            return None
        new = opened.study.ask()
        free = trial_lock(opened.sweep, new.number)
        assert free is not None, "only claims lock trials"
        return _claim(new, opened.sweep, free)


def _claim(trial: Trial, sweep: Sweep, lock: TrialLock) -> ClaimedTrial:
    """Claim the trial and suggest its missing parameters: a worker may have died between two of them."""
    holder = {"host": socket.gethostname(), "pid": os.getpid(), "token": os.urandom(8).hex()}
    trial.set_user_attr(HOLDER, holder)
    for key, axis in sweep.space.items():
        range_: Any = distribution(axis)
        if isinstance(axis, Categorical):
            trial.suggest_categorical(key, range_.choices)
        elif isinstance(axis, Integer):
            trial.suggest_int(key, range_.low, range_.high, step=range_.step)
        else:
            trial.suggest_float(key, range_.low, range_.high, log=range_.log)
    return ClaimedTrial(trial, sweep, lock, holder)


@contextmanager
def while_holding(claimed: ClaimedTrial) -> Iterator[None]:
    """Within the context only the trial's holder writes: claims wait until it ends.

    Raises:
        TrialLost: another worker took over the trial, or the trial has ended.
    """
    with study_lock(claimed.sweep):
        stored = claimed.trial.storage.get_trial(claimed.trial._trial_id)
        if stored.state != TrialState.RUNNING:
            raise TrialLost(f"it is {stored.state.name.lower()} already")
        holder = stored.user_attrs[HOLDER]
        if holder != claimed.holder:
            raise TrialLost(f"a worker on {holder['host']} has taken it over")
        yield


def _sampler(sweep: Sweep, started: int) -> optuna.samplers.BaseSampler:
    """TPE, seeded by the number of trials started so far, so that no two workers draw the same parameters."""
    seed = derive_seed(sweep.sampler_seed, "sweep", started) % 2**32
    return optuna.samplers.TPESampler(n_startup_trials=sweep.startup_trials, seed=seed, constant_liar=True)
