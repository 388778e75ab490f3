"""The folder of the main checkout, or why there is none."""

import subprocess
from pathlib import Path

import pytest

from mathrl.core.errors import UserError
from mathrl.core.paths import main_checkout


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
