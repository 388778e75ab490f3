"""The policy update alone, on random rollouts: tokens per second, MFU, and peak memory against the plan.

A row of n tokens is a prompt of 256 tokens and a response of the rest (two responses per prompt). MFU is
6 P + 6 L l H d operations per trained token (P parameters that are multiplied with, so without an embedding that is not
the head too; in attention a token sees l / 2 others on average, with L layers, H heads of width d and l tokens in a
sequence), divided by the time and by the measured rate of a large bfloat16 product; recomputed activations do not
count. A model that is too large for the GPU with its optimizer keeps its widths and loses layers.
"""

import gc
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.machine import product_flops
from benchmarks.gpu.workload import (
    GIB,
    config,
    free,
    gpu_peak,
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
from mathrl.models.model_shape import shape_of
from mathrl.models.shapes import ModelShape
from mathrl.planning.memory import plan_memory
from mathrl.trainers.batch import make_batch
from mathrl.trainers.policy_update import update_gradient
from mathrl.trainers.scores import score

PROMPT = 256
ROWS = (2048, 8192, 16384, 32768, 65536)
TOKENS_PER_UPDATE = 65536  # of which as many sequences are made as fit, at least two
MICRO = 16384
PROFILE_SECONDS = 25  # that the profile and the end take, at most
ADAMW_BYTES = 18  # per parameter: float32 weight, gradient and two moments, and the bfloat16 copy
STATES_SHARE = 0.62  # of the GPU's memory; the rest is for rows of 64k tokens


def main(
    device: torch.device,
    toy: bool,
    shape: str = "0.5B",
    note: Callable[[dict[str, Any]], None] = lambda result: None,
    profile: Path | None = None,
    seconds: float = 540,
    rows: tuple[int, ...] = ROWS,
) -> dict[str, Any]:
    """`note` is given the result after every row; none is begun that would go beyond `seconds`.

    The profile, made last, is of an update with the shortest rows.
    """
    begun, lengths = time.perf_counter(), (512, 2048) if toy else rows
    shape = "toy" if toy else shape
    memory = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None
    layers = config(shape).num_hidden_layers if memory is None else most_layers(shape, STATES_SHARE * memory)
    if layers < 2:
        return {"rows": [], "skipped": f"not two layers of {shape} fit this GPU with their optimizer"}
    label = shape if layers == config(shape).num_hidden_layers else f"{shape} ({layers} layers)"
    result: dict[str, Any] = {"rows": []}
    last = 0.0
    flops = product_flops(device, 512 if toy else 8192), nominal_flops(device)
    with tempfile.TemporaryDirectory(dir=folder_for(shape, layers)) as folder:
        source = write_model(Path(folder) / "model", shape, device, layers)
        model = load_model(source, run_params(source).model, device)
    policy = TorchLearner(model, run_params(source).rl.optimizer, 100, Ranks(device, run_params(source).training))
    # With checkpointing first: it is what long rows need.
    for checkpointing in (True, False):
        _set_checkpointing(model, checkpointing)
        for length in lengths:
            row = {"shape": label, "row": length, "checkpointing": checkpointing}
            try:
                started = time.perf_counter()
                # The next row takes as many tokens as the last one, in longer sequences.
                if started - begun + 2 * last > seconds - PROFILE_SECONDS:
                    raise UserError(f"not measured: the {seconds:.0f} s of this part would not have sufficed")
                row |= measure(policy, update_params(source, length, checkpointing, toy), length)
                last = time.perf_counter() - started
                row["mfu"] = row["flops"] / flops[0]
                row["mfu_nominal"] = row["flops"] / flops[1] if flops[1] else None
            except (torch.OutOfMemoryError, UserError) as error:
                row["refused"] = str(error).splitlines()[0][:200]
            add_row(result, row, note, device)
    measured = [row["checkpointing"] for row in result["rows"] if row["row"] == lengths[0] and "refused" not in row]
    if profile is not None and measured:
        _set_checkpointing(model, measured[-1])
        write_profile(policy, update_params(source, lengths[0], measured[-1], toy), lengths[0], profile)
    return result


def add_row(
    result: dict[str, Any], row: dict[str, Any], note: Callable[[dict[str, Any]], None], device: torch.device
) -> None:
    """Keep a row, and free what its update has left on the GPU."""
    print(row, flush=True)
    result["rows"].append(row)
    note(result)
    gc.collect()
    free(device)


def most_layers(shape: str, room: float) -> int:
    """The most layers of a shape, up to its own, with which weights and optimizer take at most `room` bytes."""
    whole = config(shape).num_hidden_layers
    one, two = (shape_of(config(shape, layers)).parameters for layers in (1, 2))
    return max(0, min(whole, 1 + int((room / ADAMW_BYTES - one) // (two - one))))


def folder_for(shape: str, layers: int) -> Path | None:
    """Where the model is written: in memory where there is room for it, else where temporary files go."""
    shared, needed = Path("/dev/shm"), 2.5 * shape_of(config(shape, layers)).parameters
    return shared if shared.is_dir() and shutil.disk_usage(shared).free > needed else None


def _set_checkpointing(model: Any, on: bool) -> None:
    if on:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    else:
        model.gradient_checkpointing_disable()


def update_params(source: Path, length: int, checkpointing: bool, toy: bool) -> Any:
    sequences = max(2, (4 * length if toy else TOKENS_PER_UPDATE) // length)
    return run_params(
        source, f"prompt.max_tokens={PROMPT}", f"rl.max_tokens={length - PROMPT}", "rollout.engine=torch",
        f"rl.tokens_per_microbatch={max(MICRO, length)}", f"rl.gradient_checkpointing={str(checkpointing).lower()}",
        "rl.group_size=2", f"rl.prompts_per_step={sequences // 2}",
    )  # fmt: skip


def measure(policy: TorchLearner, params: Any, length: int) -> dict[str, Any]:
    """One size: seconds of the faster of two updates after a warm-up."""
    device, shape, times, trained = policy.ranks.device, shape_of(policy.model.config), [], 0.0
    batch = _batch(policy, params, length)
    free(device)
    for _ in range(3):
        synchronize(device)
        start = time.perf_counter()
        trained = _update(policy, params, batch)
        times.append(time.perf_counter() - start)
    seconds = min(times[1:])
    return {
        "sequences": 2 * params.rl.prompts_per_step,
        "seconds": seconds,
        "tokens_per_s": trained / seconds,
        "flops": trained * operations_per_token(shape, length) / seconds,
        "peak_gib": gpu_peak(device) / GIB,
        "planned_gib": planned_update(shape, params, device) / GIB,
    }


def _batch(policy: TorchLearner, params: Any, length: int) -> Any:
    policy.model.train()
    vocabulary = policy.model.config.vocab_size
    groups = random_groups(params.rl.prompts_per_step, 2, PROMPT, length - PROMPT, vocabulary)
    return make_batch(groups, params.rl, score(groups, params.rl, policy.ranks, policy.model), 0.0)[0]


def _update(policy: TorchLearner, params: Any, batch: Any) -> float:
    """One update; the tokens that it trained on."""
    figures = update_gradient(policy, params.rl, batch, 0.0)
    policy.update(figures.loss)
    synchronize(policy.ranks.device)
    return figures.trained


def operations_per_token(shape: ModelShape, length: int) -> float:
    multiplied = shape.parameters - (0 if shape.tied else shape.head)  # the embedding is as large as the head
    return 6.0 * multiplied + 6.0 * shape.layers * length * shape.heads * shape.head_width


def planned_update(shape: ModelShape, params: Any, device: torch.device) -> float:
    """Bytes that `mathrl plan` has for the phases that run here."""
    memory = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 80 * GIB
    totals = plan_memory(shape, params, "rl", device.type, gpu_memory=float(memory)).totals
    return max(totals["forward and backward"], totals["optimizer step"])


def write_profile(policy: TorchLearner, params: Any, length: int, path: Path) -> None:
    """The kernels of an update that take most time, as a table."""
    batch = _batch(policy, params, length)
    with torch.profiler.profile() as profiler:
        _update(policy, params, batch)
    key = "self_device_time_total" if policy.ranks.device.type == "cuda" else "self_cpu_time_total"
    path.write_text(profiler.key_averages().table(sort_by=key, row_limit=40), encoding="utf-8")
