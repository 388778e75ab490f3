"""Checkpoints as MLflow's logged models: by reference, with the metrics that were measured of them.

A model is its bytes: stages that make the same digest share one logged model. It holds no files, only the
path and the digest under which DVC keeps them, until the stage register uploads it (tracking.registry).
Example of its tags:

    {"mathrl.digest": "77aa…", "mathrl.path": "models/rl", "mathrl.workspace": "/home/me/mathrl",
     "mlflow.source.git.commit": "a4cec49…"}
"""

import re
from collections.abc import Mapping
from typing import Any

from filelock import FileLock

from mathrl.core.paths import home
from mathrl.tracking.client import experiments

TEXT = 250  # MLflow's limit of a logged model's parameter is 500


def model_paths(paths: Mapping[str, str]) -> dict[str, str]:
    """Those of a stage's inputs or outputs that are model folders, with their digests.

    >>> model_paths({"models/rl": "77", "reports/rl": "1", "pipelines/recipes/a/b/model": "9"})
    {'models/rl': '77', 'pipelines/recipes/a/b/model': '9'}
    """
    return {path: digest for path, digest in paths.items() if re.fullmatch(r"models/[^/]+|.*/model", path)}


def model_name(path: str) -> str:
    """>>> model_name("models/rl"), model_name("pipelines/recipes/study/grpo-s0/model")
    ('rl', 'study-grpo-s0')
    """
    words = path.removeprefix("models/").removeprefix("pipelines/recipes/").removesuffix("/model")
    return re.sub(r"[/:.%\"']", "-", words)


def logged_model(client: Any, digest: str) -> Any | None:
    """The logged model of these bytes."""
    found = client.search_logged_models(experiments(client), f"tags.`mathrl.digest` = '{digest}'", max_results=1)
    return found[0] if found else None


def log_model(
    client: Any,
    experiment: str,
    path: str,
    digest: str,
    run_id: str,
    tags: Mapping[str, str] | None = None,
    params: Mapping[str, str] | None = None,
) -> Any:
    """The logged model of these bytes, made in `experiment` as the run's where there is none yet."""
    with FileLock(home() / "models.lock"):
        found = logged_model(client, digest)
        if found is not None:
            return found
        made = client.create_logged_model(
            experiment,
            model_name(path),
            run_id,
            params={k: v[:TEXT] for k, v in (params or {}).items()},
            tags={"mathrl.digest": digest, "mathrl.path": path, **(tags or {})},
            model_type="causal-lm",
        )
        return client.finalize_logged_model(made.model_id, "READY")
