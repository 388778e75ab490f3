"""The folder of a run: the checkout or, with overrides, a git worktree of its own under runs/.

Before DVC looks, it links files that stages read from outside the checkout (mathrl/reading/sources.py). The worktrees
of a project that was moved or copied know it by the path that it had; they are mended.

The folder in which a preset's sweep runs, and the name of its study.

Without Prefect: the command line calls this before it imports Prefect, which reads its settings once.
"""

import fcntl
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from mathrl.compose import load_params
from mathrl.compose.experiment import Composition, compose, named_presets, split_choices
from mathrl.compose.load import read_layers, write_experiment
from mathrl.compose.names import PRESETS
from mathrl.core.errors import UserError
from mathrl.core.files import write_json, write_text
from mathrl.core.hashing import digest
from mathrl.core.paths import PRESET, WORKTREE_NOTE, home, is_code, is_group, main_checkout
from mathrl.core.records import chosen_words
from mathrl.params import Params
from mathrl.params.load import dump_yaml, read_yaml
from mathrl.params.schema import TARGETS, stages_until
from mathrl.planning.final_values import check_final_values
from mathrl.recipes.recipe import load_recipe, recipe_files


@dataclass(frozen=True)
class Workspace:
    """A folder with the code, the parameters and DVC's files in which stages run, and what it was asked for."""

    folder: Path
    params: Params
    preset: str | None = None
    overrides: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()
    """Warnings about values that were typed (mathrl/planning/final_values.py)."""

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups that were chosen: ("data=gsm8k",)."""
        return tuple(override for override in self.overrides if is_group(override))

    @property
    def composition(self) -> str:
        """The groups and the preset in a few words: "data=gsm8k model=Qwen2.5-0.5B dapo"."""
        return chosen_words(self.groups, self.preset or "")

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
    with _worktree(root, target, preset, overrides, allow_dirty) as (folder, new):
        # Once: what reward.parts+=[…] appends would be appended again.
        params = _override(folder, preset, overrides) if new else load_params(folder / "params")
    return Workspace(folder, params, preset, tuple(overrides), tuple(doubtful))


def prepare_recipe(name: str, preset: str | None, overrides: Sequence[str], *, allow_dirty: bool = False) -> Workspace:
    """Like `prepare`, for a recipe: its overrides go into the worktree's copy of params/recipes/<name>.yaml,
    over those of every step; a preset goes into params/.

    Raises:
        UserError: a wrong recipe or wrong parameters, or uncommitted changes that HEAD does not have.
    """
    root = main_checkout()
    groups = [override for override in overrides if is_group(override)]
    settings = [override for override in overrides if not is_group(override)]
    params = load_params(root / "params", preset=preset, overrides=groups)
    load_recipe(name, root / "params", tuple(overrides), preset)
    if params == load_params(root / "params") and not settings:
        return Workspace(root, params)
    with _worktree(root, name, preset, overrides, allow_dirty) as (folder, new):
        params = _override(folder, preset, groups)
        if new:
            values = read_yaml(recipe_files(folder / "params")[name])
            file = folder / "params" / "recipes" / f"{name}.yaml"
            write_text(file, dump_yaml(values | {"overrides": [*(values.get("overrides") or []), *settings]}))
    return Workspace(folder, params, preset, tuple(overrides))


def _override(folder: Path, preset: str | None, overrides: Sequence[str]) -> Params:
    """Write the preset and the overrides into the worktree's params/; returns the parameters that its stages read.

    They go over the files that are there, which are HEAD's and not the checkout's: of what a person asks for
    nothing is left out because an uncommitted edit says the same.
    """
    return write_experiment(folder / "params", preset, overrides)


@contextmanager
def hold_workspace(workspace: Workspace, show: Callable[[str], None]) -> Iterator[None]:
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
    code = [name for name in uncommitted_files(root) if is_code(name)]
    if code and not allow_dirty:
        raise UserError(
            f"a run with overrides starts from the last commit, which lacks your changes to {_some(code)}: "
            "commit them, or give --allow-dirty to run without them"
        )


def runs(root: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The worktrees under runs/, oldest first, each with its note: overrides, made, commit, run."""
    _follow_move(root)
    notes = [(file.parent, json.loads(file.read_text())) for file in (root / "runs").glob(f"*/{WORKTREE_NOTE}")]
    return sorted(notes, key=lambda run: run[1]["made"])


