"""The MLflow client: its address, with a clear error if no server answers there; experiments with their saved views,
and logged models.

Where a project was moved or copied, its MLflow file names the folder of artifacts by the path that it had; that is
mended.
"""

import json
import os
import re
import socket
import sqlite3
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from filelock import FileLock

from mathrl.core.environment import without_collections
from mathrl.core.errors import UserError, without_logins
from mathrl.core.mirroring import CURVES_VIEW, RESULTS_VIEW
from mathrl.core.paths import home, tracking_uri

EXPERIMENT = "mathrl"
PAGE = 1000  # runs or experiments of one answer
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
            f"MLflow at {without_logins(uri)}: {error.name} is missing: pip install -c constraints.txt 'mathrl[s3]'; "
            "the address is postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
        ) from None
    except mlflow.exceptions.MlflowException as error:
        message = without_logins(str(error))
        raise UserError(f"MLflow at {without_logins(uri)} refused: {message}; see MLFLOW_TRACKING_URI") from None


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
    candidates = _all_pages(client.search_experiments, filter_string=f"name LIKE '{EXPERIMENT}%'")
    return [str(item.experiment_id) for item in candidates if item.name.split("/")[0] == EXPERIMENT]


def search_runs(client: Any, query: str = "", order_by: Sequence[str] = ()) -> Iterator[Any]:
    """Every run of mathrl's experiments for which the query holds."""
    yield from _all_pages(client.search_runs, experiments(client), query, order_by=list(order_by))


def _all_pages(search: Callable[..., Any], *query: Any, **settings: Any) -> Iterator[Any]:
    token = None
    while True:
        page = search(*query, max_results=PAGE, page_token=token, **settings)
        yield from page
        token = page.token
        if not token:
            return


