"""Run by test_distributed.py: four ranks exchange what they have, until some never come; the others say who is late."""

import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from mathrl.core.errors import UserError
from mathrl.core.hashing import derive_seed
from mathrl.core.types import Completion, Graded, Problem
from mathrl.learners.distributed import Ranks
from mathrl.params.rollout import Rollout
from mathrl.params.training import Fsdp, Training
from mathrl.rollout.engine import Sampling
from mathrl.rollout.ranks import from_rank_0, gather
from mathrl.rollout.sample_problems import sample_problems


def collect(ranks: Ranks, out: Path) -> None:
    try:
        ranks.gather("figures")
    except UserError as error:
        (out / f"said-{ranks.rank}").write_text(str(error))
        return
    raise AssertionError("a rank is missing")


class Echo:
    """A sampler whose response is the problem's id and the seed."""

    turns, engine = None, SimpleNamespace(rollout=Rollout(max_sequences=2))

    def sample(self, problems: Sequence[Problem], _: Sampling, __: Any, seed: int, *___: Any) -> list[list[Graded]]:
        texts = [f"{problem.id} {seed}" for problem in problems]
        completions = [Completion((1,), (0.0,), text, "stop") for text in texts]
        return [[Graded("", completion, False, 0.0, {}, None, "")] for completion in completions]


def sample(ranks: Ranks) -> None:
    """Every rank samples its share, two problems at a time with a seed of their own."""
    problems: list[Any] = [SimpleNamespace(id=str(number)) for number in range(13)]
    echo: Any = Echo()
    rows = sample_problems(echo, problems, Sampling(1, 0.0, 4), None, seed=7, name="x")  # type: ignore[arg-type]
    if ranks.rank:
        assert rows is None
        return
    seeds = [derive_seed(7, "x", number % 4, number // 8) for number in range(13)]
    assert rows is not None
    assert [row[0]["response"] for row in rows if row] == [f"{number} {seed}" for number, seed in enumerate(seeds)]


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
    sample(ranks)
    made = from_rank_0(lambda: (out / f"made-{ranks.rank}").write_text("one maker"))
    assert made == len("one maker") and [file.name for file in out.glob("made-*")] == ["made-0"]
    # From here on: to start takes longer on a busy machine. Gloo takes a group's time-out when it makes the group.
    ranks.gather(None)
    ranks.timeout = timedelta(seconds=10)
    ranks.objects = dist.new_group(backend="gloo", timeout=ranks.timeout)
    missing = {int(word) for word in (out / "missing").read_text().split()}
    if ranks.rank not in missing:
        (out / f"here-{ranks.rank}").touch()
        while len(list(out.glob("here-*"))) < ranks.world - len(missing):  # rank 0 is to name the missing alone
            time.sleep(0.05)
        collect(ranks, out)
    while len(list(out.glob("said-*"))) < ranks.world - len(missing):  # a rank that ends closes its connections
        time.sleep(0.05)
