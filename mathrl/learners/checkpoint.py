"""Resume points: files of tensors and one of values, whole or absent, checked by digest.

A kill at any moment leaves the last good one: tensors are written aside, flushed and renamed, and only then
does the small JSON file that names them and their digests appear. What this module writes and reads holds no
pickles; DeepSpeed's own files, which do, are read only after their digests have been checked, and without
running anything that they name.
"""

import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from mathrl.core.files import write_json, written_aside

KEEP = 2


@dataclass(frozen=True)
class Checkpoint:
    """What a run goes on from: `step` steps are done; `values` is JSON (cursors, counters).

    `parts` is the folder of what a training backend has written itself, if it did.
    """

    step: int
    tensors: dict[str, Tensor]
    values: dict[str, Any]
    parts: Path | None = None


class CheckpointFolder:
    """The resume points of one run, the last `KEEP` of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)

    def parts(self, step: int) -> Path:
        """Where a backend writes its own files of this step, before `save` is called."""
        return self.folder / f"step-{step:08d}.parts"

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a resume point, then drop the oldest.

        On a CPU without a copy of the tensors; those of a GPU stand in the CPU's memory meanwhile.
        """
        name = f"step-{checkpoint.step:08d}"
        with written_aside(self.folder / f"{name}.safetensors") as aside:
            _write_tensors(checkpoint.tensors, aside)
            sha256 = _digest(aside)
        write_json(
            self.folder / f"{name}.json",
            {
                "step": checkpoint.step,
                "values": checkpoint.values,
                "sha256": sha256,
                "parts": _flushed_digests(self.parts(checkpoint.step)),
            },
        )
        for old in self._manifests()[KEEP:]:
            old.unlink()
            old.with_suffix(".safetensors").unlink(missing_ok=True)
            shutil.rmtree(old.with_suffix(".parts"), ignore_errors=True)

    def latest(self) -> Checkpoint | None:
        """The newest resume point that is whole; a damaged one is passed over with a warning."""
        for manifest in self._manifests():
            try:
                told = json.loads(manifest.read_text(encoding="utf-8"))
                tensors = manifest.with_suffix(".safetensors")
                if _digest(tensors) != told["sha256"]:
                    raise ValueError("its digest is not the one noted when it was written")
                parts = manifest.with_suffix(".parts")
                for name, digest in told["parts"].items():
                    if _digest(parts / name) != digest:
                        raise ValueError(f"{name}: its digest is not the one noted when it was written")
                step = int(told["step"])
                own = parts if told["parts"] else None
                return Checkpoint(step, load_file(tensors), dict(told["values"]), own)
            except (OSError, ValueError, KeyError) as error:
                warnings.warn(f"{manifest}: damaged, the one before is used ({error})", stacklevel=2)
        return None

    def _manifests(self) -> list[Path]:
        """Newest first."""
        return sorted(self.folder.glob("step-*.json"), reverse=True)


class Saved(Protocol):
    """A learner, as a checkpoint sees it (`mathrl.learners.learner.Learner`)."""

    def tensors(self) -> dict[str, Tensor]: ...

    def write(self, folder: Path) -> None: ...


def save_point(
    folder: CheckpointFolder, step: int, learners: Sequence[Saved], values: Mapping[str, Any], rank: int
) -> None:
    """A resume point of the learners after `step` steps; called at every process."""
    for learner in learners:
        learner.write(folder.parts(step))
    if rank == 0:
        tensors = {name: value for learner in learners for name, value in learner.tensors().items()}
        folder.save(Checkpoint(step, tensors, dict(values)))


def _flushed_digests(folder: Path) -> dict[str, str]:
    """Of every file in the folder, once it is on the disk."""
    found = {}
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
        found[str(file.relative_to(folder))] = _digest(file)
    return found


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _write_tensors(tensors: Mapping[str, Tensor], file: Path) -> None:
    try:
        save_file({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, file)
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from None
