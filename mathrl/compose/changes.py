"""Which parameters a run has other values of than its commit; and values put into a file of params/."""

import io
import re
import shutil
import subprocess
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.representer import RoundTripRepresenter

from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.core.paths import GROUPS
from mathrl.params.load import FOLDER


def differences(before: Mapping[str, Any], after: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """The values of `after` that differ from `before`, by dotted key; a mapping whose keys changed is one value.

    >>> differences({"rl": {"lr": 1, "steps": 2}}, {"rl": {"lr": 3, "steps": 2}})
    {'rl.lr': 3}
    """
    changed: dict[str, Any] = {}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and old.keys() == value.keys():
            changed |= differences(old, value, f"{above}{key}.")
        elif old != value:
            changed[f"{above}{key}"] = value
    return changed


def changed_since_commit(
    sections: Mapping[str, Any], preset: str = "", root: Path = Path(), groups: Sequence[str] = ()
) -> dict[str, Any]:
    """What of `sections` differs from the params/ of the commit of `root` with the preset and groups such as
    ["data=gsm8k"]: {"rl.optimizer.lr": 0.002}.

    Nothing where there is no commit, or where its parameters no longer fit the schema: a run needs no name.
    """
    if not preset and not groups and not _git(root, "status", "--porcelain", "--", str(FOLDER)):
        return {}
    with TemporaryDirectory() as temporary:
        try:
            with zipfile.ZipFile(io.BytesIO(_git(root, "archive", "--format=zip", "HEAD", str(FOLDER)))) as archive:
                archive.extractall(temporary)
            folder = Path(temporary) / FOLDER
            for kind in (*GROUPS, "presets"):
                if (root / FOLDER / kind).is_dir():
                    shutil.copytree(root / FOLDER / kind, folder / kind, dirs_exist_ok=True)
            before = load_params(folder, preset=preset or None, overrides=groups).model_dump(mode="json", by_alias=True)
        except (UserError, zipfile.BadZipFile, OSError):
            return {}
    return differences({name: before.get(name, {}) for name in sections}, sections)


def _git(root: Path, *words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=root, capture_output=True, check=False).stdout


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
