"""A registered version, or a model folder, to a repository of the Hugging Face hub.

Beside the weights go the card, and for a registered version in the folder mathrl/ its evaluation, its lineage, the
report of its run, and the certificate of its reproduction if there is one.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mathrl.core.environment import NO_HUB, ask_hub_once
from mathrl.core.errors import UserError
from mathrl.core.files import write_json, write_text
from mathrl.core.hashing import digest_path
from mathrl.core.paths import home
from mathrl.registry.reproduction import JSON, PAGE
from mathrl.registry.versions import weights_of
from mathrl.tracking.lineage import Back, way_back

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
    write_text(folder / "README.md", _card(back, version.description or ""))


def _card(back: Back, description: str) -> str:
    """The version's description with the block that the hub reads."""
    base = next((step.params.get("model.base.path") for step in back.steps if step.params.get("model.base.path")), None)
    tags = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["mathrl", "reinforcement-learning"],
    }
    block = {**tags, **({"base_model": base} if base and not Path(base).is_absolute() else {})}
    lines = [f"{key}: {json.dumps(value)}" for key, value in block.items()]
    return "\n".join(["---", *lines, "---", "", description.strip(), ""])
