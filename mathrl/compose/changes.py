"""Which parameters a run has other values of than the commit that it started from."""

import io
import shutil
import subprocess
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

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
