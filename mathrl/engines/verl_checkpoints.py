"""verl's checkpoints: which of them are whole and on record, so that a run goes on from them.

verl writes `global_step_N/actor/` (weights, optimizer and state of each rank), `global_step_N/data.pt` and at last
`latest_checkpointed_iteration.txt` with N. The metrics of step N follow after that, and are lost to a kill in between:
such a checkpoint is left out, since its step would be missing in the run's record.
"""

import json
import shutil
import warnings
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

TRACKER = "latest_checkpointed_iteration.txt"
SHARDS = ("model", "optim", "extra_state")


@dataclass(frozen=True)
class VerlCheckpoint:
    """A whole checkpoint of verl after `step` steps.

    Example: VerlCheckpoint(Path("checkpoints/global_step_20"), 20)
    """

    folder: Path
    step: int

    @property
    def actor(self) -> Path:
        """The policy's shards, as verl's merger takes them."""
        return self.folder / "actor"


def latest_checkpoint(checkpoints: Path, recorded: Collection[int]) -> VerlCheckpoint | None:
    """The newest whole checkpoint of a step in `recorded`; later ones and what is not whole are removed."""
    done = _tracked(checkpoints)
    for folder in sorted(checkpoints.glob("global_step_*"), key=_step, reverse=True):
        step = _step(folder)
        problem = "not written to its end" if step > done else _problem(folder)
        if not problem and step in recorded:
            return VerlCheckpoint(folder, step)
        if problem:
            warnings.warn(f"{folder}: {problem}; using the checkpoint before it", stacklevel=2)
        shutil.rmtree(folder)
    return None


def _step(folder: Path) -> int:
    return int(folder.name.rpartition("_")[2])


def _tracked(checkpoints: Path) -> int:
    """The step of the last checkpoint that verl wrote to its end, or 0."""
    file = checkpoints / TRACKER
    text = file.read_text(encoding="utf-8").strip() if file.exists() else ""
    return int(text) if text.isdigit() else 0


def _problem(folder: Path) -> str:
    try:
        world = int(json.loads((folder / "actor/fsdp_config.json").read_text(encoding="utf-8"))["world_size"])
    except (OSError, ValueError, KeyError) as error:
        return f"damaged ({error})"
    shards = [f"actor/{kind}_world_size_{world}_rank_{rank}.pt" for kind in SHARDS for rank in range(world)]
    missing = [name for name in ("data.pt", *shards) if not (folder / name).exists()]
    return f"{missing[0]} is missing" if missing else ""
