"""The folder in which a preset's sweep runs, and the name of its study.

Without Prefect: the command line calls this before it imports Prefect, which reads its settings once.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from mathrl.compose.load import read_layers
from mathrl.core.paths import is_group
from mathrl.tasks.workspace import prepare


def workspace(preset: str | None, overrides: Sequence[str] = (), *, allow_dirty: bool = False) -> Path:
    """The checkout; for a preset or groups such as data=gsm8k among the overrides, the worktree in which `mathrl run
    mix` with these makes what trials start from."""
    groups = [override for override in overrides if is_group(override)]
    return prepare("mix", preset, groups, allow_dirty=allow_dirty).folder


def with_study(preset: str | None, overrides: Sequence[str], root: Path) -> list[str]:
    """The overrides of parameters, with a study of the preset's name unless they or the preset name one.

    >>> with_study(None, ["rl.steps=5"], Path("."))
    ['rl.steps=5']
    """
    groups = [override for override in overrides if is_group(override)]
    overrides = [override for override in overrides if not is_group(override)]
    if preset is None and not groups:
        return overrides
    named = "-".join([*filter(None, [preset]), *(group.partition("=")[2].rpartition("/")[2] for group in groups)])
    said = read_layers(root / "params", preset).said_by().get("sweep.study", "")
    if said.startswith("preset ") or any(text.startswith("sweep.study=") for text in overrides):
        return list(overrides)
    return [f"sweep.study={re.sub('[^a-z0-9_-]+', '-', named.lower()).strip('-_')}", *overrides]