def check_answers(uri: str) -> None:
    """Raises UserError if `uri` names a server and none listens there; a local file always passes."""
    parts = urllib.parse.urlsplit(uri)
    if parts.scheme.startswith("sqlite"):
        Path(uri.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
        return
    if parts.scheme not in ("http", "https"):
        return
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise UserError(f"MLFLOW_TRACKING_URI is {without_logins(uri)!r}: {error}; write http://HOST:PORT") from None
    try:
        socket.create_connection((parts.hostname or "", port), timeout=5).close()
    except OSError as error:
        raise UserError(
            f"MLflow at {without_logins(uri)} does not answer ({error.strerror or error}): start it with "
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
    return without_logins(uri)


ARTIFACTS = "artifacts"
# MLflow has no call that changes these; where a release of it has other tables, what is missing is left out.
ADDRESSES = {
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
            for table, column in [(name, column) for name in tables & ADDRESSES.keys() for column in ADDRESSES[name]]:
                store.execute(
                    f"UPDATE {table} SET {column} = ? || substr({column}, ?) "
                    f"WHERE {column} = ? OR substr({column}, 1, ?) = ?",
                    (place, len(old) + 1, old, len(old) + 1, f"{old}/"),
                )


LONGEST_TEXT = 250  # MLflow allows 500 characters for a parameter of a logged model


def model_paths(paths: Mapping[str, str]) -> dict[str, str]:
    """The model folders among a stage's inputs or outputs, with their digests.

    >>> model_paths({"models/rl": "77", "reports/rl": "1", "pipelines/recipes/a/b/model": "9"})
    {'models/rl': '77', 'pipelines/recipes/a/b/model': '9'}
    """
    return {path: digest for path, digest in paths.items() if re.fullmatch(r"models/[^/]+|.*/model", path)}


def model_name(path: str) -> str:
    """The name by which a model folder is known.

    >>> model_name("models/rl"), model_name("pipelines/recipes/study/grpo-s0/model")
    ('rl', 'study-grpo-s0')
    """
    words = path.removeprefix("models/").removeprefix("pipelines/recipes/").removesuffix("/model")
    return re.sub(r"[/:.%\"']", "-", words)


def logged_model(client: Any, digest: str) -> Any | None:
    """The logged model of these bytes, or None."""
    models = client.search_logged_models(experiments(client), f"tags.`mathrl.digest` = '{digest}'", max_results=1)
    return models[0] if models else None


def log_model(
    client: Any,
    experiment: str,
    path: str,
    digest: str,
    run_id: str,
    tags: Mapping[str, str] | None = None,
    params: Mapping[str, str] | None = None,
) -> Any:
    """The logged model of these bytes, created in `experiment` as the run's if there is none yet.

    A model is its bytes: stages that make the same digest share one. It holds no files, only the path and the digest
    under which DVC keeps them, until the stage register uploads it (registry.versions). Example of its tags:

        {"mathrl.digest": "77aa…", "mathrl.path": "models/rl", "mathrl.workspace": "/home/me/mathrl", …}
    """
    with FileLock(home() / "models.lock"):
        existing = logged_model(client, digest)
        if existing is not None:
            return existing
        model = client.create_logged_model(
            experiment,
            model_name(path),
            run_id,
            params={k: v[:LONGEST_TEXT] for k, v in (params or {}).items()},
            tags={"mathrl.digest": digest, "mathrl.path": path, **(tags or {})},
            model_type="causal-lm",
        )
        return client.finalize_logged_model(model.model_id, "READY")


TAG, NOTE = "mlflow.sharedViewState.", "mlflow.note.content"
COLUMNS = (
    "metrics.`rl/pass_at_1`",
    "tags.`interval`",
    "metrics.`sft/pass_at_1`",
    "metrics.`dev/best`",
    "params.`rl.optimizer.lr`",
    "params.`rl.steps`",
    "params.`rl.kl.coef`",
    "params.`changed`",
    "params.`data`",
    "tags.`health`",
)
CHARTS = ("reward/accuracy", "dev/accuracy", "response_length", "rollout/truncated_share", "entropy", "kl")
FIRST = "mathrl-first"  # the section of these charts


def description(question: str) -> str:
    """What MLflow's list of experiments says of the experiment of a question (`tracking.client.experiment`)."""
    subject = f"Runs of {question}" if question else "Runs of the pipeline"
    return f"{subject}: each holds the runs of its stages. Menu Views: Results (best first), Curves of RL."


def views(question: str) -> dict[str, str]:
    """The tags of an experiment for MLflow's menu Views: the list of results, and the curves of RL, rewards first; and
    its description.

    A view is a tag `mlflow.sharedViewState.<id>` of at most 5,000 characters:

        {"name": "Results", "createdAt": 0, "updatedAt": 0, "state": "{\\"selectedColumns\\": […], …}"}
    """
    results = {
        "searchFilter": "tags.`mathrl.role` LIKE '%'",
        "orderByKey": "metrics.`rl/pass_at_1`",
        "orderByAsc": False,
        "selectedColumns": list(COLUMNS),
    }
    curves = {
        "searchFilter": "tags.`mlflow.source.name` = 'mathrl.stages.rl'",
        "orderByKey": "metrics.`final/dev/accuracy`",
        "orderByAsc": False,
        "isAccordionReordered": True,
        "compareRunCharts": [_chart(name) for name in CHARTS],
        "compareRunSections": [{"uuid": FIRST, "name": "Rewards and accuracy", "display": True, "isReordered": True}],
    }
    tags = {TAG + RESULTS_VIEW: _view("Results", results), TAG + CURVES_VIEW: _view("Curves of RL", curves)}
    return {NOTE: description(question)} | tags


def keep_views(client: Any, experiment: Any) -> None:
    """Give the experiment the views that it lacks, or has from an older version; a person's description stays."""
    for key, text in views(experiment.name.partition("/")[2]).items():
        if experiment.tags.get(key) != text and not (key == NOTE and key in experiment.tags):
            client.set_experiment_tag(experiment.experiment_id, key, text)


def _view(name: str, state: dict[str, Any]) -> str:
    return json.dumps({"name": name, "createdAt": 0, "updatedAt": 0, "state": json.dumps(state)})


def _chart(metric: str) -> dict[str, Any]:
    nothing: Sequence[str] = []
    return {
        "type": "LINE",
        "uuid": f"mathrl-{metric}",
        "metricSectionId": FIRST,
        "metricKey": metric,
        "runsCountToCompare": 10,
        "lineSmoothness": 0,
        "scaleType": "linear",
        "xAxisScaleType": "linear",
        "xAxisKey": "step",
        "yAxisKey": "metric",
        "yAxisExpressions": nothing,
        "range": {},
        "useGlobalXaxisKey": True,
        "useGlobalLineSmoothing": True,
    }
