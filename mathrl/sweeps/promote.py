"""The winner's parameters into params/*.yaml, comments kept, as a diff for a person to commit."""

import difflib
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.representer import RoundTripRepresenter

from mathrl.core.errors import UserError
from mathrl.core.files import write_text
from mathrl.params.load import FOLDER, load_params, preset_file
from mathrl.sweeps.space import override


def promote(values: Mapping[str, Any], folder: Path = FOLDER, preset: str | None = None) -> str:
    """Write dotted values into the section files, or into the preset that the study was of, and return the
    diff; empty where nothing differs.

    The files are written only once all of them are known to fit the schema.

    Raises:
        UserError: the values do not fit the other parameters as they are now.
    """
    load_params(folder, preset=preset, overrides=[override(key, value) for key, value in values.items()])
    by_file: dict[Path, dict[str, Any]] = {preset_file(folder, preset): dict(values)} if preset else {}
    for key, value in {} if preset else values.items():
        section, _, rest = key.partition(".")
        by_file.setdefault(folder / f"{section}.yaml", {})[rest] = value
    diff = ""
    for file, changes in by_file.items():
        before = file.read_text(encoding="utf-8")
        after = edited(before, changes, str(file))
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


def edited(text: str, changes: Mapping[str, Any], where: str) -> str:
    """YAML text with dotted keys set, all else as it stood.

    >>> edited("# why\\nlr: 1.0e-3  # high\\n", {"lr": 0.002}, "rl.yaml")
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
        here: Any = document
        for word in above:
            slot = _slot(here, word, f"{where}: {key}")
            here = here.setdefault(slot, {}) if isinstance(here, dict) else here[slot]
        slot = _slot(here, last, f"{where}: {key}")
        known = here[slot] if isinstance(here, list) or slot in here else None
        if known != value or isinstance(known, bool) != isinstance(value, bool):
            here[slot] = value
    stream = io.StringIO()
    yaml.dump(document, stream)
    return stream.getvalue()


def _slot(here: Any, word: str, what: str) -> Any:
    if isinstance(here, dict):
        return word
    if isinstance(here, list) and word.isdigit() and int(word) < len(here):
        return int(word)
    raise UserError(f"{what} has no place in the file; write it there by hand")
