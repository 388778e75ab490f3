"""The policy update alone, on random rollouts: tokens per second, MFU, and peak memory against the plan.

A row of n tokens is a prompt of 256 tokens and a response of the rest (two responses per prompt). MFU is
6 P + 6 L l H d operations per trained token (P parameters; in attention a token sees l / 2 others on average, with L
layers, H heads of width d and l tokens in a sequence), divided by the time and by the measured rate of a large bfloat16
product; recomputed activations do not count.
"""

import gc
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.machine import fastest
from benchmarks.gpu.workload import (
    GIB,
    config,
    free,
    nominal_flops,
    random_groups,
    run_params,
    synchronize,
    write_model,
)
from mathrl.core.errors import UserError
from mathrl.learners.distributed import Ranks
from mathrl.learners.torch_learner import TorchLearner
from mathrl.models.load import load_model
from mathrl.models.model_shape import ModelShape, shape_of
from mathrl.planning.memory import plan_memory
from mathrl.trainers.batch import make_batch
from mathrl.trainers.policy_update import update_gradient

PROMPT = 256
ROWS = (2048, 8192, 16384, 65536)
TOKENS_PER_UPDATE = 131072  # of which as many sequences are made as fit, at least two
MICRO = 16384
SECONDS = 420  # after which no further size is begun
ADAMW_BYTES = 18  # per parameter: float32 weight, gradient and two moments, and the bfloat16 copy


def main(device: torch.device, toy: bool, shape: str = "0.5B", profile: Path | None = None) -> dict[str, Any]:
    begun, rows, lengths = time.perf_counter(), [], (512, 2048) if toy else ROWS
    shape = "toy" if toy else shape
    size = torch.randn(512 if toy else 8192, 512 if toy else 8192, device=device, dtype=torch.bfloat16)
    measured_flops = 2.0 * len(size) ** 3 / fastest(lambda: size @ size, device)
    nominal = nominal_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    # Large models are written to memory where there is some: their folder is read once.
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() and not toy else None) as folder:
        if device.type == "cuda":
            needed, there = ADAMW_BYTES * _parameters(shape), torch.cuda.get_device_properties(device).total_memory
            if needed > there:
                reason = f"weights and optimizer of {shape} need {needed / GIB:.0f} GiB, the GPU has {there / GIB:.0f}"
                return {"rows": [], "skipped": reason}
        source = write_model(Path(folder) / "model", shape, device)
        for length in lengths:
            for checkpointing in (False, True):
                row = {"shape": shape, "row": length, "checkpointing": checkpointing}
                try:
                    if time.perf_counter() - begun > SECONDS:
                        raise UserError(f"not measured: the {SECONDS} s of this part were over")
                    row |= measure(
                        source, device, length, checkpointing, toy, profile if length == lengths[0] else None
                    )
                    row["mfu"] = row["flops"] / measured_flops
                    row["mfu_nominal"] = row["flops"] / nominal if nominal else None
                except (torch.OutOfMemoryError, UserError) as error:
                    row["refused"] = str(error).splitlines()[0][:200]
                print(row, flush=True)
                rows.append(row)
                gc.collect()
                free(device)
        shutil.rmtree(source)
    return {"rows": rows}


def _parameters(shape: str) -> int:
    return shape_of(config(shape)).parameters


def measure(
    source: Path, device: torch.device, length: int, checkpointing: bool, toy: bool, profile: Path | None
) -> dict[str, Any]:
    """One size: seconds of the faster of two updates after a warm-up."""
    sequences = max(2, (4 * length if toy else TOKENS_PER_UPDATE) // length)
    micro = max(MICRO, length)
    params = run_params(
        source, f"prompt.max_tokens={PROMPT}", f"rl.max_tokens={length - PROMPT}", f"rl.tokens_per_microbatch={micro}",
        f"rl.gradient_checkpointing={str(checkpointing).lower()}", "rl.group_size=2",
        f"rl.prompts_per_step={sequences // 2}",
    )  # fmt: skip
    model = load_model(source, params.model, device)
    shape = shape_of(model.config)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    groups = random_groups(sequences // 2, 2, PROMPT, length - PROMPT, shape.vocabulary)
    ranks = Ranks(device, params.training)
    policy = TorchLearner(model, params.rl.optimizer, params.rl.lr, 10, ranks)
    model.train()
    batch, _ = make_batch(groups, params.rl, ranks, model)
    times, trained = [], 0.0
    free(device)
    for number in range(3):
        synchronize(device)
        start = time.perf_counter()
        if profile is not None and number == 2:
            with torch.profiler.profile() as profiler:
                figures = _update(policy, params, ranks, batch, device)
            write_profile(profiler, profile, device)
        else:
            figures = _update(policy, params, ranks, batch, device)
            times.append(time.perf_counter() - start)
        trained = figures.trained
    seconds = min(times[1:] or times)
    planned = plan_memory(shape, params, "rl", device.type, gpu_memory=80.0 * GIB)
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    return {
        "sequences": sequences,
        "seconds": seconds,
        "tokens_per_s": trained / seconds,
        "flops": trained * operations_per_token(shape, length) / seconds,
        "peak_gib": peak / GIB,
        "planned_gib": planned.peak / GIB,
        "planned_phase": planned.largest_phase,
        "halvings": ranks.halvings,
    }


def _update(policy: TorchLearner, params: Any, ranks: Ranks, batch: Any, device: torch.device) -> Any:
    figures = update_gradient(policy, params.rl, batch, 0.0)
    policy.update(figures.loss)
    synchronize(device)
    return figures


def operations_per_token(shape: ModelShape, length: int) -> float:
    return 6.0 * shape.parameters + 6.0 * shape.layers * length * shape.heads * shape.head_width


def write_profile(profiler: Any, path: Path, device: torch.device) -> None:
    """The kernels that take most time, as a table."""
    key = "self_cuda_time_total" if device.type == "cuda" else "self_cpu_time_total"
    path.write_text(profiler.key_averages().table(sort_by=key, row_limit=40), encoding="utf-8")
