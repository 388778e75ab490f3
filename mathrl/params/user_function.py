"""User functions of the reward, checked before anything runs: read from their source, without importing it."""

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from symtable import symtable
from typing import Any

from mathrl.params.messages import did_you_mean
from mathrl.params.reward_parts import FunctionPart
from mathrl.params.run import Reward


def function_problems(reward: Reward) -> Iterator[str]:
    """The errors in functions of reward parts, each with the part's path in the reward section."""
    routes = {f"routes.{name}": parts for name, parts in reward.routes.items()}
    for place, parts in {"parts": reward.parts, **routes}.items():
        for number, part in enumerate(parts):
            if isinstance(part, FunctionPart):
                problem = _problem(part.options.path, part.options.keywords())
                if problem:
                    yield f"{place}.{number}.options.{problem}"


def _problem(path: str, options: dict[str, Any]) -> str:
    module, _, name = path.rpartition(".")
    file = _source(module)
    if file is None:
        return f"path: no module {module!r} in the working folder or installed; write package.module.function"
    if file.suffix != ".py":
        return ""  # compiled: the import at the start of the stage checks it
    try:
        source = file.read_text(encoding="utf-8")
        table, tree = symtable(source, str(file), "exec"), ast.parse(source)
    except (OSError, SyntaxError, ValueError) as error:
        return f"path: {file} cannot be read as Python ({error})"
    nodes = list(ast.walk(tree))
    if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in nodes):
        return ""  # only Python knows the names of such an import
    names = [s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()]
    if name not in names:
        return f"path: {file} defines no {name!r}{did_you_mean(name, names)}"
    lines = {space.get_lineno() for space in table.lookup(name).get_namespaces()}  # where the module defines it
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == name]
    return next((_wrong_option(node, options) for node in functions if node.lineno in lines), "")


def _wrong_option(function: ast.FunctionDef, options: dict[str, Any]) -> str:
    arguments = function.args
    if arguments.kwarg is not None or function.decorator_list:
        return ""
    accepted = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    for option in options:
        if option not in accepted:
            hint = did_you_mean(option, accepted)
            return f"{option}: unknown option{hint}; {function.name} accepts {', '.join(accepted)}"
    takes_row = accepted[:1] != ["reward_input"] and accepted[:2] != ["data_source", "solution_str"]
    if takes_row and "source" not in accepted:
        return f"path: {function.name} must accept the fields of a problem's row: add **row to its parameters"
    return ""


def _source(module: str) -> Path | None:
    """The file of a module: below the working folder, as a stage imports it, else where it is installed."""
    first, *rest = module.split(".")
    roots = [Path(first)]
    try:
        spec = importlib.util.find_spec(first)  # imports nothing: it is a top-level name
    except (ImportError, ValueError):
        spec = None
    if spec is not None:
        roots += [Path(folder) for folder in spec.submodule_search_locations or ()]
        if not rest and spec.origin:
            return Path(spec.origin)
    for root in roots:
        place = root.joinpath(*rest)
        for file in (place.with_name(place.name + ".py"), place / "__init__.py"):
            if file.is_file():
                return file
    return None
