"""Weights from a trainer's GPU to a vLLM server: files, CUDA IPC on one GPU, NCCL between two; seconds and digests.

Each way gets a server of its own, as a stage starts it, with the same weights: its digest must be that of the files.
The first of four syncs does not count: it joins NCCL's group, or writes what the page cache has not seen.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.workload import run_params, synchronize, write_model
from mathrl.models.load import load_model, load_tokenizer
from mathrl.models.weights import full_weights
from mathrl.rollout.ask_server import state_of
from mathrl.rollout.open_engine import training_engine
from mathrl.rollout.started_servers import close_servers

SYNCS = 4


def main(device: torch.device, toy: bool, shape: str = "1.5B") -> dict[str, Any]:
    """Rows per way; `failed` names a digest that is not that of the files."""
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    ways = ["files", *(["ipc"] if gpus else []), *(["nccl"] if gpus > 1 else [])]
    with tempfile.TemporaryDirectory() as folder:
        source = write_model(Path(folder) / "model", "toy" if toy else shape, device)
        rows = [measured(way, source, device) for way in ways]
    failed = [f"{row['way']}: digest {row['digest']}" for row in rows if row["digest"] != rows[0]["digest"]]
    failed += [f"{row['way']}: the server says {row['served']}" for row in rows if row["served"] != row["digest"]]
    return {"rows": rows, "not_run": [way for way in ("ipc", "nccl") if way not in ways], "failed": failed}


def measured(way: str, source: Path, device: torch.device) -> dict[str, Any]:
    """A server that takes weights this way, and the times of its syncs."""
    params = run_params(
        source, "rollout.engine=vllm_server", "rollout.servers.start=1", f"rollout.servers.weights={way}",
        "rollout.vllm.max_model_length=512", "rollout.max_sequences=64",
    )  # fmt: skip
    tokenizer, network = load_tokenizer(source), load_model(source, params.model, device)
    try:
        engine: Any = training_engine(network, source, tokenizer, params.model, params.rollout, False)
        seconds = []
        for _ in range(SYNCS):
            synchronize(device)
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
    finally:
        close_servers()
