"""The MLflow client: its address, and a clear error if no server answers there.

Where a project was moved or copied, its MLflow file names the folder of artifacts by the path that it had;
that is mended.
"""

import os
import socket
import sqlite3
import urllib.parse
from contextlib import closing
from pathlib import Path
from typing import Any

from filelock import FileLock

from mathrl.core.environment import without_collections
from mathrl.core.errors import UserError, without_logins
from mathrl.core.paths import home, tracking_uri, without_password
from mathrl.tracking.views import views

EXPERIMENT = "mathrl"
KIND = {"mlflow.experimentKind": "custom_model_development"}  # the UI's pages for training, not for GenAI
QUIET = {
    "MLFLOW_LOGGING_LEVEL": "WARNING",  # not that a new file gets its tables
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "1",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


def connect() -> Any:
    """A client of the tracking store; a local file is created.

    Raises:
        UserError: the server does not answer.
    """
    uri = _login_apart(tracking_uri())
    check_answers(uri)
    os.environ.update({name: value for name, value in QUIET.items() if name not in os.environ})
    with without_collections():
        import mlflow  # 1.4 s, which only the mirror, the registry and the doctor pay

    mlflow.set_tracking_uri(uri)
    home().mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(home() / "tracking.lock"):  # the first process creates the tables of a local file
            follow_move()
            client = mlflow.MlflowClient(uri)
        experiment(client)
        return client
    except ModuleNotFoundError as error:  # a database's driver
        raise UserError(
            f"MLflow at {without_password(uri)}: {error.name} is missing: pip install -c constraints.txt 'mathrl[s3]'; "
            "the address is postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
        ) from None
    except mlflow.exceptions.MlflowException as error:
        message = without_logins(str(error))
        raise UserError(f"MLflow at {without_password(uri)} refused: {message}; see MLFLOW_TRACKING_URI") from None


def experiment(client: Any, question: str = "") -> str:
    """The id of a question's experiment, created if it is missing: `mathrl` is the pipeline's,
    `mathrl/study` a recipe's, `mathrl/preset gsm8k` a preset's, `mathrl/sweep demo` a sweep's."""
    name = f"{EXPERIMENT}/{question}" if question else EXPERIMENT
    with FileLock(home() / "tracking.lock"):
        existing = client.get_experiment_by_name(name)
        if existing:
            return str(existing.experiment_id)
        # A server has an artifact folder of its own.
        artifacts = (home() / "artifacts").as_uri() if tracking_uri().startswith("sqlite") else None
        tags = KIND | views(question)
        return str(client.create_experiment(name, artifact_location=artifacts, tags=tags))


def read_history(client: Any, run: Any) -> tuple[dict[int, dict[str, float]], dict[str, str]]:
    """The metrics of a run by step, and its parameters as MLflow keeps them, as texts."""
    steps: dict[int, dict[str, float]] = {}
    for name in run.data.metrics:
        for metric in client.get_metric_history(run.info.run_id, name):
            steps.setdefault(int(metric.step), {})[name] = float(metric.value)
    return dict(sorted(steps.items())), dict(run.data.params)


def experiments(client: Any) -> list[str]:
    """The ids of all experiments of mathrl, since lineage crosses them."""
    candidates = client.search_experiments(filter_string=f"name LIKE '{EXPERIMENT}%'")
    return [str(item.experiment_id) for item in candidates if item.name.split("/")[0] == EXPERIMENT]


def check_answers(uri: str) -> None:
    """Raises UserError if `uri` names a server and none listens there; a local file always passes."""
    parts = urllib.parse.urlsplit(uri)
    if parts.scheme.startswith("sqlite"):
        Path(uri.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
        return
    if parts.scheme not in ("http", "https"):
        return
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=5).close()
    except OSError as error:
        raise UserError(
            f"MLflow at {without_password(uri)} does not answer ({error.strerror or error}): start it with "
            "`mathrl ui`, or unset MLFLOW_TRACKING_URI to track into a local file"
        ) from None


def _login_apart(uri: str) -> str:
    """A server's address without user and password, which MLflow's client reads from the environment instead.

    Its errors and their tracebacks quote the address.
    """
    parts = urllib.parse.urlsplit(uri)
    if not (parts.scheme in ("http", "https") and parts.username and parts.password):
        return uri
    os.environ["MLFLOW_TRACKING_USERNAME"] = urllib.parse.unquote(parts.username)
    os.environ["MLFLOW_TRACKING_PASSWORD"] = urllib.parse.unquote(parts.password)
    return without_password(uri)


ARTIFACTS = "artifacts"
# MLflow has no call that changes these; where a release of it has other tables, what is missing is left out.
COLUMNS = {
    "experiments": ("artifact_location",),
    "runs": ("artifact_uri",),
    "logged_models": ("artifact_location",),
    "model_versions": ("source", "storage_location"),
}


def follow_move() -> None:
    """Have the project's own MLflow file name its own folder of artifacts."""
    file, place = home() / "mlflow.db", (home() / ARTIFACTS).as_uri()
    if tracking_uri() != f"sqlite:///{file}" or not file.is_file():
        return
    with closing(sqlite3.connect(file, timeout=60)) as store, store:
        tables = {name for (name,) in store.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if "experiments" not in tables:
            return
        named = (
            "SELECT artifact_location FROM experiments WHERE name LIKE 'mathrl%' AND artifact_location LIKE 'file://%'"
        )
        for old in {location for (location,) in store.execute(named)} - {place}:
            for table, column in [(name, column) for name in tables & COLUMNS.keys() for column in COLUMNS[name]]:
                store.execute(
                    f"UPDATE {table} SET {column} = ? || substr({column}, ?) "
                    f"WHERE {column} = ? OR substr({column}, 1, ?) = ?",
                    (place, len(old) + 1, old, len(old) + 1, f"{old}/"),
                )
