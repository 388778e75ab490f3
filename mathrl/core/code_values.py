"""The code as a value: what a stage's code adds to its parameters and inputs, so that DVC reruns what changes.

`code.yaml` has a value for each stage, and the digest of the model folder. In an installed release it is the stage's
number in stages/results.toml, which is raised when the stage's results change. In a checkout of mathrl it has besides
a digest of the syntax trees that the stage imports: a comment, a docstring, or a file that is moved or renamed
changes nothing. `own` is the same digest of the project's own code that its parameters name.
"""

import ast
import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from mathrl.core.files import write_json, write_text
from mathrl.core.hashing import digest_model
from mathrl.core.paths import home, is_hub_id, own_packages

STAGE = "code"  # the stage that writes the file; no stage of the pipeline that a person starts
FILE, LOCK = "code.yaml", "dvc.lock"
HEADER = "# Written by the stage code: what decides the results of each stage's code (docs/start/projects.md).\n"
OWN = "own"
MODEL = "model"  # the digest of a model folder, which lies outside of the project as code does
RESOLVED, PRETRAINED = "resolved.yaml", "type: pretrained"
PACKAGE = Path(__file__).parents[1]
# What every stage imports, and what only shows results. Where one of these changes a figure, the number is raised.
SHARED = (
    "__init__.py", "core/", "params/", "compose/", "recipes/", "tracking/", "reports/", "stages/command.py",
    "stages/stage_run.py",
)  # fmt: skip
COMPOSES = ("compose", "params", "planning")  # what the stage `resolve` runs
RESOLVE = "resolve"
NAMED = re.compile(r"\bmathrl(?:\.\w+)+")


def code_values(project: Path = Path(), only: str = "") -> dict[str, str]:
    """The value of every stage's code, and of the project's own: {"own": "", "curate": "1", "sft": "1", …}.

    `only`: of one stage alone, which imports a small part of the files that all import.
    """
    package = package_of(project)
    numbers = tomllib.loads((package / "stages" / "results.toml").read_text(encoding="utf-8"))
    values = {stage: str(number) for stage, number in numbers.items() if only in ("", stage)}
    if (package.parent / "pyproject.toml").is_file():  # a checkout, whose code changes without a release
        files = _Files(package.parent, home() / "code-digests.json")
        values = {stage: f"{number} {_of_stage(stage, package, files)}" for stage, number in values.items()}
        files.keep(all_in_use=not only)
    else:
        from mathrl import __version__

        values[RESOLVE] = __version__
    return {OWN: _own(project), **values}


def stage_code(stage: str) -> dict[str, str]:
    """What a run's record says of the code that made its results: {"mathrl": "0.1.0", "value": "3", "own": ""}."""
    from mathrl import __version__

    values = code_values(only=stage)
    return {"mathrl": __version__, "value": values.get(stage, ""), OWN: values[OWN]}


def code_text(code: Mapping[str, str]) -> str:
    """Such code in words.

    >>> code_text({"mathrl": "0.1.0", "value": "3", "own": "9be1"})
    'mathrl 0.1.0, code 3, own code 9be1'
    """
    own = f", own code {code[OWN]}" if code.get(OWN) else ""
    return f"mathrl {code['mathrl']}, code {code['value']}{own}" if code else "code unknown"


def package_of(project: Path) -> Path:
    """The folder of the mathrl that the project's stages run: its own in a checkout of mathrl, else the installed."""
    own = project.absolute() / PACKAGE.name
    return own if (own / "stages").is_dir() else PACKAGE


def write_code(project: Path = Path()) -> list[str]:
    """Write code.yaml of a project, unless it has these values already; returns the stages whose value changed.

    `model` in it is the digest of the folder of the base model, so that new weights in it rerun what starts from them.
    """
    file, new = project / FILE, code_values(project)
    old = read_code(file)
    for stage, (before, after) in read_kept(project).items():
        if new.get(stage) == after:
            new[stage] = before
    lines = {**new, MODEL: _resolved_files(project)}
    text = HEADER + "".join(f'{name}: "{value}"\n' for name, value in lines.items())
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        write_text(file, text)
    return [stage for stage, value in new.items() if old.get(stage, value) != value]


def model_files(base: Mapping[str, Any], project: Path = Path()) -> str:
    """The digest of the model folder `model.base`; of one that is not on this machine what code.yaml has; "": none."""
    if base["type"] != "pretrained" or is_hub_id(base["path"]):
        return ""
    folder = project / base["path"]
    return digest_model(folder) if folder.is_dir() else read_code(project / FILE).get(MODEL, "")


def _resolved_files(project: Path) -> str:
    """`model_files` of the model that resolved.yaml names."""
    file = project / RESOLVED
    if not file.is_file() or PRETRAINED not in (written := file.read_text(encoding="utf-8")):
        return ""
    from ruamel.yaml import YAML  # the verifier has none

    return model_files(YAML(typ="safe").load(written)["model"]["base"], project)


