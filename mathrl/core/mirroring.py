"""The process that uploads stages' records to MLflow and other trackers, beside whoever runs stages: one at a time."""

import os
import subprocess
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mathrl.core.environment import Variable, install_command
from mathrl.core.errors import UserError, without_logins
from mathrl.core.paths import checkout_or_here, project_setting, tracking_uri
from mathrl.core.records import MirrorState

UPLOAD_SECONDS = 60.0
RESULTS_VIEW, CURVES_VIEW = "mathrl-results", "mathrl-curves"  # views of every experiment (mathrl/tracking/client.py)
TRACKERS = ("mlflow", "wandb", "tensorboard")
TRAINING = "?workflowType=machine_learning"  # MLflow's pages for training, not for GenAI


def results_address(server: str, experiment: str) -> str:
    """The list of an experiment's runs with their results, best first; without `server` for its own pages."""
    return f"{server}/#/experiments/{experiment}/runs{TRAINING}&viewStateShareKey={RESULTS_VIEW}"


def mlflow_page(state: MirrorState, run_id: str) -> str | None:
    """The address of an MLflow run of a record's experiment; None without a server, or before it was sent."""
    uri = without_logins(tracking_uri())
    return f"{uri}/#/experiments/{state.experiment}/runs/{run_id}" if uri.startswith("http") and run_id else None


def chosen_trackers() -> tuple[str, ...]:
    """The trackers beside MLflow: of $MATHRL_TRACKING, else of the project's pyproject.toml, [tool.mathrl] tracking.

    Raises:
        UserError: there is no tracker of that name, or its package is not installed.
    """
    text, where = Variable.TRACKING.get(), str(Variable.TRACKING)
    names = tuple(text.replace(",", " ").split())
    if not text:
        where = "pyproject.toml: tool.mathrl.tracking"
        names = project_setting(checkout_or_here(), "tracking", f"trackers, such as tracking = {[*TRACKERS]}")
    for name in names:
        if name not in TRACKERS:
            raise UserError(f"{where}: {name!r} is no tracker; write any of {', '.join(TRACKERS)}")
    chosen = tuple(name for name in TRACKERS[1:] if name in names)
    for name in chosen:
        found = find_spec(name)
        if found is None or found.origin is None:  # W&B's own folder ./wandb is a package without files to Python
            command = install_command("trackers")
            raise UserError(f"{where} names {name}, which is not installed: `{command}` installs it")
    return chosen


def import_optional(name: str, purpose: str) -> Any:
    """A module of W&B or TensorBoard, which not every installation has; `purpose` begins the error.

    Raises:
        UserError: it is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError:
        package = name.partition(".")[0]
        command = install_command("trackers")
        raise UserError(f"{purpose} needs {package}, which is not installed: `{command}` installs it") from None


@contextmanager
def while_mirroring(env: MutableMapping[str, str] = os.environ, folder: Path | None = None) -> Iterator[None]:
    """Run a mirror with this environment, in this folder, unless the environment names a running one.

    Within the context `env` names it to the stages that are started with it. At the end it uploads the rest.

    Raises:
        UserError: a tracker that the project names is not there, before anything is run.
    """
    if env.get(Variable.MIRROR):
        yield
        return
    chosen_trackers()
    mirror = subprocess.Popen(
        [sys.executable, "-m", "mathrl.tracking.mirror"],
        cwd=folder,
        stdin=subprocess.PIPE,
        env={key: value for key, value in env.items() if key not in (Variable.RANK, Variable.WORLD_SIZE)},
        start_new_session=True,
    )
    env[Variable.MIRROR] = str(mirror.pid)
    try:
        yield
    finally:
        del env[Variable.MIRROR]
        assert mirror.stdin is not None
        mirror.stdin.close()  # asks the mirror to upload the rest and end
        try:
            mirror.wait(timeout=UPLOAD_SECONDS)
        except subprocess.TimeoutExpired:
            mirror.kill()
            print("tracking: not everything was uploaded in time; `mathrl runs sync` uploads the rest", file=sys.stderr)
