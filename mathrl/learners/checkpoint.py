"""Checkpoints: a file of tensors and a manifest of values, complete or absent, checked by digest.

A kill at any moment leaves the last good checkpoint: tensors are written aside, flushed and renamed, and only
then does the small JSON manifest with their digests appear. Nothing is pickled.
"""

import json
import os
import re
import shutil
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from mathrl.core.files import write_json, written_aside
from mathrl.core.hashing import sha256_file

KEEP = 2


@dataclass(frozen=True)
class Checkpoint:
    """What a run resumes from, after `step` steps; `values` is JSON (cursors, counters).

    `parts` is the folder of the files that a training backend has written itself, if any.
    """

    step: int
    tensors: dict[str, Tensor]
    values: dict[str, Any]
    parts: Path | None = None


class CheckpointFolder:
    """The last `KEEP` checkpoints of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)

    def parts(self, step: int) -> Path:
        """The folder for a backend's own files of this step, written before `save` is called."""
        return self.folder / f"step-{step:08d}.parts"

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, then remove the oldest.

        Unfinished ones of killed processes are removed first, since the new one may need their room on the disk.
        Tensors of a GPU are copied to the CPU's memory meanwhile; those of a CPU are not copied.
        """
        name = f"step-{checkpoint.step:08d}"
        self._remove_all_but({name, *(manifest.stem for manifest in self._manifests())})
        with written_aside(self.folder / f"{name}.safetensors") as aside:
            write_tensors(checkpoint.tensors, aside)
            sha256 = sha256_file(aside)
        write_json(
            self.folder / f"{name}.json",
            {
                "step": checkpoint.step,
                "values": checkpoint.values,
                "sha256": sha256,
                "parts": flushed_digests(self.parts(checkpoint.step)),
            },
        )
        self._remove_all_but({manifest.stem for manifest in self._manifests()[:KEEP]})

    def latest(self) -> Checkpoint | None:
        """The newest intact checkpoint; a damaged one is skipped with a warning."""
        for manifest in self._manifests():
            try:
                return _read(manifest)
            except (OSError, ValueError, KeyError) as error:
                warnings.warn(f"{manifest}: damaged; using the checkpoint before it ({error})", stacklevel=2)
        return None

    def _remove_all_but(self, names: Collection[str]) -> None:
        """Remove the files of other checkpoints, manifests first, and those that were being written aside."""
        for path in sorted((*self.folder.glob("step-*"), *self.folder.glob(".step-*"))):
            if path.name.partition(".")[0] in names:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def _manifests(self) -> list[Path]:
        """Newest first."""
        return sorted(self.folder.glob("step-*.json"), reverse=True)


class Checkpointed(Protocol):
    """A learner, as a checkpoint sees it (`mathrl.learners.learner.Learner`)."""

    def tensors(self) -> dict[str, Tensor]: ...

    def write(self, folder: Path) -> None: ...


def save_checkpoint(
    folder: CheckpointFolder, step: int, learners: Sequence[Checkpointed], values: Mapping[str, Any], rank: int
) -> None:
    """Write a checkpoint of the learners after `step` steps; called at every rank."""
    for learner in learners:
        learner.write(folder.parts(step))
    if rank == 0:
        tensors = {name: value for learner in learners for name, value in learner.tensors().items()}
        folder.save(Checkpoint(step, tensors, dict(values)))


def _read(manifest: Path) -> Checkpoint:
    written = json.loads(manifest.read_text(encoding="utf-8"))
    tensors, parts = manifest.with_suffix(".safetensors"), manifest.with_suffix(".parts")
    digests = {tensors: written["sha256"], **{parts / name: digest for name, digest in written["parts"].items()}}
    for file, digest in digests.items():
        if sha256_file(file) != digest:
            raise ValueError(f"{file.name}: its digest differs from the one in the manifest")
    return Checkpoint(
        int(written["step"]), load_file(tensors), dict(written["values"]), parts if written["parts"] else None
    )


def flushed_digests(folder: Path) -> dict[str, str]:
    """The digest of every file in the folder, once it is on the disk."""
    digests = {}
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
        digests[str(file.relative_to(folder))] = sha256_file(file)
    return digests


def write_tensors(tensors: Mapping[str, Tensor], file: Path) -> None:
    try:
        save_file({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, file)
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from None  # the caller names the file
