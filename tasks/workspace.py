"""The folder of a run: the checkout or, with overrides, a git worktree of its own under runs/."""

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

from mathrl.compose import load_params, write_params
from mathrl.compose.load import preset_files, preset_values
from mathrl.core.errors import UserError
from mathrl.core.files import write_json, write_text
from mathrl.core.hashing import digest
from mathrl.core.paths import PRESET, WORKTREE_NOTE, home, is_code, main_checkout
from mathrl.params import Params
from mathrl.params.final_values import check_final_values
from mathrl.params.load import dump_yaml, read_yaml
from mathrl.params.schema import TARGETS, stages_until
from mathrl.recipes.recipe import load_recipe


@dataclass(frozen=True)
class Workspace:
    """A folder with the code, the parameters and DVC's files in which stages run, and what it was asked for."""

    folder: Path
    params: Params
    preset: str | None = None
    overrides: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()
    """Warnings about values that were typed (mathrl/params/final_values.py)."""

    @property
    def settings(self) -> tuple[str, ...]:
        """What a person set: ("preset gsm8k", "rl.optimizer.lr=2e-4")."""
        return _settings(self.preset, self.overrides)


def prepare(target: str, preset: str | None, overrides: Sequence[str], *, allow_dirty: bool = False) -> Workspace:
    """The checkout if nothing is overridden; else a worktree at HEAD with the preset and the validated overrides
    written into its params/. The same settings on the same commit share a worktree.

    Raises:
        UserError: wrong parameters, or uncommitted changes of code or parameters, which HEAD does not have.
    """
    root = main_checkout()
    params = load_params(root / "params", preset=preset, overrides=overrides)
    doubtful = check_final_values(params, stages_until(target) if target in TARGETS else (), overrides)
    if params == load_params(root / "params") and not doubtful:  # a worktree's note tells its stages what was typed
        return Workspace(root, params)
    with _worktree(root, target, preset, overrides, allow_dirty) as (folder, _):
        params = _override(folder, preset, overrides)
    return Workspace(folder, params, preset, tuple(overrides), tuple(doubtful))


def prepare_recipe(name: str, preset: str | None, overrides: Sequence[str], *, allow_dirty: bool = False) -> Workspace:
    """Like `prepare`, for a recipe: its overrides go into the worktree's copy of params/recipes/<name>.yaml,
    over those of every step; a preset goes into params/.

    Raises:
        UserError: a wrong recipe or wrong parameters, or uncommitted changes that HEAD does not have.
    """
    root = main_checkout()
    params = load_params(root / "params", preset=preset)
    load_recipe(name, root / "params", tuple(overrides), preset)
    if params == load_params(root / "params") and not overrides:
        return Workspace(root, params)
    with _worktree(root, name, preset, overrides, allow_dirty) as (folder, new):
        params = _override(folder, preset, ())
        if new:
            file = folder / "params" / "recipes" / f"{name}.yaml"
            values = read_yaml(file)
            write_text(file, dump_yaml(values | {"overrides": [*(values.get("overrides") or []), *overrides]}))
    return Workspace(folder, params, preset, tuple(overrides))


def _override(folder: Path, preset: str | None, overrides: Sequence[str]) -> Params:
    """Write the preset and the overrides into the worktree's params/; returns the parameters that its stages read.

    They go over the files that are there, which are HEAD's and not the checkout's: of what a person asks for
    nothing is left out because an uncommitted edit says the same.
    """
    params = load_params(folder / "params", preset=preset, overrides=overrides)
    write_params(load_params(folder / "params"), params, folder / "params")
    return params


