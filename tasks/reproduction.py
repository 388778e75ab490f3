"""A fresh clone in which stages are run again: its data from the DVC remote, its parameters from a lineage."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mathrl.core.code_values import RESOLVE, STAGE
from mathrl.core.environment import Variable
from mathrl.core.errors import UserError
from mathrl.core.files import write_json
from mathrl.core.hashing import digest_path
from mathrl.core.paths import WORKTREE_NOTE
from mathrl.planning.final_values import JUDGED
from mathrl.tasks.graph import Graph, follow_each
from mathrl.tasks.repro import Preempted
from mathrl.tasks.workspace import git, share_dvc

# In the clone, with its own code: the schema is that of the commit.
WRITE = """
import json, sys
from mathrl.compose import load_params, write_params
from mathrl.params import Params
old, sections = load_params(), json.load(sys.stdin)
write_params(old, Params.model_validate(old.model_dump(mode="json", by_alias=True) | sections))
"""
# Fails where a package that the stages need is missing.
DESCRIBE = """
import getpass, json, os, platform, importlib.metadata as packages
import mathrl, pyarrow, pydantic, ruamel.yaml, torch
lines = open("/proc/cpuinfo").read().splitlines() if platform.system() == "Linux" else []
models = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
try:
    user = getpass.getuser()
except (KeyError, OSError):  # an account without a name
    user = str(os.getuid())