def prune(root: Path, folder: Path) -> bool:
    """Remove a worktree, whose outputs stay in DVC's cache; False, and it stays, if a run is using it."""
    with (_locks(folder) / "mathrl-in-use.lock").open("a+") as mark:
        try:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        git(root, "worktree", "remove", "--force", str(folder))
    return True


def uncommitted_files(root: Path) -> list[str]:
    """Tracked files that differ from HEAD (a renamed one by both names), and untracked ones in the code folders."""
    entries = iter(git(root, "status", "--porcelain", "-z", "--untracked-files=all").split("\0")[:-1])
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
    chosen, _ = split_choices(overrides)
    named = Composition(presets=named_presets(preset)).over(chosen)
    values = [[layer.source, layer.sections, layer.fresh] for layer in compose(root / "params", named).chosen]
    key = digest([commit, target, values, list(overrides)])
    folder = root / "runs" / f"{_title(target, preset, overrides)}-{key[:8]}"
    for parent in (folder.parent, home()):
        parent.mkdir(parents=True, exist_ok=True)
    with FileLock(home() / "worktrees.lock"):
        _follow_move(root)
        new = not (folder / WORKTREE_NOTE).exists()
        if new:
            _make_worktree(root, folder)
            _copy_choices(root / "params", folder / "params", preset, overrides)
        yield folder, new
        if new:
            settings = _settings(preset, overrides)
            note = {"overrides": settings, "made": time.time(), "commit": commit, "run": target}
            write_json(folder / WORKTREE_NOTE, note)


def _copy_choices(root: Path, folder: Path, preset: str | None, overrides: Sequence[str]) -> None:
    """The project's own files of what was chosen, as the checkout has them: a form lists those."""
    chosen, _ = split_choices(overrides)
    names = [*chosen.groups.items(), *((PRESETS, name) for name in named_presets(preset))]
    for kind, name in names:
        for part in re.split(r"\+", name):
            file = root / kind / f"{part.partition(':')[0]}.yaml"
            if file.is_file():
                (folder / kind).mkdir(exist_ok=True)
                shutil.copy(file, folder / kind)


def _follow_move(root: Path) -> None:
    """Where the project was moved, have its worktrees take git and DVC's cache from where they are now."""
    for folder in reconnect(root):
        share_dvc(root / ".dvc", folder / ".dvc")


def _make_worktree(root: Path, folder: Path) -> None:
    if folder.exists():  # left incomplete by a kill
        git(root, "worktree", "remove", "--force", str(folder), check=False)
        shutil.rmtree(folder, ignore_errors=True)
    git(root, "worktree", "prune")
    git(root, "worktree", "add", "--detach", str(folder), "HEAD")
    share_dvc(root / ".dvc", folder / ".dvc")


def share_dvc(root: Path, worktree: Path, *, cache: bool = True) -> None:
    """Copy the DVC configuration of a .dvc folder, with this machine's own: remotes, credentials, and the same cache.

    Without `cache` the remotes and credentials alone. DVC resolves relative paths from the file in which they stand;
    they are adapted.
    """
    from dvc.config import Config, merge  # 0.2 s, which few commands pay

    original = Config(str(root))
    with Config(str(worktree)).edit("local") as config:
        for level in Config.REPO_LEVELS:
            read = original.read(level)
            merge(config, read if cache else {name: read[name] for name in ("core", "remote") if name in read})
        if cache:
            config["cache"]["dir"] = original["cache"].get("dir") or str(root / "cache")
    if not cache and (worktree / "config.local").exists():
        (worktree / "config.local").chmod(0o600)
    elif (root / "config.local").exists():
        shutil.copymode(root / "config.local", worktree / "config.local")


def _title(target: str, preset: str | None, overrides: Sequence[str]) -> str:
    """A folder's name without its key.

    >>> _title("rl", None, ["rl.optimizer.lr=3e-4"])
    'rl-lr_3e-4'
    """
    settings = [*filter(None, (preset,)), *(_short(override) for override in overrides)]
    words = [re.sub(r"[^a-zA-Z0-9.=-]+", "_", setting)[:24] for setting in settings[:3]]
    return f"{target}-{'-'.join(words).replace('=', '_').strip('-.') or 'run'}"


