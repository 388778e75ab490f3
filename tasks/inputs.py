"""Before DVC looks: links to the files that stages read from outside the checkout (mathrl/data/inputs.py)."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from mathrl.core.errors import UserError
from mathrl.params import Params


def link_inputs(
    workspace: Path, stages: Sequence[str], params: Params, env: Mapping[str, str], overrides: Sequence[str] = ()
) -> None:
    """Make the links for the stages that read such files; none if all problems are generated.

    `params` are those of the workspace with the `overrides`.

    Raises:
        UserError: a file that the parameters name does not exist.
    """
    readers = [stage for stage in stages if _reads_files(stage, params)]
    if not readers:
        return
    command = [sys.executable, "-m", "mathrl.stages.inputs", *readers, *overrides]
    linking = subprocess.run(command, cwd=workspace, env=env, capture_output=True, text=True, check=False)
    if linking.returncode:
        raise UserError(linking.stderr.strip().rpartition("\n")[2].removeprefix("error: "))


def _reads_files(stage: str, params: Params) -> bool:
    if stage == "curate":
        clean = params.curate.decontaminate
        rows = any(source.type != "generated" for source in params.curate.sources)
        return rows or bool(clean and (clean.benchmarks or clean.files or clean.decisions))
    if stage == "evaluate":
        return any(name != "test" for name in params.evaluate.benchmarks)
    return stage == "pages"
