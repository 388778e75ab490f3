"""Run by test_distributed.py: four ranks, of which some never come to an exchange; the others write what they say."""

import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from mathrl.core.errors import UserError
from mathrl.learners.distributed import Ranks
from mathrl.params.training import Fsdp, Training
from mathrl.rollout.ranks import from_rank_0, gather


def collect(ranks: Ranks, out: Path) -> None:
    try:
        ranks.gather("figures")
    except UserError as error:
        (out / f"said-{ranks.rank}").write_text(str(error))
        return
    raise AssertionError("a rank is missing")


def main(out: Path) -> None:
    minutes, cpu = 90, torch.device("cpu")
    training = Training(backend="fsdp", fsdp=Fsdp(context_parallel=2), collective_timeout_minutes=minutes)
    ranks = Ranks(cpu, training)
    assert ranks.context is not None
    for group in (ranks.objects, ranks.context.group):
        assert group._get_backend(cpu).options._timeout == timedelta(minutes=minutes)
    ones = torch.ones(2)
    ranks.sum_(ones)
    assert ones.tolist() == [4.0, 4.0] and ranks.gather(ranks.rank) == [0, 1, 2, 3]
    assert gather(ranks.rank) == ([0, 1, 2, 3] if ranks.rank == 0 else None)
    made = from_rank_0(lambda: (out / f"made-{ranks.rank}").write_text("one maker"))
    assert made == len("one maker") and [file.name for file in out.glob("made-*")] == ["made-0"]
    # From here on: to start takes longer on a busy machine. Gloo takes a group's time-out when it makes the group.
    ranks.timeout = timedelta(seconds=5)
    ranks.objects = dist.new_group(backend="gloo", timeout=ranks.timeout)
    missing = {int(word) for word in (out / "missing").read_text().split()}
    if ranks.rank not in missing:
        collect(ranks, out)
    while len(list(out.glob("said-*"))) < ranks.world - len(missing):  # a rank that ends closes its connections
        time.sleep(0.05)
