"""The README's map is up to date, and the house keeps to its own rules."""

import importlib.util
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def tracked(*patterns: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.splitlines() if (ROOT / name).exists()]


def test_the_readmes_map_is_what_docs_house_map_writes() -> None:
    spec = importlib.util.spec_from_file_location("house_map", ROOT / "docs" / "house_map.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    readme = (ROOT / "README.md").read_text()
    assert module.with_map(readme) == readme, "run: python docs/house_map.py"
    for file in tracked("mathrl/*.py", "flows/*.py", "tasks/*.py"):
        assert module.caption(ROOT / file), f"{file} says nothing in its first line"


def test_the_mlflow_folder_does_not_shadow_the_package() -> None:
    assert not (ROOT / "mlflow" / "__init__.py").exists()


def test_no_file_is_longer_than_400_lines() -> None:
    long = {f: n for f in tracked("*.py") if (n := len((ROOT / f).read_text().splitlines())) > 400}
    assert long == {}
