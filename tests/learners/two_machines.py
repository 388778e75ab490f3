"""Run by test_two_machines.py under torchrun on each of two machines: exchanges, then the network breaks."""

import json
import os
import sys
import time
from pathlib import Path

import torch

from mathrl.core.errors import UserError
from mathrl.core.gpus import gpu_count
from mathrl.learners.distributed import Ranks
from mathrl.models.device import rank_gpu
from mathrl.params.training import Training


def main(out: Path) -> None:
    ranks = Ranks(torch.device("cpu"), Training(collective_timeout_minutes=3 / 60))
    ones = torch.ones(1)
    ranks.sum_(ones)
    gpus = gpu_count()
    here = {"sum": ones.item(), "gpus": gpus, "gpu": rank_gpu(os.environ, gpus).index}
    here["gathered"] = ranks.gather(os.environ["GROUP_RANK"])
    (out / f"first-{ranks.rank}.json").write_text(json.dumps(here))
    deadline = time.monotonic() + 200
    while not (out / "cut").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    try:
        ranks.gather("figures")
    except UserError as error:
        (out / f"second-{ranks.rank}.txt").write_text(str(error))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
