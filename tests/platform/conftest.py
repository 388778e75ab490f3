"""A real checkout in a temporary folder whose stages take milliseconds, and what runs commands in it."""

import ast
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from mathrl.params.load import dump_yaml, read_yaml
from mathrl.params.schema import STAGES

ROOT = Path(__file__).parents[2]
STANDIN = Path(__file__).with_name("standin.py")
PARTS = ("mathrl", "flows", "tasks", "params", "dvc.yaml", "prefect.yaml", "pyproject.toml", "constraints.txt",
         "data/inputs/curate/.gitignore", "data/inputs/evaluate/.gitignore", "data/inputs/pages/.gitignore",
         ".dvcignore", ".gitignore", ".dvc/config", ".dvc/plots.html")  # fmt: skip
REPLACED = tuple(stage for stage in STAGES if stage != "register")
QUIET = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


def files_of(stage: str) -> tuple[list[str], list[str]]:
    """The inputs and outputs that a stage's module names in its call of `run_stage`."""
    file = ROOT / "mathrl" / "stages" / f"{stage}.py"
    tree = ast.parse(file.read_text())
    main = tree.body[-1]
    assert isinstance(main, ast.If)
    names = runpy.run_path(str(file), run_name="looked at")
    exec(compile(ast.Module(main.body[:-1], []), str(file), "exec"), names)
    call = main.body[-1]
    assert isinstance(call, ast.Expr) and isinstance(call.value, ast.Call)
    given = {k.arg: eval(compile(ast.Expression(k.value), "", "eval"), names) for k in call.value.keywords}
    return [str(path) for path in given["inputs"]], [str(path) for path in given["outputs"]]


def make_dvc_folder(folder: Path, stages: Mapping[str, Any]) -> None:
    """A folder as `dvc init --no-scm` makes it, without its second and a half, with these stages."""
    (folder / ".dvc" / "tmp").mkdir(parents=True)
    (folder / ".dvc" / "config").write_text("[core]\n    no_scm = True\n")
    (folder / "dvc.yaml").write_text(dump_yaml({"stages": stages}))


