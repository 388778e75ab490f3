"""Model folders as MLflow's logged models: by reference, with the metrics measured on them.

A model is its bytes: stages that make the same digest share one logged model. It holds no files, only the
path and the digest under which DVC keeps them, until the stage register uploads it (registry.versions).
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
    """The logged model of these bytes, created in `experiment` as the run's if there is none yet."""
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
