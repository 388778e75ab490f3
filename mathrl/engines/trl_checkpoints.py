"""TRL's own checkpoints in the state folder of a run, sealed when they are whole.

TRL writes the files of a checkpoint into their place one by one, so a kill leaves part of a checkpoint. A manifest with
the digests of all files comes last; a checkpoint without one, or with a changed file, is not resumed.
"""

import json
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mathrl.core.files import write_json
from mathrl.learners.checkpoint import flushed_digests
from mathrl.learners.distributed import Ranks

MANIFEST = "mathrl.json"


@dataclass(frozen=True)
class SealedCheckpoint:
    """A whole checkpoint of TRL after `step` optimizer steps, and mathrl's own values beside it."""

    folder: Path
    step: int
    values: dict[str, Any]


def seal(folder: Path, values: dict[str, Any], ranks: Ranks) -> None:
    """Write the manifest at rank 0, once every rank has written its files. Called at every rank."""
    ranks.gather("written")
    if ranks.rank == 0:
        write_json(folder / MANIFEST, {"values": values, "files": flushed_digests(folder)})


def latest_checkpoint(state: Path, ranks: Ranks) -> SealedCheckpoint | None:
    """The newest whole checkpoint; rank 0 removes those that are not. Called at every rank."""
    newest: Path | None = None
    if ranks.rank == 0:
        folders = sorted(state.glob("checkpoint-*"), key=_step, reverse=True)
        for folder in folders:
            problem = _problem(folder)
            if not problem:
                newest = newest or folder
                continue
            warnings.warn(f"{folder}: {problem}; using the checkpoint before it", stacklevel=2)
            shutil.rmtree(folder)
    newest = ranks.gather(newest)[0]
    if newest is None:
        return None
    manifest = json.loads((newest / MANIFEST).read_text(encoding="utf-8"))
    return SealedCheckpoint(newest, _step(newest), dict(manifest["values"]))


def _step(folder: Path) -> int:
    return int(folder.name.rpartition("-")[2])


def _problem(folder: Path) -> str:
    manifest = folder / MANIFEST
    if not manifest.exists():
        return "not written to its end"
    try:
        files = json.loads(manifest.read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError) as error:
        return f"damaged ({error})"
    digests = {name: digest for name, digest in flushed_digests(folder).items() if name != MANIFEST}
    changed = sorted(name for name in {*files, *digests} if files.get(name) != digests.get(name))
    return f"damaged ({', '.join(changed)} changed)" if changed else ""
