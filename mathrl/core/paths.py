"""Folders that outlast a workspace copy: state to resume from, the tracking store, records of runs.

All are under `home()`: the folder .mathrl of the main checkout, shared by every worktree of it, or
$MATHRL_HOME.
"""

import importlib
import ipaddress
import json
import os
import subprocess
import tomllib
import urllib.parse
from functools import cache
from pathlib import Path
from typing import Any

from mathrl.core.environment import Variable
from mathrl.core.errors import UserError

HOME = ".mathrl"
RECIPES = Path("pipelines/recipes")  # each with its dvc.yaml and the outputs of its steps
AUDITS = Path("reports/audits")  # each with sample, labels and rates
CURATED_SFT, CURATED_TEST = Path("data/curated/sft.jsonl"), Path("data/curated/test.jsonl")
# Code and parameters; a worktree at HEAD lacks uncommitted changes of these.
CODE = ("mathrl", "flows", "tasks", "params", "pipelines", "dvc.yaml", "constraints.txt", "pyproject.toml")
WORKTREE_NOTE = ".mathrl-run.json"  # in a worktree under runs/: its overrides and creation time
PRESET = "preset "  # before a preset's name among those overrides
GROUPS = ("data", "model", "method", "hardware")  # what an experiment is composed of, in the order in which they apply


def main_checkout() -> Path:
    """The main checkout's folder, from it or from any worktree of it.

    Raises:
        UserError: the current folder is in no git repository.
    """
    return _checkout_of(Path.cwd())


def checkout_or_here() -> Path:
    """The main checkout's folder, or the current folder outside git, where imported runs can be read all the same."""
    try:
        return main_checkout()
    except UserError:
        return Path.cwd()


@cache
def _checkout_of(folder: Path) -> Path:
    """git is asked once per folder: a program, or a notebook, may go from one project to another."""
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "--path-format=absolute", "--git-common-dir"],
            capture_output=True,
            text=True,
            check=True,
            cwd=folder,
            env={**os.environ, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        raise UserError("git is not installed, which mathrl needs to version data and models: install it") from None
    except subprocess.CalledProcessError as error:
        if "dubious ownership" in error.stderr:  # such as a volume of a container
            advice = error.stderr.strip().splitlines()[-1].strip()
            raise UserError(f"{folder} belongs to another user, so git does not read it: {advice}") from None
        raise UserError(
            f"{folder} is not in a git repository, which mathrl needs to version data and models: "
            "make a project with `mathrl init FOLDER`, or start from `git clone` and not from an unpacked archive"
        ) from None
    common = Path(answer.stdout.strip())
    if common.name == ".git":
        return common.parent
    # A submodule's git directory lies in that of the repository around it, and names the submodule's folder.
    words = ["git", "config", "--file", str(common / "config"), "core.worktree"]
    submodule = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    return (common / submodule).resolve() if submodule else common.parent


def code_version() -> dict[str, Any]:
    """The commit of the current folder's checkout: {"commit": "3a0dd22…", "dirty": false}.

    Dirty is a checkout whose code or parameters differ from the commit. In a worktree under runs/ the parameters
    differ because a person asked for other values, which the run's record has.
    """

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False).stdout

    changed = git("diff", "--name-only", "--no-renames", "-z", "HEAD").split("\0")[:-1]
    asked_for = Path(WORKTREE_NOTE).exists()
    dirty = any(is_code(name) and not (asked_for and name.startswith("params/")) for name in changed)
    return {"commit": git("rev-parse", "HEAD").strip(), "dirty": dirty}


def is_code(name: str) -> bool:
    """Whether a change to the file changes what a run does; dvc.lock and pipelines/*/ are what runs left."""
    folder, *inner = Path(name).parts
    return (
        folder in (*CODE, *own_packages())
        and Path(name).name != "dvc.lock"
        and not (folder == "pipelines" and len(inner) > 1)
    )


def own_packages(project: Path = Path()) -> tuple[str, ...]:
    """The packages of a project whose code counts, as its pyproject.toml lists them: [tool.mathrl] code.

    Raises:
        UserError: the file is not TOML, or the value is no list of names.
    """
    return project_setting(project, "code", 'packages, such as code = ["my_project"]')


