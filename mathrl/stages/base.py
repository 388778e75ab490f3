"""base: the project's base model; a step of recipes, since the pipeline's sft makes its own.

Writes model/. `data` are the files of problems that a trained tokenizer reads.
"""

from collections.abc import Sequence
from pathlib import Path

from mathrl.stages.command import main
from mathrl.stages.stage_run import StageRun


def work(run: StageRun, *, model: Path, data: Sequence[Path] = ()) -> None:
    from mathrl.models.load import make_base  # torch

    make_base(run.params.model, model, run.params.run.seed, data)


if __name__ == "__main__":
    main("base", work)
