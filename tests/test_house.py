"""The map in docs/reference/house.md is up to date, and the repository keeps to the rules of the house."""

import ast
import importlib.util
import re
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import mathrl

ROOT = Path(__file__).parents[1]


def load_tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


repository_files = load_tool("house_map").repository_files


@cache
def nodes(file: Path) -> list[ast.AST]:
    """All of a file's syntax tree."""
    return list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))


def test_the_map_and_the_floors_in_docs_house_are_up_to_date() -> None:
    house_map = load_tool("house_map")
    page = (ROOT / "docs" / "reference" / "house.md").read_text(encoding="utf-8")
    assert house_map.up_to_date(page) == page, "run: python tools/house_map.py"


def test_every_module_begins_with_a_description() -> None:
    house_map = load_tool("house_map")
    for file in repository_files("mathrl/*.py", "flows/*.py", "tasks/*.py"):
        assert house_map.caption(ROOT / file), f"{file} has no docstring"


def test_every_room_stands_on_a_floor() -> None:
    rooms = {room for floor in load_tool("house_map").floors() for room in floor}
    folders = {"/".join(name.split("/")[:2]) for name in repository_files("mathrl/*/__init__.py")} | {"flows", "tasks"}
    assert rooms == folders


def test_the_readme_fits_on_two_screens() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_the_figures_of_a_small_house(tmp_path: Path) -> None:
    room = tmp_path / "mathrl" / "core"
    room.mkdir(parents=True)
    room.joinpath("paths.py").write_text(
        "import os\n\n\n"
        "def home(given: str, root: str) -> str:\n"
        "    from mathrl.core import files\n\n"
        "    def inner(found):\n"
        "        return found\n\n"
        "    return inner(files)\n"
    )
    layers = '[[tool.importlinter.contracts]]\nlayers = ["cli", "data | models", "core"]\n'
    tmp_path.joinpath("pyproject.toml").write_text(layers)
    tmp_path.joinpath("README.md").write_text("# One\n\ntwo\n")
    rows = load_tool("house_figures").figures(tmp_path)
    assert rows["lines of the library"] == "10" and rows["lines of the README"] == "3"
    assert rows["longest function, in lines"] == "7 (`paths.home`)"
    assert rows["most parameters of a function"] == "2 (`paths.home`)"
    assert rows["functions with all types"] == "50.0 %" and rows["own imports inside functions"] == "1"
    assert rows["rooms of mathrl, floors"] == "4, 3"
    (vague,) = [value for label, value in rows.items() if "`each`" in label]
    assert vague == "0, 1, 0, 1, 0, 0, 0, 0"  # found in inner, given in home


def test_the_mlflow_folder_does_not_shadow_the_package() -> None:
    assert not (ROOT / "mlflow" / "__init__.py").exists()


# Each is one recursion or one table of cases, and harder to read in pieces; none may grow.
LONGER = {"mathrl/grading/evaluate.py": 502, "mathrl/grading/parser.py": 627}


def test_no_function_is_named_by_a_bare_participle() -> None:
    """`paired_test` and `split_rejected` say what is done; `tested` and `taken` do not."""
    is_participle = load_tool("house_figures").is_participle
    named = [
        f"{file}:{node.lineno}: {node.name}"
        for file in repository_files("mathrl/*.py", "flows/*.py", "tasks/*.py")
        for node in nodes(ROOT / file)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_participle(node.name)
    ]
    assert named == [], "name them by a verb or a noun"


def test_no_file_is_longer_than_400_lines() -> None:
    lengths = {f: len((ROOT / f).read_text().splitlines()) for f in repository_files("*.py")}
    assert {f: n for f, n in lengths.items() if n > LONGER.get(f, 400)} == {}
    assert {f for f in LONGER if lengths.get(f, 0) <= 400} == set(), "they are short now: take them out of LONGER"


def test_benchmarks_and_tools_import_only_what_exists() -> None:
    """Nothing else runs the benchmarks, so a renamed function would be noticed when one is needed."""
    for file in repository_files("benchmarks/*.py", "tools/*.py"):
        for node in nodes(ROOT / file):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mathrl"):
                missing = {alias.name for alias in node.names} - defined(node.module or "")
                assert not missing, f"{file} imports {missing} from {node.module}"


@cache
def defined(module: str) -> set[str]:
    """The names that a module or package defines at its top level, and a package's modules."""
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if (path / "__init__.py").exists() else path.with_suffix(".py")
    assert file.exists(), f"no module {module}"
    names = {inner.stem for inner in path.glob("*.py")} if path.is_dir() else set()
    for node in nodes(file):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def test_the_workflow_calls_make_targets_that_exist_and_the_citation_has_the_version() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    called = set(re.findall(r"run: make ([a-z-]+)", workflow)) | set(re.findall(r"target: ([a-z-]+)", workflow))
    assert {"lint", "lock", "docs", "test", "smoke", "test-engines", "stranger"} <= called <= targets
    last = load_tool("release_notes").RELEASE.search((ROOT / "CHANGELOG.md").read_text())
    assert last is not None and f"\nversion: {'.'.join(last.groups())}\n" in (ROOT / "CITATION.cff").read_text()


def test_unreleased_changes_become_those_of_the_release() -> None:
    notes = load_tool("release_notes")
    assert notes.HEADING in (ROOT / "CHANGELOG.md").read_text()
    last = "## [0.1.0] - 2026-11-23\n\n- The first.\n"
    text = f"# Changelog\n\n{notes.HEADING}\n\n### Added\n\n- More.\n\n{last}"
    new = notes.released(text, "0.2.0", "2030-01-02")
    assert new == (f"# Changelog\n\n{notes.HEADING}\n\n## [0.2.0] - 2030-01-02\n\n### Added\n\n- More.\n\n{last}")
    for version in ("0.1.0", "0.0.9"):
        with pytest.raises(ValueError, match=r"has 0\.1\.0: .* is not above it"):
            notes.released(text, version, "2030-01-03")
    with pytest.raises(ValueError, match="no changes under"):
        notes.released(new, "0.3.0", "2030-01-03")


def test_an_old_public_name_works_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mathrl, "_RENAMED", {"mark": ("grade", "0.2.0")})
    with pytest.warns(DeprecationWarning, match="mathrl.mark is called mathrl.grade since 0.2.0"):
        assert mathrl.mark is mathrl.grade
    overdue = load_tool("release_notes").overdue
    assert overdue(mathrl._RENAMED, "0.3.0") == [] and overdue(mathrl._RENAMED, "0.4.0") == ["mark"]
