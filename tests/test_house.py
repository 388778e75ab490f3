"""The README's map names every file, and the house keeps to its own rules."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def tracked(*patterns: str) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return listed.stdout.splitlines()


def mapped_files() -> set[str]:
    """Paths in the map: a line `room/` opens a folder, indented names with captions are its files."""
    block = re.search(r"## The house\n.*?```text\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block, "README.md has no map under '## The house'"
    found, folders = set(), []
    for line in block[1].splitlines():
        match = re.match(r"( *)(\S+)\s*(.*)", line)
        if not match:
            continue
        depth, name, caption = len(match[1]) // 2, match[2], match[3]
        folders = folders[:depth]
        assert caption or name.endswith("/"), f"{name} has no caption in the README's map"
        if name.endswith("/"):
            folders.append(name)
        else:
            found.add("".join(folders) + name)
    return found


def test_the_map_names_every_module_and_only_what_exists() -> None:
    modules = {f for f in tracked("mathrl/*.py", "flows/*.py", "tasks/*.py") if not f.endswith("__init__.py")}
    mapped = mapped_files()
    assert modules - mapped == set(), "in the repository and not in the README's map"
    assert {file for file in mapped if not (ROOT / file).exists()} == set(), (
        "in the map and not in the repository"
    )


def test_the_mlflow_folder_does_not_shadow_the_package() -> None:
    assert not (ROOT / "mlflow" / "__init__.py").exists()


def test_no_file_is_longer_than_400_lines() -> None:
    long = {f: n for f in tracked("*.py") if (n := len((ROOT / f).read_text().splitlines())) > 400}
    assert long == {}
