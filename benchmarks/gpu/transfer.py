"""Weights from a trainer's GPU to a vLLM server: by CUDA IPC on one GPU, by NCCL between two, and by files to both.

A server is started for each way, as a stage starts it, and gets the same weights by files too: the digests must be
equal.
The first of four syncs does not count: it joins NCCL's group, or fills the page cache.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.workload import run_params, synchronize, write_model
from mathrl.models.load import load_model, load_tokenizer
from mathrl.models.weights import full_weights
from mathrl.rollout.open_engine import training_engine
from mathrl.servers.protocol import state_of
from mathrl.servers.serve import close_servers

SYNCS = 4


def main(device: torch.device, toy: bool, shape: str = "1.5B") -> dict[str, Any]:
    """Rows per server and way; `failed` names a digest that is not that of the files. Without a GPU: files alone."""
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    ways = [way for way, least in (("ipc", 1), ("nccl", 2)) if gpus >= least]
    with tempfile.TemporaryDirectory() as folder:
        source = write_model(Path(folder) / "model", "toy" if toy else shape, device)
        rows = [row for way in ways or ["files"] for row in measured(way, source, device)]
    failed = [
        f"{row['way']}: the digest of what was sent is {row['digest']}, the server says {row['served']}"
        for row in rows
        if not row["digest"] == row["served"] == rows[-1]["digest"]
    ]
    return {"rows": rows, "not_run": sorted({"ipc", "nccl"} - set(ways)), "failed": failed}


def measured(way: str, source: Path, device: torch.device) -> list[dict[str, Any]]:
    """A server that takes weights this way: the times of its syncs, and of those by files."""
    params = run_params(
        source, "rollout.engine=vllm_server", "rollout.servers.start=1", f"rollout.servers.weights={way}",
        "rollout.vllm.max_model_length=512", "rollout.max_sequences=64",
    )  # fmt: skip
    tokenizer, network = load_tokenizer(source), load_model(source, params.model, device)
    try:
        engine: Any = training_engine(network, source, tokenizer, params.model, params.rollout, False)
        rows = [synced(engine, network, way)]
        if way != "files":
            engine.sender = None
            rows.append(synced(engine, network, f"files, to the server for {way}"))
        return rows
    finally:
        close_servers()


def synced(engine: Any, network: Any, way: str) -> dict[str, Any]:
    seconds = []
    for _ in range(SYNCS):
        synchronize(network.device)
        start = time.perf_counter()
        engine.sync(full_weights(network))
        seconds.append(time.perf_counter() - start)
    (server,) = engine.pool.servers
    size = sum(weight.numel() * engine.dtype.itemsize for _, weight in full_weights(network))
    return {
        "way": way,
        "bytes": size,
        "seconds": seconds[1:],
        "bytes_per_s": size * len(seconds[1:]) / sum(seconds[1:]),
        "digest": engine.pool.weights.digest,
        "served": state_of(server.url).weights,
    }
