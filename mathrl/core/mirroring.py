"""The process that uploads stages' records to MLflow, beside whoever runs stages: one at a time."""

import os
import subprocess
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path

from mathrl.core.environment import Variable

UPLOAD_SECONDS = 60.0
RESULTS_VIEW, CURVES_VIEW = "mathrl-results", "mathrl-curves"  # views of every experiment (mathrl/tracking/views.py)
TRAINING = "?workflowType=machine_learning"  # MLflow's pages for training, not for GenAI


def results_address(server: str, experiment: str) -> str:
    """The list of an experiment's runs with their results, best first; without `server` for its own pages."""
    return f"{server}/#/experiments/{experiment}/runs{TRAINING}&viewStateShareKey={RESULTS_VIEW}"


@contextmanager
def while_mirroring(env: MutableMapping[str, str] = os.environ, folder: Path | None = None) -> Iterator[None]:
    """Run a mirror with this environment, in this folder, unless the environment names a running one.

    Within the context `env` names it to the stages that are started with it. At the end it uploads the rest.
    """
    if env.get(Variable.MIRROR):
        yield
        return
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
            print(
                "tracking: not everything was uploaded to MLflow in time; `mathrl runs sync` uploads the rest",
                file=sys.stderr,
            )
