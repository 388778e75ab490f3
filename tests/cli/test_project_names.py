"""`mathrl init` in folders of any name."""

import json
import subprocess
import tomllib
from pathlib import Path

import pytest

from mathrl.cli.init import init
from mathrl.compose import load_params
from tests.cli.test_init import ROOT, folder

__all__ = ["folder"]


@pytest.mark.parametrize(
    ("name", "package"), [("random", "project_random"), ("torch", "project_torch"), ("sums", "sums")]
)
def test_an_empty_folder_that_one_is_in_becomes_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, package: str
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    monkeypatch.chdir(folder)
    init(Path(), demo=True, as_json=True)
    assert json.loads(capsys.readouterr().out)["project"] == str(folder)
    assert Path.cwd() == folder and (folder / package / "rewards.py").is_file()
    git = ["git", "log", "--format=%s"]
    assert subprocess.run(git, capture_output=True, text=True, check=True).stdout == f"Project {name}: the demo\n"
    assert load_params(folder / "params") == load_params(ROOT / "params")
    assert not subprocess.run(["git", "status", "--porcelain"], capture_output=True, check=True).stdout


# pip and uv take neither names that start or end otherwise than with an ASCII letter or digit, nor a project called
# like a package that it needs.
@pytest.mark.parametrize(
    ("name", "distribution", "package"),
    [
        ("_x", "x", "x"),
        ("1abc", "1abc", "project_1abc"),
        ("my project", "my-project", "my_project"),
        ("test", "test", "project_test"),
        ("mathrl", "project-mathrl", "project_mathrl"),
        ("Übung_", "Ubung", "übung"),
        ("日本", "project", "日本"),
    ],
)
def test_a_folder_of_any_name_becomes_a_project_that_installs(
    tmp_path: Path, name: str, distribution: str, package: str
) -> None:
    init(tmp_path / name, demo=True)
    project = tomllib.loads((tmp_path / name / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["name"] == distribution and project["tool"]["mathrl"]["code"] == [package]
    assert (tmp_path / name / package / "rewards.py").is_file()


def test_a_registered_model_is_named_after_a_folder_of_any_name(tmp_path: Path, folder: Path) -> None:
    init(tmp_path / "Ann's: sums", data=folder / "sums.jsonl", model=str(folder / "neox"))
    assert load_params(tmp_path / "Ann's: sums" / "params").register_.name == "Ann-s-sums"
