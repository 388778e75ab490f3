"""Before the first stage: whether all the stages fit the data (mathrl/stages/known_lengths.py)."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.params import Params
from mathrl.params.evaluate import TEST
from mathrl.params.schema import READS
from mathrl.tasks.repro import environment, is_up_to_date
from mathrl.tasks.workspace import Workspace, answer_of

CURATED = Path("data/curated")


def is_judged(params: Params) -> bool:
    """Whether there is anything to ask: the lengths of a pretrained model, benchmarks that may be unreadable, or
    solutions for sft that rows of files may lack."""
    benchmarks = any(name != TEST for name in params.evaluate.benchmarks)
    return params.model.base.type == "pretrained" or benchmarks or bool(params.sft.steps and params.curate.has_rows)


def curated_splits(root: Path, params: Params) -> Path | None:
    """The folder of the curated splits, if `curate` with these parameters would have nothing to do there."""
    present, folder = load_params(root / "params"), root / CURATED
    same = all(getattr(present, section) == getattr(params, section) for section in READS["curate"])
    ready = same and folder.is_dir() and is_up_to_date(root, "curate", environment())
    return folder if ready else None


def check_lengths(workspace: Workspace, what: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether everything could be judged: else ask again when the splits are curated.

    Args:
        what: The stages, or --recipe and its name.

    Raises:
        UserError: a length that nobody typed for this run cuts off what the data need, or a benchmark or the
            tokenizer that the run needs cannot be read, or sft would learn solutions that a source has not.
    """
    curated = curated_splits(workspace.folder, workspace.params)
    command = [sys.executable, "-m", "mathrl.stages.known_lengths", *(["--curated"] if curated else []), *what]
    judged = json.loads(answer_of(command, workspace.folder, env).splitlines()[-1])
    if judged["refused"]:
        raise UserError("; ".join(judged["refused"]))
    return curated is not None or not judged["unknown"]
