"""Problems and digests; the folder of the main checkout, or why there is none."""

import subprocess
from pathlib import Path

import pytest

from mathrl.core.errors import UserError
from mathrl.core.hashing import derive_seed, digest, digest_path
from mathrl.core.paths import main_checkout, tracking_uri
from mathrl.core.types import Problem, read_problems, write_problems

PROBLEM = Problem(id="chain/rl/1", question="7+5=", answers=("12",), source="chain", split="rl", level=1)


def test_problems_come_back_from_disk(tmp_path: Path) -> None:
    file = tmp_path / "rl.jsonl"
    problems = [PROBLEM, PROBLEM.with_(id="chain/rl/2", pass_rate=0.5, extra={"task": "math"})]
    write_problems(file, problems)
    assert read_problems(file) == problems


def test_a_missing_or_unknown_field_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "rl.jsonl"
    file.write_text('{"id": "1", "question": "7+5=", "answer": "12", "source": "x", "split": "rl"}\n')
    with pytest.raises(UserError, match=r"rl.jsonl, line 1: .*missing: answers; unknown: answer"):
        read_problems(file)


def test_an_empty_file_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "rl.jsonl"
    file.touch()
    with pytest.raises(UserError, match="no problems in it"):
        read_problems(file)


def test_seeds_differ_by_purpose_and_fit_63_bits() -> None:
    seeds = {derive_seed(0, "rl", step) for step in range(1000)} | {derive_seed(1, "rl", 0)}
    assert len(seeds) == 1001
    assert all(0 <= seed < 2**63 for seed in seeds)
    # Fixed for ever: a run's seed must mean the same on every machine and in every version.
    assert derive_seed(0, "rl", 3) == 1156453243524563384


def test_digests_see_names_and_bytes(tmp_path: Path) -> None:
    assert digest({"b": 1, "a": 2}) == digest({"a": 2, "b": 1}) != digest({"a": 1, "b": 2})
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "a").write_text("1")
    before = digest_path(folder)
    (folder / "a").rename(folder / "b")
    renamed = digest_path(folder)
    (folder / "b").write_text("2")
    assert len({before, renamed, digest_path(folder)}) == 3


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
