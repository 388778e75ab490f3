"""Run by test_two_machines.py under torchrun on each of two machines: exchanges, then the network breaks."""

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from mathrl.core.errors import UserError
from mathrl.core.gpus import gpu_count
from mathrl.core.guard import die_with_parent
from mathrl.learners.distributed import Ranks
from mathrl.models.device import rank_gpu
from mathrl.params.training import Training


def main(out: Path) -> None:
    die_with_parent()
    ranks = Ranks(torch.device("cpu"), Training(collective_timeout_minutes=90))
    ones = torch.ones(1)
    ranks.sum_(ones)
    gpus = gpu_count()
    here = {"sum": ones.item(), "gpus": gpus, "gpu": rank_gpu(os.environ, gpus).index}
    here["gathered"] = ranks.gather(os.environ["GROUP_RANK"])
    # From here on: to start takes longer on a busy machine. Gloo takes a group's time-out when it makes the group.
    ranks.timeout = timedelta(seconds=10)
    ranks.objects = dist.new_group(backend="gloo", timeout=ranks.timeout)
    (out / f"first-{ranks.rank}.json").write_text(json.dumps(here))
    deadline = time.monotonic() + 800
    while not (out / "cut").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    try:
        ranks.gather("figures")
    except UserError as error:
        aside = out / f"second-{ranks.rank}"
        aside.write_text(str(error))
        aside.rename(aside.with_suffix(".txt"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