@contextmanager
def working(workspace: Workspace, show: Callable[[str], None]) -> Iterator[None]:
    """Hold the workspace for one run at a time, since DVC refuses a second one; others wait, with a notice."""
    with in_use(workspace.folder):
        lock = FileLock(_locks(workspace.folder) / "mathrl.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            show(f"another run is using {workspace.folder}: waiting\n")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Keep the workspace from being pruned; several runs and sweeps may do so at once.

    Raises:
        UserError: it was pruned in the meantime.
    """
    with (_locks(folder) / "mathrl-in-use.lock").open("a+") as mark:
        fcntl.flock(mark, fcntl.LOCK_SH)
        if not (folder / ".git").exists():
            raise UserError(f"{folder} was pruned just now: start the run again")
        yield


def _locks(folder: Path) -> Path:
    locks = folder / ".dvc" / "tmp"
    locks.mkdir(parents=True, exist_ok=True)
    return locks


def _refuse_dirty(root: Path, allow_dirty: bool) -> None:
    code = [name for name in uncommitted(root) if is_code(name)]
    if code and not allow_dirty:
        raise UserError(
            f"a run with overrides starts from the last commit, which lacks your changes to {_some(code)}: "
            "commit them, or give --allow-dirty to run without them"
        )


def runs(root: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The worktrees under runs/, oldest first, each with its note: overrides, made, commit, run."""
    notes = [(file.parent, json.loads(file.read_text())) for file in (root / "runs").glob(f"*/{WORKTREE_NOTE}")]
    return sorted(notes, key=lambda run: run[1]["made"])


def prune(root: Path, folder: Path) -> bool:
    """Remove a worktree, whose outputs stay in DVC's cache; False, and it stays, if a run is using it."""
    with (_locks(folder) / "mathrl-in-use.lock").open("a+") as mark:
        try:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        _git(root, "worktree", "remove", "--force", str(folder))
    return True


def uncommitted(root: Path) -> list[str]:
    """Tracked files that differ from HEAD (a renamed one by both names), and untracked ones in the code folders."""
    entries = iter(_git(root, "status", "--porcelain", "-z", "--untracked-files=all").split("\0")[:-1])
    names: list[str] = []
    for entry in entries:
        state, name = entry[:2], entry[3:]
        if state != "??" or is_code(name):
            names.append(name)
        if state[0] in "RC":
            names.append(next(entries))
    return names


@contextmanager
def _worktree(
    root: Path, target: str, preset: str | None, overrides: Sequence[str], allow_dirty: bool
) -> Iterator[tuple[Path, bool]]:
    """Create the settings' worktree at HEAD unless it exists, under a lock, since git's list of worktrees is shared.

    Yields its folder and whether it is new; the caller fills it, and then its note is written: with it, the
    worktree is complete.
    """
    _refuse_dirty(root, allow_dirty)
    commit = commit_of(root)
    key = digest([commit, target, preset_values(root / "params", preset), list(overrides)])
    folder = root / "runs" / f"{_title(target, preset, overrides)}-{key[:8]}"
    for parent in (folder.parent, home()):
        parent.mkdir(parents=True, exist_ok=True)
    with FileLock(home() / "worktrees.lock"):
        new = not (folder / WORKTREE_NOTE).exists()
        if new:
            _make_worktree(root, folder)
            for file in preset_files(root / "params", preset):  # as the checkout has it: the form lists that one
                shutil.copy(file, folder / "params" / "presets")
        yield folder, new
        if new:
            settings = _settings(preset, overrides)
            note = {"overrides": settings, "made": time.time(), "commit": commit, "run": target}
            write_json(folder / WORKTREE_NOTE, note)


def _make_worktree(root: Path, folder: Path) -> None:
    if folder.exists():  # left incomplete by a kill
        _git(root, "worktree", "remove", "--force", str(folder), check=False)
        shutil.rmtree(folder, ignore_errors=True)
    _git(root, "worktree", "prune")
    _git(root, "worktree", "add", "--detach", str(folder), "HEAD")
    _share_dvc(root / ".dvc", folder / ".dvc")


def _share_dvc(root: Path, worktree: Path) -> None:
    """Copy the checkout's DVC configuration, with this machine's own: the same cache, remotes and credentials.

    DVC resolves relative paths from the file in which they stand; they are adapted.
    """
    from dvc.config import Config, merge  # 0.2 s, which only a new worktree pays

    original = Config(str(root))
    with Config(str(worktree)).edit("local") as config:
        for level in Config.REPO_LEVELS:
            merge(config, original.read(level))
        config["cache"]["dir"] = original["cache"].get("dir") or str(root / "cache")
    if (root / "config.local").exists():
        shutil.copymode(root / "config.local", worktree / "config.local")


def _title(target: str, preset: str | None, overrides: Sequence[str]) -> str:
    """A folder's name without its key.

    >>> _title("rl", None, ["rl.optimizer.lr=3e-4"])
    'rl-lr_3e-4'
    """
    named = (override.replace(".optimizer.lr=", ".lr=").split(".", 1)[-1] for override in overrides)
    settings = [*filter(None, (preset,)), *named]
    words = [re.sub(r"[^a-zA-Z0-9.=-]+", "_", setting)[:24] for setting in settings[:3]]
    return f"{target}-{'-'.join(words).replace('=', '_').strip('-.') or 'run'}"


def _settings(preset: str | None, overrides: Sequence[str]) -> tuple[str, ...]:
    return ((f"{PRESET}{preset}",) if preset else ()) + tuple(overrides)


def commit_of(folder: Path) -> str:
    return _git(folder, "rev-parse", "HEAD").strip()


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _git(root: Path, *words: str, check: bool = True) -> str:
    git = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if check and git.returncode:
        raise UserError(f"git {words[0]} failed: {git.stderr.strip()}")
    return git.stdout
