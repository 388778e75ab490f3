"""The code that determines a stage's results: what its module imports, as DVC's dependencies.

`python -m mathrl.params.watched_code` brings it up to date in a dvc.yaml that a person has changed by hand. The graphs
of recipes have it from the start, when they are first asked for: `dvc status` and `dvc dag` show what a person runs.
"""

import ast
import io
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedSeq

from mathrl.core.files import write_text

# Every stage imports these, so that watching them would rerun everything at each change: they are kept stable.
# Reports draw what was computed; a new colour is no reason to train again.
UNWATCHED = (
    "mathrl/__init__.py",
    "mathrl/core/",
    "mathrl/params/",
    "mathrl/compose/",
    "mathrl/recipes/",
    "mathrl/tracking/",
    "mathrl/reports/",
    "mathrl/stages/command.py",
    "mathrl/stages/stage_run.py",
)
# The stage that composes the parameters watches what everything imports.
COMPOSES = {"resolve": ["mathrl/compose", "mathrl/params", "mathrl/planning", "mathrl/stages/resolve.py"]}
MOST_IDLE, MOST_IDLE_SHARE = 3, 0.25  # files of a folder watched as a whole that the stage does not import


def watched_code(stage: str, checkout: Path) -> list[str]:
    """The files and folders of `checkout` whose change reruns `stage`, in alphabetical order.

    Example: ["mathrl/learners", "mathrl/models", "mathrl/stages/sft.py", "mathrl/trainers/sft.py"].
    """
    if stage in COMPOSES:
        return COMPOSES[stage]
    imported = imported_files(f"mathrl.stages.{stage}", checkout)
    files = {file for file in imported if not file.endswith("__init__.py")}
    watched: set[str] = set()
    for folder in {str(Path(file).parent) for file in files}:
        mine = {file for file in files if str(Path(file).parent) == folder}
        there = {f"{folder}/{file.name}" for file in (checkout / folder).glob("*.py") if file.name != "__init__.py"}
        inner = any(path.is_dir() and path.name != "__pycache__" for path in (checkout / folder).iterdir())
        whole = len(mine) > 1 and len(there - mine) <= max(MOST_IDLE, MOST_IDLE_SHARE * len(there)) and not inner
        watched |= {folder} if whole else mine
    return sorted(watched)


def imported_files(module: str, checkout: Path) -> set[str]:
    """The files that `module` imports, directly or not, including imports inside functions."""
    reached: set[str] = set()
    waiting = [module]
    while waiting:
        for file, imports in _imports(waiting.pop(), checkout).items():
            if file not in reached and not file.startswith(UNWATCHED):
                reached.add(file)
                waiting += imports
    return reached


@cache
def _imports(module: str, checkout: Path) -> dict[str, tuple[str, ...]]:
    """The module's file with the names that it imports from mathrl: modules, or names in them."""
    path = checkout / Path(*module.split("."))
    file = next((f for f in (path.with_suffix(".py"), path / "__init__.py") if f.exists()), None)
    if file is None:
        return {}
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("mathrl"):
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names if alias.name.startswith("mathrl")]
    return {file.relative_to(checkout).as_posix(): tuple(names)}


def with_watched_code(file: Path, checkout: Path) -> str:
    """The text of the DVC file with every stage's watched code brought up to date; comments are kept."""
    content = _yaml().load(file.read_text(encoding="utf-8"))
    for name, stage in content["stages"].items():
        data = [dep for dep in stage["deps"] if not dep.startswith("mathrl/")]
        stage["deps"] = [*data, *watched_code(name, checkout)]
    return indented(content)


def indented(content: Any) -> str:
    """The text of a DVC file, as people write it."""
    stream = io.StringIO()
    _yaml().dump(content, stream)
    return stream.getvalue()


def in_line(values: Iterable[str]) -> Any:
    """A list that `indented` writes in one line."""
    line = CommentedSeq(values)
    line.fa.set_flow_style()
    return line


def _yaml() -> YAML:
    yaml = YAML()
    yaml.width, yaml.preserve_quotes = 120, True
    yaml.indent(mapping=2, sequence=4, offset=2)
    return yaml


def main(checkout: Path) -> None:
    write_text(checkout / "dvc.yaml", with_watched_code(checkout / "dvc.yaml", checkout))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