print(json.dumps({"python": platform.python_version(), "torch": torch.__version__,
    "transformers": packages.version("transformers"), "system": platform.platform(), "user": user,
    "host": platform.node(), "processor": models[0] if models else platform.processor(),
    "threads": str(torch.get_num_threads()), "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else ""}))
"""
# {} where the commit is from before the code was a value.
CODE = """
import json
from contextlib import suppress
codes = {}
with suppress(ImportError):
    from mathrl.core.code_values import code_values, stage_code
    codes = {stage: stage_code(stage) for stage in code_values()}
print(json.dumps(codes))
"""
KEPT = (Variable.DATA, Variable.JUDGE_KEY, Variable.SERVE_KEY)  # of mathrl's variables: what a person sets for data


class FreshClone:
    """A clone of `source` at a commit, in `folder`, with state, records and MLflow store of its own.

    `python` runs its stages; without packages it gets an environment in the clone, of what the commit needs.
    """

    def __init__(self, source: Path, commit: str, folder: Path, python: str = "") -> None:
        self.source, self.commit, self.folder, self.python = source, commit, folder, python or sys.executable

    def open(self) -> None:
        """Clone, unless the folder has this commit already: then a reproduction that was cut off goes on.

        Raises:
            UserError: the source does not have the commit, or the folder holds something else.
        """
        if not self.folder.exists():
            partial = self.folder.with_name(f"{self.folder.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.parent.mkdir(parents=True, exist_ok=True)
            # The objects are copied: nothing of the clone depends on the folder it came from.
            git(Path.cwd(), "clone", "--quiet", "--no-hardlinks", "--no-checkout", str(self.source), str(partial))
            try:
                git(partial, "checkout", "--quiet", "--detach", self.commit)
            except UserError as error:
                shutil.rmtree(partial)
                raise UserError(f"{self.source} has no commit {self.commit}: fetch it there first ({error})") from None
            partial.rename(self.folder)
        elif not (self.folder / ".git").exists() or git(self.folder, "rev-parse", "HEAD").strip() != self.commit:
            raise UserError(f"{self.folder} is no clone at {self.commit[:12]}: remove it, or choose another --folder")

    def install(self) -> dict[str, str]:
        """Python, packages, processor and user; where `python` lacks packages, the commit's are installed first.

        Raises:
            UserError: they cannot be installed.
        """
        installed = self.folder / ".venv" / "bin" / "python"
        if (self.folder / ".venv" / ".installed").exists():
            self.python = str(installed)
        done = self._call("-c", DESCRIBE)
        if done.returncode:
            for command in self._installation(installed):
                print(f"{self.python} lacks packages: {shlex.join(command)} in {self.folder}", flush=True)
                if subprocess.run(command, cwd=self.folder, check=False).returncode:
                    raise UserError(f"{shlex.join(command)} failed in {self.folder}: see above")
            (self.folder / ".venv" / ".installed").touch()
            self.python = str(installed)
            done = self._call("-c", DESCRIBE)
        described: dict[str, str] = json.loads(self._output(done))
        return described

    def _installation(self, installed: Path) -> list[list[str]]:
        """The commands that make an environment in the clone: that of a checkout of mathrl, or of a project."""
        if (self.folder / "Makefile").is_file():
            return [["make", "install", f"PYTHON={self.python}"]]
        project = tomllib.loads((self.folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        pip = [str(installed), "-m", "pip", "install", "--quiet", "-c", "constraints.txt"]
        return [[self.python, "-m", "venv", str(installed.parents[1])], [*pip, *project.get("dependencies", [])]]

    def write_sections(self, sections: Mapping[str, Any]) -> None:
        """Write the parameters of a lineage over those of the commit; a rate that was typed then counts as typed again.

        Raises:
            UserError: the commit's schema refuses them.
        """
        self._output(self._call("-c", WRITE, text=json.dumps(sections)))
        write_json(self.folder / WORKTREE_NOTE, {"overrides": [f"{key}=" for key in JUDGED]})

    def pull(self, paths: Sequence[str]) -> None:
        """Fetch outputs from the DVC remote of the checkout, with its credentials and by its dvc.lock.

        A model's commit has the dvc.lock from before the run; whether the bytes are the model's, their digests show.

        Raises:
            UserError: there is no remote, or it does not have them.
        """
        if (self.source / "dvc.lock").is_file():
            shutil.copy(self.source / "dvc.lock", self.folder)
        share_dvc(self.source / ".dvc", self.folder / ".dvc", cache=False)
        command = [self.python, "-m", "dvc", "pull", *paths]
        done = subprocess.run(command, cwd=self.folder, env=self.environment(), capture_output=True, text=True)
        if done.returncode or not all((self.folder / path).exists() for path in paths):
            lines = (done.stderr or done.stdout).strip().splitlines()
            raise UserError(
                f"dvc pull {' '.join(paths)} failed ({lines[-1] if lines else 'no output'}): check out the "
                "dvc.lock of the run, whose outputs `dvc push` has sent to a remote"
            )

    def run(self, stage: str) -> float:
        """Run a stage to its end; returns its seconds.

        Raises:
            UserError: the stage failed, or was stopped; started again, it resumes.
        """
        for before in (STAGE, RESOLVE):
            if before in Graph(self.folder).stages:
                self._output(self._call("-m", f"mathrl.stages.{before}"))
        start, graph = time.monotonic(), Graph(self.folder, target=stage, alone=True)
        try:
            follow_each(graph, self.environment(), _show, lambda step, repro: repro.follow(step))
        except Preempted:
            raise UserError(f"{stage} was stopped; the same command goes on where it was") from None
        return time.monotonic() - start

    def digests(self, paths: Sequence[str]) -> dict[str, str]:
        """The digests of the outputs that are there."""
        return {path: digest_path(self.folder / path) for path in paths if (self.folder / path).exists()}

    def codes(self) -> dict[str, dict[str, str]]:
        """What decides the results of each stage's code in the clone (core.code_values)."""
        found: dict[str, dict[str, str]] = json.loads(self._output(self._call("-c", CODE)))
        return found

    def environment(self) -> dict[str, str]:
        """Nothing of the caller's runs: its own home, no tracking server, the clone's code first."""
        dropped = {str(variable) for variable in Variable if variable not in KEPT} | {"PYTHONPATH"}
        variables = {name: value for name, value in os.environ.items() if name not in dropped}
        home = self.folder / ".mathrl"
        return variables | {
            "PATH": str(Path(self.python).parent) + os.pathsep + variables.get("PATH", ""),
            "PYTHONUNBUFFERED": "1",
            "DVC_NO_ANALYTICS": "1",
            "MLFLOW_TRACKING_URI": f"sqlite:///{home / 'mlflow.db'}",
            Variable.HOME: str(home),
            Variable.MIRROR: "none",
        }

    def _call(self, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.python, *words], cwd=self.folder, env=self.environment(), input=text, capture_output=True, text=True
        )

    def _output(self, done: subprocess.CompletedProcess[str]) -> str:
        if done.returncode:
            last = done.stderr.strip().rpartition("\n")[2].removeprefix("error: ")
            raise UserError(f"{self.folder}: {last}")
        return done.stdout


def _show(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)