def _short(override: str) -> str:
    """
    >>> _short("rl.lr=3e-4"), _short("model=Qwen/Qwen2.5-0.5B")
    ('lr=3e-4', 'model=Qwen2.5-0.5B')
    """
    key, equals, value = override.partition("=")
    if is_group(override):
        return f"{key.strip()}={value.rpartition('/')[2]}"
    return f"{key.replace('.optimizer.lr', '.lr').split('.', 1)[-1]}{equals}{value}"


def _settings(preset: str | None, overrides: Sequence[str]) -> tuple[str, ...]:
    return ((f"{PRESET}{preset}",) if preset else ()) + tuple(overrides)


def commit_of(folder: Path) -> str:
    return git(folder, "rev-parse", "HEAD").strip()


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def git(root: Path, *words: str, check: bool = True) -> str:
    """What git prints; raises UserError where it fails, unless `check` is off."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise UserError(f"git {words[0]} failed: {done.stderr.strip()}")
    return done.stdout


def answer_of(command: Sequence[str], folder: Path, env: Mapping[str, str]) -> str:
    """What a program of mathrl prints that runs in `folder`; raises UserError with its error where it has one."""
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(done.stderr.strip().rpartition("\n")[2].removeprefix("error: "))
    return done.stdout


def reconnect(root: Path) -> list[Path]:
    """Have the worktrees under runs/ belong to the project at `root`; returns those that did not.

    git keeps an absolute path on either side, in files of one line: the worktree's `.git` names its entry in the
    project, .git/worktrees/ID, and the entry's `gitdir` names the worktree. `git worktree repair` would change the
    entries of the project that was copied.
    """
    moved = []
    for link in sorted((root / "runs").glob("*/.git")):
        written = link.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
        entry = root / ".git" / "worktrees" / Path(written).name
        if Path(written) != entry and entry.is_dir():
            write_text(entry / "gitdir", f"{link}\n")
            write_text(link, f"gitdir: {entry}\n")
            moved.append(link.parent)
    return moved


def link_inputs(
    workspace: Path, stages: Sequence[str], params: Params, env: Mapping[str, str], overrides: Sequence[str] = ()
) -> None:
    """Make the links for the stages that read such files; none if all problems are generated.

    `params` are those of the workspace with the `overrides`.

    Raises:
        UserError: a file that the parameters name does not exist.
    """
    readers = [stage for stage in stages if _reads_files(stage, params)]
    if not readers:
        return
    command = [sys.executable, "-m", "mathrl.stages.inputs", *readers, *overrides]
    answer_of(command, workspace, env)


def _reads_files(stage: str, params: Params) -> bool:
    if stage == "curate":
        clean = params.curate.decontaminate
        rows = any(source.type != "generated" for source in params.curate.sources)
        return rows or bool(clean and (clean.benchmarks or clean.files or clean.decisions))
    if stage == "evaluate":
        return any(name != "test" for name in params.evaluate.benchmarks)
    return stage == "pages"


def workspace(preset: str | None, overrides: Sequence[str] = (), *, allow_dirty: bool = False) -> Path:
    """The checkout; for a preset or groups such as data=gsm8k among the overrides, the worktree in which `mathrl run
    mix` with these makes what trials start from."""
    groups = [override for override in overrides if is_group(override)]
    return prepare("mix", preset, groups, allow_dirty=allow_dirty).folder


def with_study(preset: str | None, overrides: Sequence[str], root: Path) -> list[str]:
    """The overrides of parameters, with a study of the preset's name unless they or the preset name one.

    >>> with_study(None, ["rl.steps=5"], Path("."))
    ['rl.steps=5']
    """
    groups = [override for override in overrides if is_group(override)]
    overrides = [override for override in overrides if not is_group(override)]
    if preset is None and not groups:
        return overrides
    named = "-".join([*filter(None, [preset]), *(group.partition("=")[2].rpartition("/")[2] for group in groups)])
    said = read_layers(root / "params", preset).said_by().get("sweep.study", "")
    if said.startswith("preset ") or any(text.startswith("sweep.study=") for text in overrides):
        return list(overrides)
    return [f"sweep.study={re.sub('[^a-z0-9_-]+', '-', named.lower()).strip('-_')}", *overrides]
