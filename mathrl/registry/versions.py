"""MLflow's model registry: versions by the digest of their bytes.

A Hugging Face folder as MLflow's flavour `transformers`: with it MLflow itself loads and serves a version.

    mlflow.transformers.load_model("models:/mathrl-chain@champion")     a text-generation pipeline
    mlflow models serve -m models:/mathrl-chain@champion                {"inputs": ["3+4"]} -> a response

The version's files are MLmodel, requirements.txt, the folder itself as `model/` and its tokenizer.
"""

import importlib.metadata
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.types import Problem
from mathrl.data.templates import prompt_text
from mathrl.params.run import Prompt
from mathrl.tracking.client import log_model

WEIGHTS = "model"  # the Hugging Face folder in that of a version
PACKAGES = ("mlflow", "torch", "transformers", "accelerate")
QUESTION = "⟦question⟧"


@dataclass(frozen=True)
class Usage:
    """How a model is asked: with its prompt, its worked examples and at most so many tokens of response."""

    prompt: Prompt
    max_tokens: int
    examples: Sequence[Problem] = ()


def is_transformers(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def weights_of(folder: Path) -> Path:
    """The Hugging Face folder in the downloaded files of a version; earlier versions have no flavour."""
    return folder / WEIGHTS if (folder / "MLmodel").is_file() else folder


def save_flavour(folder: Path, usage: Usage, target: Path, run_id: str, model_id: str) -> None:
    """Write the version's files into `target`, a new folder."""
    import mlflow.transformers
    from huggingface_hub import ModelCard
    from mlflow.models import Model

    logging.getLogger("mlflow.utils.environment").setLevel(logging.ERROR)  # uv's environments have no pip: a warning
    # With an absolute path MLflow does not look for a repository of this name on the hub.
    mlflow.transformers.save_model(
        str(folder.absolute()),
        str(target),
        task="text-generation",
        model_card=ModelCard(_card(folder)) if _has_card(folder) else None,
        mlflow_model=Model(run_id=run_id, model_id=model_id),
        signature=_signature(usage.max_tokens),
        prompt_template=prompt_template(folder, usage),
        model_config={"return_full_text": False},
        pip_requirements=[
            f"{package}=={importlib.metadata.version(package).partition('+')[0]}" for package in PACKAGES
        ],
    )


def prompt_template(folder: Path, usage: Usage) -> str:
    """The prompt around a question as a format string; "{prompt}" where rows bring their own prompts."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    problem = Problem(id="question", question=QUESTION, answers=("",), source="", split="test")
    try:
        text = prompt_text(problem, usage.prompt, tokenizer, usage.examples) + usage.prompt.response_prefix
    except UserError:  # the tokenizer has no chat template, and no row needed one
        return "{prompt}"
    return text.replace("{", "{{").replace("}", "}}").replace(QUESTION, "{prompt}")


def _card(folder: Path) -> str:
    """The model's README with a metadata block, whose absence the hub's library warns of."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    return text if text.startswith("---") else f"---\nlibrary_name: transformers\n---\n{text}"


def _has_card(folder: Path) -> bool:
    return (folder / "README.md").is_file()


def _signature(max_tokens: int) -> Any:
    """Texts to texts; what a caller may set besides."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema

    settings = ParamSchema(
        [
            ParamSpec("max_new_tokens", "long", max_tokens),
            ParamSpec("do_sample", "boolean", False),
            ParamSpec("temperature", "double", 1.0),
        ]
    )
    return ModelSignature(Schema([ColSpec("string")]), Schema([ColSpec("string")]), settings)


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
