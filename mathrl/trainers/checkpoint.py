"""Resume points: one file of tensors and one of values, whole or absent, checked by digest.

A kill at any moment leaves the last good one: tensors are written aside, flushed and renamed, and only then
does the small JSON file that names them and their digest appear. Nothing is unpickled.
"""

import hashlib
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from mathrl.core.files import write_json, written_aside

KEEP = 2


@dataclass(frozen=True)
class Checkpoint:
    """What a run goes on from: `step` steps are done; `values` is JSON (cursors, counters)."""

    step: int
    tensors: dict[str, Tensor]
    values: dict[str, Any]


class CheckpointFolder:
    """The resume points of one run, the last `KEEP` of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a resume point, then drop the oldest."""
        data = save({name: tensor.contiguous().cpu() for name, tensor in checkpoint.tensors.items()})
        name = f"step-{checkpoint.step:08d}"
        with written_aside(self.folder / f"{name}.safetensors") as aside:
            aside.write_bytes(data)
        write_json(
            self.folder / f"{name}.json",
            {
                "step": checkpoint.step,
                "values": checkpoint.values,
                "sha256": hashlib.sha256(data).hexdigest(),
            },
        )
        for old in self._manifests()[KEEP:]:
            old.unlink()
            old.with_suffix(".safetensors").unlink(missing_ok=True)

    def latest(self) -> Checkpoint | None:
        """The newest resume point that is whole; a damaged one is passed over with a warning."""
        for manifest in self._manifests():
            try:
                told = json.loads(manifest.read_text(encoding="utf-8"))
                data = manifest.with_suffix(".safetensors").read_bytes()
                if hashlib.sha256(data).hexdigest() != told["sha256"]:
                    raise ValueError("its digest is not the one noted when it was written")
                return Checkpoint(int(told["step"]), load(data), dict(told["values"]))
            except (OSError, ValueError, KeyError) as error:
                warnings.warn(f"{manifest}: damaged, the one before is used ({error})", stacklevel=2)
        return None

    def _manifests(self) -> list[Path]:
        """Newest first."""
        return sorted(self.folder.glob("step-*.json"), reverse=True)
