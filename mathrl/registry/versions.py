"""MLflow's model registry: versions by the digest of their bytes."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mathrl.registry.flavour import Usage, is_transformers, save_flavour
from mathrl.tracking.models import log_model


def find_version(client: Any, name: str, digest: str) -> str | None:
    """The version of the registered model `name` whose bytes have this digest."""
    for version in client.search_model_versions(f"name = '{name}'"):
        if version.tags.get("mathrl.digest") == digest:
            return str(version.version)
    return None


def register_version(
    client: Any, name: str, run_id: str, folder: Path, tags: Mapping[str, str], usage: Usage | None = None
) -> str:
    """Upload a Hugging Face folder to its logged model and make that the newest version of `name`.

    `tags` hold its `mathrl.digest`; `run_id` is the run that registers it. With `usage` MLflow can load and serve it.
    """
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    place = client.get_run(run_id).info.experiment_id
    model = log_model(client, place, str(folder), tags["mathrl.digest"], run_id)
    with TemporaryDirectory() as temporary:
        files = folder
        if usage is not None and is_transformers(folder):
            files = Path(temporary) / "version"
            save_flavour(folder, usage, files, run_id, model.model_id)
        client.log_model_artifacts(model.model_id, str(files))
    version = client.create_model_version(
        name, f"models:/{model.model_id}", run_id, tags=dict(tags), model_id=model.model_id
    )
    return str(version.version)


def describe(client: Any, name: str, version: str, *, decision: str = "", card: str = "") -> None:
    """Set the gate's decision or the card in the version's description, and keep the other one.

    The card begins with its title, "# NAME version N".
    """
    title = f"# {name} version {version}\n"
    before, heading, rest = (client.get_model_version(name, version).description or "").partition(title)
    text = f"{decision or before.strip()}\n\n{card or heading + rest}".strip()
    client.update_model_version(name, version, description=text[:LONGEST_DESCRIPTION])


LONGEST_DESCRIPTION = 5000  # characters in MLflow's database
CHAMPION, HISTORY = "champion", "champion.history"


def champions(client: Any, name: str) -> list[str]:
    """The versions that were champion, the present one last; kept as a tag of the registered model."""
    model = client.get_registered_model(name)
    history: list[str] = json.loads(model.tags.get(HISTORY, "[]"))
    present = model.aliases.get(CHAMPION)
    if present is not None and history[-1:] != [str(present)]:
        history.append(str(present))  # moved by hand in MLflow's pages
    return history if present is not None else []


def set_champions(client: Any, name: str, history: Sequence[str]) -> None:
    """The last of `history` becomes the champion."""
    client.set_registered_model_alias(name, CHAMPION, history[-1])
    client.set_registered_model_tag(name, HISTORY, json.dumps(list(history)))
