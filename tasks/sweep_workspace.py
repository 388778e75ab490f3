"""Where a preset's sweep runs, and its study's name.

No Prefect here: the command line asks before Prefect is imported, which reads its settings once.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from mathrl.params.load import preset_file, read_yaml
from tasks.workspace import prepare


def workspace(preset: str | None, *, allow_dirty: bool = False) -> Path:
    """The checkout; of a preset the worktree where `mathrl run mix --preset` makes what trials start from."""
    return prepare("mix", preset, (), allow_dirty=allow_dirty).folder


def named(preset: str | None, overrides: Sequence[str], root: Path) -> list[str]:
    """The overrides with a study of the preset's name, where neither they nor the preset name one.

    >>> named(None, ["rl.steps=5"], Path("."))
    ['rl.steps=5']
    """
    own = read_yaml(preset_file(root / "params", preset)).get("sweep", {}) if preset else {}
    if preset is None or "study" in own or any(each.startswith("sweep.study=") for each in overrides):
        return list(overrides)
    return [f"sweep.study={re.sub('[^a-z0-9_-]+', '-', preset.lower())}", *overrides]
