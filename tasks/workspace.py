"""Where a run happens: in the checkout, or, with overrides, in a git worktree of its own under runs/."""

import fcntl
import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from mathrl.core.errors import UserError
from mathrl.core.files import write_json, write_text
from mathrl.core.hashing import digest
from mathrl.core.paths import WORKTREE_NOTE, home, main_checkout
from mathrl.params import Params, load_params, write_params
from mathrl.params.load import dump_yaml, read_yaml
from mathrl.params.recipe import load_recipe

# A change to these makes another program or other parameters; a worktree at HEAD would not have it.
CODE = ("mathrl", "flows", "tasks", "params", "pipelines", "dvc.yaml", "constraints.txt", "pyproject.toml")
NOTE = WORKTREE_NOTE


@dataclass(frozen=True)
class Workspace:
    """A folder with the code, the parameters and DVC's files in which a stage is run; what went over them."""

    folder: Path
    params: Params
    preset: str | None = None
    overrides: tuple[str, ...] = ()

    @property
    def said(self) -> tuple[str, ...]:
        return ((f"preset {self.preset}",) if self.preset else ()) + self.overrides


def prepare(what: str, preset: str | None, overrides: Sequence[str], *, allow_dirty: bool = False) -> Workspace:
    """The checkout when nothing is overridden; else a worktree at HEAD with the validated overrides written
    into its params/. The same overrides on the same commit share a worktree.

    Raises:
        UserError: wrong parameters, or uncommitted changes of code or parameters, which HEAD does not have.
    """
    root = main_checkout()
    before = load_params(root / "params")
    after = load_params(root / "params", preset=preset, overrides=overrides)
    if before == after:
        return Workspace(root, after)
    _refuse_dirty(root, allow_dirty)
    commit = _git(root, "rev-parse", "HEAD")
    name = _name(what, preset, overrides, [commit, after.model_dump(mode="json")])
    made = Workspace(root / "runs" / name, after, preset, tuple(overrides))
    with _making(root, made.folder) as new:
        if new:
            write_params(before, after, made.folder / "params")
            _note(made, what, commit)
    return made


def prepare_recipe(name: str, preset: str | None, overrides: Sequence[str], *, allow_dirty: bool = False) -> Workspace:
    """Like `prepare`, for a recipe: its overrides go into the worktree's copy of params/recipes/<name>.yaml,
    over those of every step; a preset goes into params/.

    Raises:
        UserError: a wrong recipe or wrong parameters, or uncommitted changes that HEAD does not have.
    """
    root = main_checkout()
    before, after = (load_params(root / "params", preset=each) for each in (None, preset))
    load_recipe(name, root / "params", tuple(overrides))
    if before == after and not overrides:
        return Workspace(root, after)
    _refuse_dirty(root, allow_dirty)
    commit = _git(root, "rev-parse", "HEAD")
    folder = root / "runs" / _name(name, preset, overrides, [commit, name, preset, *overrides])
    made = Workspace(folder, after, preset, tuple(overrides))
    with _making(root, folder) as new:
        if new:
            write_params(before, after, folder / "params")
            file = folder / "params" / "recipes" / f"{name}.yaml"
            write_text(file, dump_yaml(read_yaml(file) | {"overrides": list(overrides)}))
            _note(made, name, commit)
    return made


