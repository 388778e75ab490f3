"""The folder of the main checkout, or why there is none."""

import subprocess
from pathlib import Path

import pytest

from mathrl.core.errors import UserError
from mathrl.core.paths import main_checkout, tracking_uri


def test_why_git_gives_no_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No repository, one of another user (a volume of a container), no git: each has its own remedy."""
    for name, message in (
        ("none", "none is not in a git repository"),
        ("theirs", "belongs to another user, .*: git config --global --add safe.directory .*theirs"),
        ("without", "git is not installed"),
    ):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        if name == "theirs":
            subprocess.run(["git", "init", "-q"], check=True)
            monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
        if name == "without":
            monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(UserError, match=message):
            main_checkout()


def test_a_project_may_be_a_submodule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> None:
        names = ("user.name=a", "user.email=a@b", "protocol.file.allow=always")
        subprocess.run(["git", *(word for name in names for word in ("-c", name)), *words], check=True)

    for name in ("around", "project"):
        git("init", "-q", str(tmp_path / name))
        monkeypatch.chdir(tmp_path / name)
        git("commit", "-q", "--allow-empty", "-m", name)
    monkeypatch.chdir(tmp_path / "around")
    git("submodule", "--quiet", "add", str(tmp_path / "project"), "inner")
    monkeypatch.chdir("inner")
    git("worktree", "add", "-q", "runs/rl")
    for folder in (Path(), Path("runs/rl")):
        monkeypatch.chdir(tmp_path / "around" / "inner" / folder)
        assert main_checkout() == tmp_path / "around" / "inner"


def test_a_sqlite_file_of_a_relative_path_is_one_for_all_worktrees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    words = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "a"]
    subprocess.run(words, check=True, cwd=tmp_path)
    subprocess.run(["git", "worktree", "add", "-q", "runs/rl"], check=True, cwd=tmp_path)
    for folder in (tmp_path, tmp_path / "runs" / "rl"):
        monkeypatch.chdir(folder)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
        assert tracking_uri() == f"sqlite:///{tmp_path / 'mlflow.db'}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////data/mlflow.db")
        assert tracking_uri() == "sqlite:////data/mlflow.db"
