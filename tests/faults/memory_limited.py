"""Run by test_memory.py: SFT with less memory than its micro-batches need."""

import resource
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "trainers"))
import small

from mathrl.core.metrics import JsonlSink
from mathrl.core.overflow import OutOfMemory
from mathrl.models.packing import Group
from mathrl.params.train import Optimizer, Sft
from mathrl.params.training import Training
from mathrl.trainers.backend import Backend
from mathrl.trainers.sft import train_sft

PARAMS = Sft(
    steps=2, tokens_per_step=12_000, tokens_per_microbatch=12_000, lr=1e-2, eval_every=0,
    optimizer=Optimizer(type="adamw", eps=1e-3, warmup_steps=0),
)  # fmt: skip
ROOM = 100 << 20  # 12,000 tokens of this model keep 200 MB of activations, 3,000 keep 50


def demonstrations() -> list[Group]:
    draw = torch.Generator().manual_seed(1)
    rows = torch.randint(3, 20, (60, 200), generator=draw).tolist()
    return [Group(tuple(row[:20]), (tuple(row[20:]),)) for row in rows]


def run(training: Training, state: Path) -> torch.Tensor:
    model = small.policy()[0]
    backend = Backend(torch.device("cpu"), training)
    train_sft(model, demonstrations(), [], PARAMS, 0, backend, state, lambda _: JsonlSink(state / "m.jsonl"))
    print(f"halved {backend.halvings} times")
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def in_use() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def main(out: Path) -> None:
    torch.set_num_threads(1)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (in_use() + ROOM, hard))
    try:
        run(Training(), out / "stopped")
        said = "nothing"
    except OutOfMemory as error:
        said = str(error)
    halved = run(Training(on_out_of_memory="halve"), out / "halved")
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    torch.save({"said": said, "halved": halved, "whole": run(Training(), out / "whole")}, out / "found.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
