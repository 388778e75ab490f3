"""Run by test_distributed.py: three ranks, of which one never comes to an exchange; each writes what it says."""

import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from mathrl.core.errors import UserError
from mathrl.learners.distributed import Ranks
from mathrl.params.training import Training
from mathrl.rollout.ranks import from_rank_0


def collect(ranks: Ranks, out: Path) -> None:
    try:
        ranks.gather("figures")
    except UserError as error:
        (out / f"said-{ranks.rank}").write_text(str(error))
        return
    raise AssertionError("a rank is missing")


def main(out: Path) -> None:
    ranks = Ranks(torch.device("cpu"), Training())
    ones = torch.ones(2)
    ranks.sum_(ones)
    assert ones.tolist() == [3.0, 3.0] and ranks.gather(ranks.rank) == [0, 1, 2]
    made = from_rank_0(lambda: (out / f"made-{ranks.rank}").write_text("one maker"))
    assert made == len("one maker") and [file.name for file in out.glob("made-*")] == ["made-0"]
    # From here on: to start takes longer on a busy machine. Gloo takes a group's time-out when it makes the group.
    ranks.timeout = timedelta(seconds=5)
    ranks.objects = dist.new_group(backend="gloo", timeout=ranks.timeout)
    for missing in (int(word) for word in (out / "missing").read_text().split()):
        if ranks.rank != missing:
            collect(ranks, out)
        while len(list(out.glob("said-*"))) < 2:  # a rank that ends closes its connections
            time.sleep(0.05)