class Checkout:
    """A git repository with DVC at `folder`, its own .mathrl, and commands run in it as a person would."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.executable = folder, sys.executable
        bin_folder = str(Path(sys.executable).parent)
        dropped = ("MATHRL_", "PREFECT_", "MLFLOW_", "GIT_", "RANK", "WORLD_SIZE", "PYTHONPATH")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        self.env = (
            kept
            | QUIET
            | {
                "PATH": bin_folder + os.pathsep + os.environ["PATH"],
                "PREFECT_HOME": str(folder / ".mathrl" / "prefect"),
                "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "90",
            }
        )

    def use_python(self, folder: Path) -> None:
        """Start Python and DVC by the programs in `folder`."""
        self.executable = str(folder / "python")
        self.env["PATH"] = str(folder) + os.pathsep + self.env["PATH"]

    @property
    def home(self) -> Path:
        return self.folder / ".mathrl"

    def run(
        self, *command: str, ok: bool = True, cwd: Path | None = None, **env: str
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command,
            cwd=cwd or self.folder,
            env=self.env | env,
            capture_output=True,
            text=True,
            check=False,
            timeout=800,
        )
        said = f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        assert not ok or done.returncode == 0, said
        return done

    def python(self, code: str, ok: bool = True, **env: str) -> str:
        return self.run(self.executable, "-c", code, ok=ok, **env).stdout

    def mathrl(self, *words: str, ok: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
        # The checkout's own code: the installed script would take the one that it was installed from.
        return self.run(self.executable, "-c", "from mathrl.cli import main; main()", *words, ok=ok, **env)

    def repro(self, *words: str, ok: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
        return self.run("dvc", "repro", *words, ok=ok, **env)

    def git(self, *words: str) -> str:
        return self.run("git", *words).stdout.strip()

    def replace_param(self, file: str, old: str, new: str) -> None:
        path = self.folder / "params" / file
        packaged = self.folder / "mathrl" / "recipes" / "library" / path.name
        text = (path if path.exists() else packaged).read_text()
        assert old in text, f"{file} has no {old!r}"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace(old, new))

    def set_param(self, key: str, value: Any) -> None:
        """Write section.key[.key] into params/section.yaml, which git then knows."""
        section, *path, last = key.split(".")
        file = self.folder / "params" / f"{section}.yaml"
        values = read_yaml(file) if file.exists() else {}
        here = values
        for name in path:
            here = here.setdefault(name, {})
        here[last] = value
        file.write_text(dump_yaml(values))
        if (self.folder / ".git").exists():
            self.git("add", str(file))

    def commit_params(self, message: str) -> None:
        """Commit what changed, with files of params/ that are new."""
        self.git("add", "params")
        self.git("commit", "-q", "-am", message)

    def restore_params(self) -> None:
        """params/ as the last commit has it."""
        self.git("reset", "-q", "HEAD", "--", "params")
        self.git("checkout", "-q", "--", "params")
        self.git("clean", "-fdq", "params")

    def mlflow_runs(self, name: str = "mathrl") -> list[dict[str, object]]:
        """Every MLflow run as {name, status, tags, metrics, params}, read without the server."""
        import mlflow

        client = mlflow.MlflowClient(f"sqlite:///{self.home / 'mlflow.db'}")
        experiment = client.get_experiment_by_name(name)
        return [
            {"id": run.info.run_id, "name": run.info.run_name, "status": run.info.status, "run": run,
             "tags": run.data.tags, "metrics": run.data.metrics, "params": run.data.params, "client": client}
            for run in client.search_runs([experiment.experiment_id], order_by=["start_time"])
        ] if experiment else []  # fmt: skip


def make_checkout(folder: Path, replaced: Sequence[str] = REPLACED) -> Checkout:
    """A checkout at `folder`, of stages with one process; those named in `replaced` are stand-ins."""
    folder.mkdir(parents=True)
    for part in PARTS:
        source, target = ROOT / part, folder / part
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.pyc.*", ".dvc"))
        elif source.exists():
            shutil.copy(source, target)
    for stage in replaced:
        inputs, outputs = files_of(stage)
        text = STANDIN.read_text()
        for name, value in (("INPUTS", inputs), ("OUTPUTS", outputs)):
            text = text.replace(f"{name}: list[str] = []", f"{name} = {value!r}")
        (folder / "mathrl" / "stages" / f"{stage}.py").write_text(text)
    checkout = Checkout(folder)
    checkout.set_param("run.processes", 1)  # a stage that starts ranks imports torch
    checkout.git("init", "-q", "-b", "main")
    checkout.git("config", "user.email", "a@b.c")
    checkout.git("config", "user.name", "a")
    checkout.git("add", ".")
    checkout.git("commit", "-q", "-m", "all")
    return checkout


@pytest.fixture(scope="session")
def stage_files() -> Callable[[str], tuple[list[str], list[str]]]:
    """The inputs and outputs that a stage's module names."""
    return files_of


@pytest.fixture(scope="module")
def real_checkout(
    tmp_path_factory: pytest.TempPathFactory, empty_prefect: Path, empty_store: Path, code_digests: Path
) -> Checkout:
    """One whose stages are the real ones; its databases have their tables."""
    checkout = make_checkout(tmp_path_factory.mktemp("platform") / "real", replaced=())
    copy_databases(checkout, empty_prefect, empty_store, code_digests)
    return checkout


@pytest.fixture(scope="module")
def new_checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """As after `git clone`, with stages of milliseconds, for a file of tests that build on one another's outputs."""
    return make_checkout(tmp_path_factory.mktemp("platform") / "checkout")


@pytest.fixture(scope="module")
def checkout(
    new_checkout: Checkout, empty_prefect: Path, empty_store: Path, code_digests: Path, warm_python: Path
) -> Checkout:
    """The same; its databases have their tables, and its programs their imports, which take seconds each."""
    copy_databases(new_checkout, empty_prefect, empty_store, code_digests)
    new_checkout.use_python(warm_python)
    return new_checkout


@pytest.fixture
def forked_programs(warm_python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process starts has its imports."""
    monkeypatch.setattr(sys, "executable", str(warm_python / "python"))


def copy_databases(checkout: Checkout, prefect: Path, store: Path, digests: Path) -> None:
    shutil.copytree(prefect, checkout.home / "prefect")
    shutil.copy(digests, checkout.home)
    shutil.copy(store, checkout.home / "mlflow.db")
