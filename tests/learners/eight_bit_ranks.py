"""Run by test_eight_bit.py: moments of 8 bits under FSDP over 2 ranks, resumed there, and refused at 1.

python eight_bit_ranks.py OUT; the worlds are forked one after the other.
"""

import sys
from functools import partial
from pathlib import Path

import torch

from mathrl.core.errors import UserError
from mathrl.learners.checkpoint import Checkpoint
from mathrl.learners.distributed import Ranks
from mathrl.learners.eight_bit import EightBitAdamW
from mathrl.learners.fsdp_learner import FsdpLearner
from mathrl.models.base import character_tokenizer, fresh_network
from mathrl.params.optimizer import AdamW8Bit
from mathrl.params.run import FreshModel
from mathrl.params.training import Training
from tests.forked_ranks import in_ranks

BASE = FreshModel(hidden_size=128, intermediate_size=160, layers=1, heads=4, kv_heads=4)
PARAMS = AdamW8Bit(lr=0.01, warmup_steps=0, schedule="constant", clip_norm=None)


def learner() -> FsdpLearner:
    model = fresh_network(BASE, character_tokenizer(BASE), seed=0)
    return FsdpLearner(model, PARAMS, 9, Ranks(torch.device("cpu"), Training(backend="fsdp")), name="sft", ema=None)


def update(policy: FsdpLearner, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    for name, weight in policy.local.named.items():
        gradient = torch.randn(policy.local.masters[name].shape, generator=draw)
        weight.grad = type(weight).from_local(gradient, weight.device_mesh, weight.placements, shape=weight.shape,
                                              stride=weight.stride())  # fmt: skip
    policy.update(1.0)


def values(policy: FsdpLearner) -> torch.Tensor:
    return torch.cat([master.detach().flatten() for master in policy.local.masters.values()])


def two(out: Path) -> None:
    policy, again = learner(), learner()
    update(policy, 0)
    policy.write(out)
    adamw = policy.optimizer.adamw
    assert isinstance(adamw, EightBitAdamW)
    kinds = {adamw.state_of(master)["state1"].dtype for master in policy.local.masters.values()}
    assert kinds == {torch.uint8, torch.float32}
    again.load(Checkpoint(1, {}, {}, parts=out), {"updates": 1, "bad": 0})
    for each in (policy, again):
        update(each, 1)
    assert torch.equal(values(policy), values(again))
    if policy.ranks.rank == 0:
        print("equal", flush=True)


def one(out: Path) -> None:
    try:
        learner().load(Checkpoint(1, {}, {}, parts=out), {"updates": 1, "bad": 0})
    except UserError as error:
        assert "8-bit moments of 2 processes" in str(error) and "run.processes to 2" in str(error), error
        print("refused", flush=True)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    in_ranks(2, partial(two, folder))
    in_ranks(1, partial(one, folder))