def read_code(file: Path) -> dict[str, str]:
    """The values of a code.yaml; {} where it is missing."""
    if not file.is_file():
        return {}
    lines = re.findall(r'^(\w+): "([^"]*)"$', file.read_text(encoding="utf-8"), re.MULTILINE)
    return dict(lines)


# --- results that a person keeps

KEPT = Path("params", "kept_code.json")


def read_kept(project: Path = Path()) -> dict[str, tuple[str, str]]:
    """The value before and the value now of each stage whose results are kept although its code has changed."""
    file = project / KEPT
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def changed_code(project: Path = Path()) -> dict[str, tuple[str, str]]:
    """The value before and the value now of each stage whose results other code made than would run now."""
    new, kept, changed = code_values(project), read_kept(project), dict[str, tuple[str, str]]()
    for stage, old in [*read_code(project / FILE).items(), *_of_results(project / LOCK)]:
        value = new.get(stage, old)
        if old != value and kept.get(stage, ("", ""))[1] != value:
            changed[stage] = (old, value)
    return changed


def _of_results(lock: Path) -> list[tuple[str, str]]:
    """The values with which the results that are there were made, by stage. code.yaml may have been written since.

    A fresh clone has the lock file and the reports of whoever committed them, and nothing else of the results yet.
    """
    if not lock.is_file():
        return []
    from ruamel.yaml import YAML  # the verifier has none
    from ruamel.yaml.error import YAMLError

    try:
        stages = YAML(typ="safe").load(lock)["stages"].values()
        made = [stage for stage in stages if all((lock.parent / path).exists() for path in _paths(stage))]
        values = [stage.get("params", {}).get(FILE, {}) for stage in made]
    except (YAMLError, KeyError, TypeError, AttributeError):  # cut off by a kill: the run that follows mends it
        return []
    return [(name, str(value)) for stage in values for name, value in stage.items()]


def _paths(stage: Mapping[str, Any]) -> list[str]:
    """What a stage of dvc.lock read and wrote."""
    return [entry["path"] for key in ("deps", "outs") for entry in stage.get(key, ())]


def keep_results() -> list[str]:
    """Have every stage keep the results that it has; returns the stages whose code has changed since."""
    changed = changed_code()
    if changed:
        write_json(KEPT, read_kept() | changed)
    return list(changed)


# --- syntax trees


class _Files:
    """What is known of Python files: a digest of the syntax tree, and the modules that it imports.

    Kept in a file by content, since parsing all of mathrl takes a second: one run's worktree has what others have.
    """

    def __init__(self, root: Path, cache: Path | None = None) -> None:
        self.root, self.cache = root, cache
        self.kept: dict[str, Any] = {}
        self.known: dict[Path, tuple[str, str, dict[str, list[str]]]] = {}
        self.modules: dict[str, Path | None] = {}
        self.imported: dict[Path, list[tuple[str, Path | None]]] = {}
        with suppress(OSError, ValueError):
            self.kept = json.loads(cache.read_text(encoding="utf-8")) if cache else {}

    def facts(self, file: Path) -> tuple[str, dict[str, list[str]]]:
        """The digest of the file, and by imported module the names that are taken from it."""
        if file not in self.known:
            content = file.read_bytes()
            key = hashlib.sha256(content).hexdigest()[:32]
            self.known[file] = (key, *(self.kept.get(key) or _facts(content)))
        return self.known[file][1:]

    def module(self, name: str, importer: Path) -> Path | None:
        """The file of a module that a file imports; None of one that is not below the root."""
        inner = name.lstrip(".")
        level = len(name) - len(inner)
        path = f"{importer.parents[level - 1] if level else self.root}/{inner.replace('.', '/')}"
        if path not in self.modules:  # text: that of a Path takes longer than all else here
            places = Path(f"{path}.py"), Path(f"{path}/__init__.py")
            self.modules[path] = next((file for file in places if file.is_file()), None)
        return self.modules[path]

    def reachable_files(self, starts: Sequence[Path], left_out: tuple[str, ...] = ()) -> set[Path]:
        """The files that some files import, directly or not, and these."""
        reached, waiting = set[Path](), list(starts)
        while waiting:
            file = waiting.pop()
            if file in reached or file.relative_to(self.root).as_posix().startswith(left_out):
                continue
            reached.add(file)
            waiting += [other for _, other in self.imports(file) if other]
        return reached

    def imports(self, file: Path) -> list[tuple[str, Path | None]]:
        """What a file imports: the names, each with the file below the root that it is from.

        Example: [("train", Path(…/loop.py)), ("numpy.floor", None)].
        """
        if file not in self.imported:
            self.imported[file] = []
            for module, names in self.facts(file)[1].items():
                top = module.partition(".")[0]
                own = not top or self.module(top, file)
                holder = self.module(module, file) if own else None
                may_be_modules = own and (holder is None or holder.name == "__init__.py")  # those of a package
                for name in names:
                    first = name.partition(" as ")[0]
                    target = (self.module(f"{module}.{first}", file) if may_be_modules else None) or holder
                    self.imported[file].append((name if own else f"{module}.{name}", target))
        return self.imported[file]

    def digest(self, reached: Iterable[Path]) -> str:
        """Of files by what they hold, and what they import of one another, wherever they lie."""
        reached, parts = set(reached), []
        for file in reached:
            names = sorted(
                f"{name} {self.facts(target)[0] if target in reached and target else ''}"
                for name, target in self.imports(file)
            )
            parts.append(_digest(self.facts(file)[0], *names))
        return _digest(*sorted(parts))

    def keep(self, *, all_in_use: bool) -> None:
        """Write the file anew if there is more to keep; or less, if what is unknown now is in use nowhere."""
        used = {key: facts for key, *facts in self.known.values()}
        used = used if all_in_use else self.kept | used
        if self.cache and used.keys() != self.kept.keys():
            write_json(self.cache, used)


