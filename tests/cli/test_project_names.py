"""`mathrl init` in folders of any name."""

import json
import subprocess
import tomllib
from pathlib import Path

import pytest

from mathrl.cli.init import _write_template, init


def test_an_empty_folder_that_one_is_in_becomes_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "random"
    folder.mkdir()
    monkeypatch.chdir(folder)
    init(Path(), demo=True, as_json=True)
    assert json.loads(capsys.readouterr().out)["project"] == str(folder)
    assert Path.cwd() == folder and (folder / "project_random" / "rewards.py").is_file()
    git = ["git", "log", "--format=%s"]
    assert subprocess.run(git, capture_output=True, text=True, check=True).stdout == "Project random: the demo\n"
    assert not subprocess.run(["git", "status", "--porcelain"], capture_output=True, check=True).stdout


# pip and uv take neither names that start or end otherwise than with an ASCII letter or digit, nor a project called
# like a package that it needs.
@pytest.mark.parametrize(
    ("name", "distribution", "package"),
    [
        ("_x", "x", "x"),
        ("1abc", "1abc", "project_1abc"),
        ("my project", "my-project", "my_project"),
        ("mathrl", "project-mathrl", "project_mathrl"),
        ("torch", "project-torch", "project_torch"),
        ("日本", "project", "日本"),
    ],
)
def test_a_folder_of_any_name_becomes_a_project_that_installs(
    tmp_path: Path, name: str, distribution: str, package: str
) -> None:
    _write_template(tmp_path / name, name, "a trial")
    project = tomllib.loads((tmp_path / name / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["name"] == distribution and project["tool"]["mathrl"]["code"] == [package]
    assert (tmp_path / name / package / "rewards.py").is_file()
