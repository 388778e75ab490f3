"""MLflow's model registry: versions by the digest of their bytes, and their way to the Hugging Face hub.

A Hugging Face folder as MLflow's flavour `transformers`: with it MLflow itself loads and serves a version.

    mlflow.transformers.load_model("models:/mathrl-chain@champion")     a text-generation pipeline
    mlflow models serve -m models:/mathrl-chain@champion                {"inputs": ["3+4"]} -> a response

The version's files are MLmodel, requirements.txt, the folder itself as `model/` and its tokenizer. On the hub the card
is beside the weights, and for a registered version in the folder mathrl/ its evaluation, its lineage, the report of its
run, and the certificate of its reproduction if there is one.
"""

import importlib.metadata
import json
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mathrl.core.environment import NO_HUB, ask_hub_once
from mathrl.core.errors import UserError
from mathrl.core.files import write_json, write_text
from mathrl.core.hashing import digest_path
from mathrl.core.markdown import cell
from mathrl.core.paths import home
from mathrl.core.types import Problem
from mathrl.data.templates import prompt_text
from mathrl.params.run import Prompt
from mathrl.registry.reproduction import JSON, PAGE
from mathrl.tracking.client import log_model
from mathrl.tracking.lineage import Back, way_back

WEIGHTS = "model"  # the Hugging Face folder in that of a version
PACKAGES = ("mlflow", "torch", "transformers", "accelerate")
QUESTION = "⟦question⟧"


@dataclass(frozen=True)
class Usage:
    """How a model is asked: with its prompt, its worked examples and at most so many tokens of response."""

    prompt: Prompt
    max_tokens: int
    examples: Sequence[Problem] = ()


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
        model_card=ModelCard(_card(folder)) if (folder / "README.md").is_file() else None,
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
    from mathrl.models.transformers_import import AutoTokenizer  # two seconds

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
        if usage is not None and (folder / "config.json").is_file():
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
    title = f"# {cell(name)} version {version}\n"
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


EVIDENCE = "mathrl"  # the folder of what is said about the weights


@dataclass(frozen=True)
class Pushed:
    """What is in the repository now.

    Example:
        Pushed("org/name", "https://huggingface.co/org/name/commit/9f2…", ["README.md", "config.json", …])
    """

    repository: str
    url: str
    files: list[str]


def push(client: Any, model: str, repository: str, *, private: bool = True) -> Pushed:
    """Upload a registered version (NAME, NAME:VERSION, NAME@ALIAS) or a model folder, as a commit.

    Raises:
        UserError: no such version or folder, other bytes than the registry's, or the hub refuses; the message says why.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

    if not ask_hub_once():
        raise UserError(f"the hub cannot be asked: {NO_HUB}")
    with _files_of(client, model) as folder:
        files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        api = HfApi()
        try:
            api.create_repo(repository, private=private, exist_ok=True)
            commit = api.upload_folder(repo_id=repository, folder_path=folder, commit_message=f"{model}, by mathrl")
        except HFValidationError as error:
            raise UserError(f"--to {repository}: {error}; write OWNER/NAME") from None
        except LocalTokenNotFoundError:
            raise UserError(
                "the hub asks who you are: run `hf auth login`, or set $HF_TOKEN to a token that writes"
            ) from None
        except HfHubHTTPError as error:
            status = error.response.status_code
            hint = "; set $HF_TOKEN to a token that may write there" if status in (401, 403) else ""
            raise UserError(
                f"the hub refused {repository} with {status}: {error.server_message or error}{hint}"
            ) from None
    return Pushed(repository, str(commit.commit_url), files)


@contextmanager
def _files_of(client: Any, model: str) -> Iterator[Path]:
    """A folder with what the repository will have."""
    if (Path(model) / "config.json").is_file():
        yield Path(model)
        return
    if Path(model).is_dir():
        raise UserError(f"{model}: no model folder, config.json is missing")
    back = way_back(client, model)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / "repository"
        shutil.copytree(_download(back, Path(temporary)), folder)
        _write_evidence(client, back, folder)
        yield folder


def _download(back: Back, temporary: Path) -> Path:
    """The weights' folder of the version, whose bytes are those of its digest."""
    from mlflow.artifacts import download_artifacts

    place = temporary / "version"
    place.mkdir()
    folder = weights_of(Path(download_artifacts(f"models:/{back.name}/{back.version}", dst_path=str(place))))
    if digest_path(folder) != back.digest:
        raise UserError(f"{back.name} version {back.version}: its files are not those that were registered")
    return folder


def _write_evidence(client: Any, back: Back, folder: Path) -> None:
    """The card as README.md, and the folder mathrl/."""
    from mlflow.artifacts import download_artifacts

    evidence = folder / EVIDENCE
    evidence.mkdir()
    version = client.get_model_version(back.name, back.version)
    named = {file.path for file in client.list_artifacts(version.run_id)}
    for name in named & {"report.html"}:
        download_artifacts(run_id=version.run_id, artifact_path=name, dst_path=str(evidence))
    for name in (JSON, PAGE):
        certificate = home() / "reproduced" / f"{back.name}-{back.version}" / name
        if certificate.is_file():
            shutil.copy(certificate, evidence / name)
    figures = {
        f"{step.stage} {step.run}": client.get_run(step.run).data.metrics
        for step in back.steps
        if step.stage.rpartition("/")[2] == "evaluate"
    }
    write_json(evidence / "evaluation.json", {"verdict": back.tags.get("verdict", ""), "figures": figures})
    write_json(evidence / "lineage.json", asdict(back) | {"gaps": back.gaps()})
    write_text(folder / "README.md", _hub_card(back, version.description or ""))


def _hub_card(back: Back, description: str) -> str:
    """The version's description with the block that the hub reads."""
    bases = ((step.params.get("model.base.path", ""), Path(step.workspace)) for step in back.steps)
    base, workspace = next(((base, workspace) for base, workspace in bases if base), ("", Path()))
    is_folder = base.count("/") > 1 or base.startswith(("/", "./", "../", "~")) or (workspace / base).is_dir()
    tags = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["mathrl", "reinforcement-learning"],
    }
    block = {**tags, **({"base_model": base} if base and not is_folder else {})}
    lines = [f"{key}: {json.dumps(value)}" for key, value in block.items()]
    return "\n".join(["---", *lines, "---", "", description.strip(), ""])
