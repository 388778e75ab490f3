"""Divided weights on disk by mathrl's shards and by torch's: `python benchmarks/sharded_checkpoints.py`.

Two ranks (gloo, forked) hold `--matrices` of 1,001 rows and 1,000 columns in float32, divided by rows (DTensor), and a
momentum of each, which one rank owns whole, as Muon's. Both sides write them and read them at two ranks, then at three
and at one; torch.distributed.checkpoint writes safetensors (HuggingFaceStorageWriter, save_distributed). Printed:
processor seconds of all ranks, whether what was read is equal, bytes, files that are not safetensors, and what happens
when the file of a rank is missing (mathrl's digests, which find that before, are left out).
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from mathrl.learners.shards import Part, Shards, write_shards

ROWS, COLUMNS = 1001, 1000


def divided(count: int, fill: bool) -> tuple[dict[str, DTensor], dict[str, Tensor]]:
    """This rank's rows of the matrices, and the momenta that it owns; other values for each element, or zeros."""
    mesh, rank, world = init_device_mesh("cpu", (dist.get_world_size(),)), dist.get_rank(), dist.get_world_size()
    weights, momenta = dict[str, DTensor](), dict[str, Tensor]()
    for number in range(count):
        whole = torch.arange(ROWS * COLUMNS, dtype=torch.float32).view(ROWS, COLUMNS) + number
        rows = whole.chunk(world)[rank].contiguous()
        local = rows if fill else torch.zeros_like(rows)
        weights[f"w{number}"] = DTensor.from_local(
            local, mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride()
        )
        if number % world == rank:
            momenta[f"m{number}"] = -whole if fill else torch.zeros_like(whole)
    return weights, momenta


def parts(weights: dict[str, DTensor], momenta: dict[str, Tensor]) -> list[Part]:
    first = sum(len(chunk) for chunk in torch.empty(ROWS).chunk(dist.get_world_size())[: dist.get_rank()]) * COLUMNS
    rows = [(name, first, weight.to_local().view(-1)) for name, weight in weights.items()]
    return [*rows, *((name, 0, momentum.view(-1)) for name, momentum in momenta.items())]


def write(side: str, folder: Path, weights: dict[str, DTensor], momenta: dict[str, Tensor]) -> None:
    if side == "mathrl":
        write_shards(folder, parts(weights, momenta))
    else:
        writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
        dcp.save({**weights, **momenta}, storage_writer=writer)


def read(side: str, folder: Path, weights: dict[str, DTensor], momenta: dict[str, Tensor]) -> None:
    if side == "mathrl":
        shards = Shards(folder)
        for name, begin, values in parts(weights, momenta):
            shards.fill(name, begin, values)
    else:
        dcp.load({**weights, **momenta}, storage_reader=HuggingFaceStorageReader(str(folder)))


def work(rank: int, world: int, port: int, answers: Any, side: str, action: str, folder: Path, count: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=world)
    weights, momenta = divided(count, fill=action == "write")
    began = time.process_time()
    outcome = "ok"
    try:
        (write if action == "write" else read)(side, folder, weights, momenta)
    except (Exception, CheckpointException) as error:  # torch's is a BaseException
        outcome = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    seconds = time.process_time() - began
    if action == "read" and outcome == "ok":
        expected, owned = divided(count, fill=True)
        equal = all(torch.equal(weights[name].to_local(), value.to_local()) for name, value in expected.items())
        outcome = "equal" if equal and all(torch.equal(momenta[n], m) for n, m in owned.items()) else "NOT EQUAL"
    answers.put((seconds, outcome))
    dist.destroy_process_group()


def run(world: int, port: int, *given: Any) -> tuple[float, list[str]]:
    """Processor seconds of all ranks, and what each of them says."""
    fork = get_context("fork")
    answers = fork.Queue()
    target: Callable[..., None] = work
    ranks = [fork.Process(target=target, args=(rank, world, port, answers, *given)) for rank in range(world)]
    for rank in ranks:
        rank.start()
    said = [answers.get(timeout=120) for _ in ranks]
    for rank in ranks:
        rank.join()
    return sum(seconds for seconds, _ in said), sorted({outcome for _, outcome in said})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--matrices", type=int, default=12)
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    port = 29700
    for turn in range(arguments.turns):
        for side in ("mathrl", "torch"):
            with tempfile.TemporaryDirectory() as name:
                folder, figures = Path(name) / "parts", dict[str, Any]()
                folder.mkdir()
                for label, world, action in (
                    ("write", 2, "write"),
                    ("read", 2, "read"),
                    ("3", 3, "read"),
                    ("1", 1, "read"),
                ):
                    port += 1
                    seconds, outcomes = run(world, port, side, action, folder, arguments.matrices)
                    figures[label] = [round(seconds, 2), *outcomes]
                files = sorted(file for file in folder.rglob("*") if file.is_file())
                figures["MB"] = round(sum(file.stat().st_size for file in files) / 1e6)
                figures["other files"] = [file.name for file in files if file.suffix != ".safetensors"]
                files[-1].unlink()
                port += 1
                figures["a file is missing"] = run(2, port, side, "read", folder, arguments.matrices)[1]
                print(json.dumps({"turn": turn, "side": side, **figures}), flush=True)


if __name__ == "__main__":
    main()
