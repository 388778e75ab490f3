"""Worktrees under runs/: they have the checkout's DVC, and stay while somebody works in them."""

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tasks import sweep
from tasks.workspace import Workspace, in_use, prune, working

Checkout = Any
PREPARE = "from tasks.workspace import prepare; print(prepare('rl', None, ['rl.lr={}']).folder)"


def made(checkout: Checkout, lr: str) -> Path:
    return Path(checkout.python(PREPARE.format(lr)).strip())


@contextmanager
def local_settings(checkout: Checkout) -> Iterator[None]:
    """What a person has set for this machine alone; relative paths are from the checkout."""
    for words in (
        ["cache", "dir", "--local", "../big-disk"],
        ["remote", "add", "--local", "-d", "store", "../store"],
        ["remote", "add", "--local", "web", "https://data.example/x"],
        ["remote", "modify", "--local", "web", "password", "s3cret"],
    ):
        checkout.run("dvc", *words)
    file = checkout.folder / ".dvc" / "config.local"
    file.chmod(0o600)
    yield
    file.unlink()


def test_a_worktree_has_the_cache_the_remotes_and_the_credentials_of_the_checkout(checkout: Checkout) -> None:
    with local_settings(checkout):
        folder = made(checkout, "1e-4")
    outside = checkout.folder.parent
    assert Path(checkout.run("dvc", "cache", "dir", cwd=folder).stdout.strip()) == outside / "big-disk"
    remotes = checkout.run("dvc", "remote", "list", cwd=folder).stdout
    assert "https://data.example/x" in remotes
    (store,) = [line.split()[1] for line in remotes.splitlines() if line.startswith("store")]
    assert (folder / store).resolve() == outside / "store"
    assert checkout.run("dvc", "config", "remote.web.password", cwd=folder).stdout.strip() == "s3cret"
    assert stat.S_IMODE((folder / ".dvc" / "config.local").stat().st_mode) == 0o600
    assert checkout.run("git", "status", "--porcelain", "--", ".dvc", cwd=folder).stdout == ""
    plain = made(checkout, "2e-4")
    shared = Path(checkout.run("dvc", "cache", "dir", cwd=plain).stdout.strip())
    assert shared == checkout.folder / ".dvc" / "cache"


def test_a_worktree_in_which_a_run_is_at_work_is_not_pruned(checkout: Checkout) -> None:
    busy, idle = made(checkout, "3e-4"), made(checkout, "4e-4")
    with in_use(busy), working(Workspace(busy, None), print):  # type: ignore[arg-type]
        refused = checkout.mathrl("runs", "--prune", busy.name, ok=False)
        assert refused.returncode == 2
        assert refused.stderr == f"error: {busy.name} is running: cancel it first\n"
        refused = checkout.mathrl("runs", "--prune", "all", ok=False)
        assert refused.returncode == 2 and f"{busy.name} is running" in refused.stderr
        assert busy.is_dir() and not idle.exists()
    assert f"removed {busy.name}" in checkout.mathrl("runs", "--prune", "all").stdout
    assert not busy.exists()


def test_a_sweep_holds_its_worktree(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made(checkout, "5e-4")
    pruned: list[bool] = []
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sweep, "main_checkout", lambda: checkout.folder)
    monkeypatch.setattr(sweep, "name_run", lambda *_: [])  # no flow runs here
    monkeypatch.setattr(sweep, "workspace", lambda *_, **__: folder)
    monkeypatch.setattr(sweep, "follow", lambda *_: pruned.append(prune(checkout.folder, folder)))
    given = {"MATHRL_HOME": str(checkout.home), "MATHRL_MIRROR": "none", "MATHRL_CONSOLE": "1"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    sweep.run_sweep(None, None, [], compare=False, allow_dirty=False)
    assert pruned == [False] and folder.is_dir()
