"""The storage of a study: a journal file in its folder, or a PostgreSQL database for several machines; its locks."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import optuna
from filelock import FileLock
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from mathrl.core.environment import Variable
from mathrl.core.errors import UserError
from mathrl.core.hashing import digest
from mathrl.core.paths import home, with_driver
from mathrl.params.sweep import Sweep

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
