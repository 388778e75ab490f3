"""The ranks of a stage: what one process alone leaves behind."""

import os
import subprocess
import sys
from pathlib import Path


def test_deepspeed_alone_leaves_no_folder_behind(tmp_path: Path) -> None:
    code = (
        "import torch\nfrom mathrl.learners.distributed import Ranks\nfrom mathrl.params.training import Training\n"
        "ranks = Ranks(torch.device('cpu'), Training(backend='deepspeed'))\n"
        "value = torch.ones(1)\ntorch.distributed.all_reduce(value)\nranks.close()\nprint(value.item())"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "1.0\n", done.stderr
    assert not list(tmp_path.iterdir())
