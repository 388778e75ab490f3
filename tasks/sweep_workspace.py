"""The folder in which a preset's sweep runs, and the name of its study.

Without Prefect: the command line calls this before it imports Prefect, which reads its settings once.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from mathrl.compose.load import preset_values
from tasks.workspace import prepare


def workspace(preset: str | None, *, allow_dirty: bool = False) -> Path:
    """The checkout; for a preset, the worktree in which `mathrl run mix --preset` makes what trials start from."""
    return prepare("mix", preset, (), allow_dirty=allow_dirty).folder


def with_study(preset: str | None, overrides: Sequence[str], root: Path) -> list[str]:
    """The overrides, with a study of the preset's name unless they or the preset name one.

    >>> with_study(None, ["rl.steps=5"], Path("."))
    ['rl.steps=5']
    """
    section = preset_values(root / "params", preset).get("sweep", {})
    if preset is None or "study" in section or any(text.startswith("sweep.study=") for text in overrides):
        return list(overrides)
    return [f"sweep.study={re.sub('[^a-z0-9_-]+', '-', preset.lower())}", *overrides]