def project_setting(project: Path, name: str, example: str) -> tuple[str, ...]:
    """The list of texts that the project's pyproject.toml has under [tool.mathrl] `name`; () where it has none.

    Raises:
        UserError: the file is not TOML, or the value is no list of texts; `example` ends the sentence.
    """
    file = project / "pyproject.toml"
    if not file.is_file():
        return ()
    try:
        listed = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("mathrl", {}).get(name, [])
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: not TOML: {error}") from None
    if not isinstance(listed, list) or not all(isinstance(text, str) for text in listed):
        raise UserError(f"{file}: tool.mathrl.{name}: write a list of {example}")
    return tuple(listed)


def import_own(path: str, where: str) -> Any:
    """The function or class of the user at `package.module.name`, or `package.module:name`; `where` is said in errors.

    Raises:
        UserError: it cannot be imported.
    """
    module, _, name = path.replace(":", ".").rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"{where}: {path!r} cannot be imported ({error}); write package.module.name") from error


def workspace_preset() -> str:
    """The preset of the current folder if that is a worktree under runs/; "" elsewhere."""
    return next((text.removeprefix(PRESET) for text in _asked_for() if text.startswith(PRESET)), "")


def workspace_groups() -> list[str]:
    """The groups that were chosen for the run of the current folder, such as ["data=gsm8k"]; [] elsewhere."""
    return [text for text in _asked_for() if is_group(text)]


def typed_overrides() -> list[str]:
    """The overrides that a person typed for the run of the current folder, a worktree under runs/; [] elsewhere."""
    return [text for text in _asked_for() if not text.startswith(PRESET) and not is_group(text)]


def is_group(text: str) -> bool:
    """Whether the text chooses a group.

    >>> is_group("data=gsm8k"), is_group("model.precision=float32"), is_group("preset gsm8k")
    (True, False, False)
    """
    return "=" in text and text.partition("=")[0].strip() in GROUPS


def _asked_for() -> list[str]:
    try:
        overrides: list[str] = json.loads(Path(WORKTREE_NOTE).read_text(encoding="utf-8"))["overrides"]
    except FileNotFoundError:
        return []
    return overrides


def home() -> Path:
    folder = Variable.HOME.get()
    return Path(folder).absolute() if folder else checkout_or_here() / HOME


def present_folder(workspace: str) -> str:
    """The folder in which a run worked; in a project that was moved since, where that folder is now."""
    old, root = Path(workspace), home().parent
    if home().name != HOME or old.is_relative_to(root) or old.is_dir():
        return workspace
    return str(root / "runs" / old.name if old.parent.name == "runs" else root)


def state_root() -> Path:
    """The folder of checkpoints to resume from, outside DVC outputs: $MATHRL_STATE or home()/state."""
    folder = Variable.STATE.get()
    return Path(folder).absolute() if folder else home() / "state"


def tracking_uri() -> str:
    """$MLFLOW_TRACKING_URI, a server's without slashes at its end, or a sqlite file under home().

    The path of a sqlite file, such as sqlite:///mlflow.db, is made absolute from the main checkout, whose worktrees
    would have a file each.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        return f"sqlite:///{home() / 'mlflow.db'}"
    if uri.startswith("sqlite:///"):
        return f"sqlite:///{checkout_or_here() / uri.removeprefix('sqlite:///')}"
    return with_driver(uri.rstrip("/") if uri.startswith("http") else uri)


def rollouts_page(record: str) -> str:
    """The address of the page over the rollouts that the run of this record kept, once `mathrl ui` serves it."""
    server = Variable.ROLLOUTS.get().rstrip("/") or "http://127.0.0.1:5001"
    return f"{server}/{urllib.parse.quote(record)}/"


def with_driver(uri: str) -> str:
    """A database's address with the installed driver, psycopg2: SQLAlchemy 2.1 would take psycopg 3.

    >>> with_driver("postgresql://me@host/runs"), with_driver("http://host:5000")
    ('postgresql+psycopg2://me@host/runs', 'http://host:5000')
    """
    scheme, rest = uri.partition("://")[::2]
    return f"postgresql+psycopg2://{rest}" if scheme in ("postgresql", "postgres") else uri


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens there.

    >>> is_loopback("127.0.0.53"), is_loopback("0.0.0.0"), is_loopback("127.0.0.1.example")
    (True, False, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_hub_id(path: str) -> bool:
    """Whether a model that is no folder here may be one of the hub: OWNER/NAME.

    >>> is_hub_id("Qwen/Qwen2.5-0.5B"), is_hub_id("/models/own"), is_hub_id("../own"), is_hub_id("own")
    (True, False, False, False)
    """
    return path.count("/") == 1 and not path.startswith((".", "/", "~"))
