"""The winner's parameters into params/*.yaml, comments kept, as a diff for a person to commit."""

import difflib
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.representer import RoundTripRepresenter

from mathrl.compose import load_params
from mathrl.compose.names import PRESETS
from mathrl.core.errors import UserError
from mathrl.core.files import write_text
from mathrl.params.load import FOLDER
from mathrl.sweeps.space import override


def promote(values: Mapping[str, Any], folder: Path = FOLDER, preset: str | None = None) -> str:
    """Write dotted values into the section files, or into the study's preset where that is the project's own, and
    return the diff; empty if nothing differs.

    The files are written only after all values were checked against the schema.

    Raises:
        UserError: the values do not fit the present values of other parameters.
    """
    load_params(folder, preset=preset, overrides=[override(key, value) for key, value in values.items()])
    by_file: dict[Path, dict[str, Any]] = {}
    own = folder / PRESETS / f"{preset.split('+')[-1]}.yaml" if preset else None
    if own is not None and own.is_file():
        by_file[own] = dict(values)
    else:  # a preset of the package is the same for everybody
        for key, value in values.items():
            section, _, rest = key.partition(".")
            by_file.setdefault(folder / f"{section}.yaml", {})[rest] = value
    diff = ""
    for file, changes in by_file.items():
        before = file.read_text(encoding="utf-8") if file.is_file() else ""
        after = edit_yaml(before, changes, str(file))
        if after != before:
            write_text(file, after)
            lines = difflib.unified_diff(
                before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{file}", f"b/{file}"
            )
            diff += "".join(lines)
    return diff


class _AsWritten(RoundTripRepresenter):
    """Numbers and nulls as params/ has them: 3.0e-05 (which YAML 1.1 reads as a number too), null."""


_AsWritten.add_representer(
    float, lambda to, value: to.represent_scalar("tag:yaml.org,2002:float", re.sub(r"^(-?\d+)e", r"\1.0e", repr(value)))
)
_AsWritten.add_representer(type(None), lambda to, value: to.represent_scalar("tag:yaml.org,2002:null", "null"))


def edit_yaml(text: str, changes: Mapping[str, Any], where: str) -> str:
    """YAML text with dotted keys set, all else unchanged.

    >>> edit_yaml("# why\\nlr: 1.0e-3  # high\\n", {"lr": 0.002}, "rl.yaml")
    '# why\\nlr: 0.002   # high\\n'

    Raises:
        UserError: a key below something that has no parts.
    """
    yaml = YAML()  # round trip
    yaml.Representer = _AsWritten
    yaml.preserve_quotes = True
    yaml.width = 10_000
    yaml.indent(mapping=2, sequence=4, offset=2)
    document = yaml.load(text)
    if document is None:
        document = {}
    for key, value in changes.items():
        *above, last = key.split(".")
        parent: Any = document
        for part in above:
            slot = _slot(parent, part, f"{where}: {key}")
            if isinstance(parent, dict) and isinstance(parent.get(slot), str | None):
                named = parent.get(slot)  # a bare name of a type
                parent[slot] = {} if named is None else {"type": named}
            parent = parent[slot]
        slot = _slot(parent, last, f"{where}: {key}")
        old = parent[slot] if isinstance(parent, list) or slot in parent else None
        if old != value or isinstance(old, bool) != isinstance(value, bool):
            parent[slot] = value
    stream = io.StringIO()
    yaml.dump(document, stream)
    return stream.getvalue()


def _slot(parent: Any, part: str, key: str) -> Any:
    if isinstance(parent, dict):
        return part
    if isinstance(parent, list) and part.isdigit() and int(part) < len(parent):
        return int(part)
    raise UserError(f"{key} has no place in the file; write it there by hand")