@contextmanager
def working(workspace: Workspace, show: Callable[[str], None]) -> Iterator[None]:
    """Wait until no other run works in the workspace, and keep others waiting: DVC refuses the second one."""
    with in_use(workspace.folder):
        lock = FileLock(_locks(workspace.folder) / "mathrl.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            show(f"another run works in {workspace.folder}: waiting\n")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Keep the workspace from being pruned; any number of runs, sweeps too, do so at a time.

    Raises:
        UserError: it has just been pruned.
    """
    with (_locks(folder) / "mathrl-in-use.lock").open("a+") as mark:
        fcntl.flock(mark, fcntl.LOCK_SH)
        if not (folder / ".git").exists():
            raise UserError(f"{folder} was pruned at this moment: start the run again")
        yield


def _locks(folder: Path) -> Path:
    made = folder / ".dvc" / "tmp"
    made.mkdir(parents=True, exist_ok=True)
    return made


def _refuse_dirty(root: Path, allow_dirty: bool) -> None:
    code = [name for name in uncommitted(root) if name.split("/")[0] in CODE and Path(name).name != "dvc.lock"]
    if code and not allow_dirty:
        raise UserError(
            f"a run with overrides starts from the last commit, which lacks your changes to {_some(code)}: "
            "commit them, or say --allow-dirty to run without them"
        )


def runs(root: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The worktrees under runs/, oldest first, with what is known of each."""
    notes = [(file.parent, json.loads(file.read_text())) for file in (root / "runs").glob(f"*/{NOTE}")]
    return sorted(notes, key=lambda each: each[1]["made"])


def prune(root: Path, folder: Path) -> bool:
    """Remove a worktree; what it made stays in DVC's cache. False where a run is at work in it: it stays."""
    with (_locks(folder) / "mathrl-in-use.lock").open("a+") as mark:
        try:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        _git(root, "worktree", "remove", "--force", str(folder))
    return True


def uncommitted(root: Path) -> list[str]:
    """Tracked files that differ from HEAD, and files git does not know within the code folders."""
    lines = _git(root, "status", "--porcelain", "--untracked-files=all", strip=False).splitlines()
    names = [line[3:].split(" -> ")[-1].strip('"') for line in lines]
    known = {line[3:]: line[:2] != "??" for line in lines}
    return [name for name in names if known.get(name, True) or name.split("/")[0] in CODE]


@contextmanager
def _making(root: Path, folder: Path) -> Iterator[bool]:
    """Make the worktree where it is not yet whole, one at a time: git's own list of them is shared. Whether
    it is new, and to be filled within the context, its note last."""
    for each in (folder.parent, home()):
        each.mkdir(parents=True, exist_ok=True)
    with FileLock(home() / "worktrees.lock"):
        new = not (folder / NOTE).exists()
        if new:
            _make_worktree(root, folder)
        yield new


def _note(made: Workspace, what: str, commit: str) -> None:
    """What `runs` tells of the worktree; with it, the worktree is whole."""
    told = {"overrides": made.said, "made": time.time(), "commit": commit, "run": what}
    write_json(made.folder / NOTE, told)


def _make_worktree(root: Path, folder: Path) -> None:
    if folder.exists():  # left half made by a kill
        _git(root, "worktree", "remove", "--force", str(folder), check=False)
        shutil.rmtree(folder, ignore_errors=True)
    _git(root, "worktree", "prune")
    _git(root, "worktree", "add", "--detach", str(folder), "HEAD")
    _share_dvc(root / ".dvc", folder / ".dvc")


def _share_dvc(root: Path, own: Path) -> None:
    """The checkout's DVC configuration into the worktree's, with what is this machine's alone: the same
    cache, remotes and credentials. Relative paths, which DVC reads from where they stand, are made to fit."""
    from dvc.config import Config, merge  # 0.2 s, which only a new worktree pays

    known = Config(str(root))
    with Config(str(own)).edit("local") as config:
        for level in Config.REPO_LEVELS:
            merge(config, known.read(level))
        config["cache"]["dir"] = known["cache"].get("dir") or str(root / "cache")
    if (root / "config.local").exists():
        shutil.copymode(root / "config.local", own / "config.local")


def _name(what: str, preset: str | None, overrides: Sequence[str], known_by: object) -> str:
    """A folder's name: rl-lr_3e-4-1a2b3c4d."""
    said = [*filter(None, (preset,)), *(each.split(".", 1)[-1] for each in overrides)]
    words = [re.sub(r"[^a-zA-Z0-9.=-]+", "_", each)[:24] for each in said[:3]]
    return f"{what}-{'-'.join(words).replace('=', '_').strip('-.') or 'run'}-{digest(known_by)[:8]}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _git(root: Path, *words: str, check: bool = True, strip: bool = True) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise UserError(f"git {words[0]} failed: {done.stderr.strip()}")
    return done.stdout.strip() if strip else done.stdout
