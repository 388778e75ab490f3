"""Run by test_memory.py: SFT, and the log-probs of a reference, with less memory than they need."""

import ctypes
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from mathrl.core.errors import OutOfMemory
from mathrl.learners.distributed import Ranks
from mathrl.models.device import M_MMAP_THRESHOLD
from mathrl.models.packing import Group
from mathrl.params.optimizer import AdamW
from mathrl.params.train import Rl, Sft
from mathrl.params.training import Training
from mathrl.trainers.rollouts import RolloutGroup
from mathrl.trainers.sft import train_sft
from tests.trainers import small

PARAMS = Sft(
    steps=2,
    tokens_per_step=12_000,
    tokens_per_microbatch=12_000,
    eval_every=0,
    optimizer=AdamW(lr=1e-2, eps=1e-3, warmup_steps=0),
)
ROOM = 100 << 20  # 12,000 tokens of this model keep 200 MB of activations, 3,000 keep 50
KL = Rl(kl={"coef": 0.1}, group_size=4, tokens_per_microbatch=24_000)
KL_ROOM = 10 << 20  # 24,000 tokens without a gradient need 35 MB


def demonstrations() -> list[Group]:
    draw = torch.Generator().manual_seed(1)
    rows = torch.randint(3, 20, (60, 200), generator=draw).tolist()
    return [Group(tuple(row[:20]), (tuple(row[20:]),)) for row in rows]


def run(training: Training, state: Path) -> torch.Tensor:
    model = small.policy()[0]
    run = small.training_run(state, training=training)
    train_sft(model, demonstrations(), [], PARAMS, run)
    print(f"halved {run.ranks.halvings} times")
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def reference_logprobs(training: Training) -> torch.Tensor:
    """The reference's log-probs of 200 prompts with four responses of 30 tokens each, without a gradient."""
    draw = torch.Generator().manual_seed(2)
    groups = [
        RolloutGroup(
            problem=0,
            prompt=(5,),
            responses=tuple(map(tuple, rows)),
            rewards=(1.0, 0.0, 0.0, 0.0),
            logprobs=((-1.0,) * 30,) * 4,
            correct=(True,) * 4,
            truncated=(False,) * 4,
            parts=({},) * 4,
        )
        for rows in torch.randint(3, 20, (200, 4, 30), generator=draw).tolist()
    ]
    model, reference = (small.policy(seed)[0] for seed in (1, 2))
    ranks = Ranks(torch.device("cpu"), training)
    batch, _ = small.scored_batch(groups, KL, ranks, model, reference)
    print(f"KL: halved {ranks.halvings} times")
    assert batch.reference_N is not None
    return batch.reference_N


def error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except OutOfMemory as error:
        return str(error)
    return "no error"


def limit(room: int | None) -> None:
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (hard if room is None else in_use() + room, hard))


def in_use() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def main(out: Path) -> None:
    torch.set_num_threads(1)
    # Freed memory must return to the system, else the limited runs could use the heap that the first one left.
    assert ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 16)
    results: dict[str, Any] = {"kl whole": reference_logprobs(Training())}
    limit(KL_ROOM)
    results["kl error"] = error_of(lambda: reference_logprobs(Training()))
    results["kl halved"] = reference_logprobs(Training(on_out_of_memory="halve"))
    limit(ROOM)
    results["error"] = error_of(lambda: run(Training(), out / "stopped"))
    results["halved"] = run(Training(on_out_of_memory="halve"), out / "halved")
    limit(None)
    results["whole"] = run(Training(), out / "whole")
    torch.save(results, out / "results.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