def _of_stage(stage: str, package: Path, files: _Files) -> str:
    rooms = [package / room for room in COMPOSES] if stage == RESOLVE else []
    starts = [package / "stages" / f"{stage}.py", *(file for room in rooms for file in sorted(room.rglob("*.py")))]
    shared = () if stage == RESOLVE else tuple(f"{package.name}/{room}" for room in SHARED)
    reached = files.reachable_files(starts, shared)
    folders = {*(file.parent for file in reached if file.name != "__init__.py"), *rooms}
    data = [file.read_bytes() for folder in sorted(folders) for file in sorted(_data_files(folder, folder in rooms))]
    return _digest(files.digest(reached), *(hashlib.sha256(content).hexdigest() for content in data))


def _data_files(folder: Path, inner: bool) -> Iterator[Path]:
    """What the code of a folder reads beside the code, such as the events of the story problems."""
    yield from folder.rglob("*.yaml") if inner else folder.glob("*.yaml")


def _own(project: Path) -> str:
    """The digest of the project's own code that a file in params/ names; "" where none does."""
    packages = own_packages(project)
    if not packages:
        return ""
    params = [file for file in sorted((project / "params").rglob("*.yaml")) if file.is_file()]
    text = "\n".join(file.read_text(encoding="utf-8") for file in params)
    files = _Files(project.absolute())
    named = {
        found
        for package in packages
        for path in re.findall(rf"\b{re.escape(package)}(?:[.:]\w+)*", text)
        if (found := _module_of(path.replace(":", "."), files))
    }
    return files.digest(files.reachable_files(sorted(named))) if named else ""


def _module_of(path: str, files: _Files) -> Path | None:
    """The file of a dotted path that ends with a function: my_project.rewards.short -> my_project/rewards.py."""
    parts = path.split(".")
    modules = (files.module(".".join(parts[:end]), Path()) for end in range(len(parts), 0, -1))
    return next(filter(None, modules), None)


@lru_cache(1024)  # a notebook or a test calls several stages
def _facts(content: bytes) -> tuple[str, dict[str, list[str]]]:
    texts, imports = list[str](), dict[str, list[str]]()
    _dump(ast.parse(content), texts, imports)
    return _digest("".join(texts)), imports


def _bound_name(alias: ast.alias) -> str:
    """
    >>> _bound_name(ast.alias("floor")), _bound_name(ast.alias("numpy", "np"))
    ('floor', 'numpy as np')
    """
    return f"{alias.name} as {alias.asname}" if alias.asname else alias.name


def _dump(value: Any, texts: list[str], imports: dict[str, list[str]]) -> None:
    """Append the parts of a syntax tree without docstrings, imports and places in the file; the same in every version
    of Python. Its imports go to `imports`.
    """
    if isinstance(value, list):
        for item in value:
            if isinstance(item, ast.ImportFrom):
                module = "." * item.level + (item.module or "")
                imports.setdefault(module, []).extend(map(_bound_name, item.names))
            elif isinstance(item, ast.Import):
                for alias in item.names:
                    imports.setdefault(alias.name, []).append(_bound_name(alias).removeprefix(alias.name))
            else:
                _dump(item, texts, imports)
    elif isinstance(value, ast.AST):
        texts.append(f"{type(value).__name__}(")
        for name in value._fields:
            item = getattr(value, name, None)
            if item is None or item == [] or name in ("ctx", "kind", "type_comment"):
                continue
            if name == "body" and _has_docstring(value):
                item = item[1:]
            texts.append(f"{name}=")
            _dump(item, texts, imports)
        texts.append(")")
    else:
        texts.append(f"{value!r},")
        if isinstance(value, str):  # a program that is started by the name of its module
            for named in NAMED.findall(value):
                imports.setdefault(named, []).append("")


def _has_docstring(node: ast.AST) -> bool:
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or not node.body:
        return False
    first = node.body[0]
    return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)


def _digest(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
