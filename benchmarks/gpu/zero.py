"""ZeRO 1, 2 and 3, or FSDP, on one GPU: the loss and gradient norm of an update, which must be plain torch's."""

import gc
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from benchmarks.gpu.workload import free, random_groups, run_params, write_model
from mathrl.learners.distributed import Ranks
from mathrl.learners.learner import make_learner
from mathrl.models.load import load_model
from mathrl.trainers.batch import make_batch
from mathrl.trainers.policy_update import update_gradient
from mathrl.trainers.scores import score

LIMIT = 0.02  # relative, of the gradient norm: torch keeps float32 weights, DeepSpeed computes in pure bfloat16
FLOAT32_LIMIT = 1e-3
BACKENDS = {
    "deepspeed": {
        f"ZeRO {stage}": ["training.backend=deepspeed", f"training.deepspeed.stage={stage}"] for stage in (1, 2, 3)
    },
    "fsdp": {"FSDP": ["training.backend=fsdp"]},
}


def main(device: torch.device, toy: bool, backend: str) -> dict[str, Any]:
    """`backend` is one of `BACKENDS`."""
    if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):  # the bare image's torch 2.11 has no such switch,
        FSDPModule.set_reduce_scatter_unused_params = lambda self, on: None  # which dense models do not need
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        source = write_model(Path(folder) / "model", "toy" if toy else "0.5B", device, layers=None if toy else 6)
        for precision in ("float32", "bfloat16"):
            expected = None
            for name, settings in {"torch": [], **BACKENDS[backend]}.items():
                figures = one_update(source, device, precision, settings)
                expected = expected or figures
                rows.append({
                    "name": f"{precision}, {name}",
                    "loss": figures[0], "norm": figures[1],
                    "value": abs(figures[1] - expected[1]) / expected[1],
                    "limit": FLOAT32_LIMIT if precision == "float32" else LIMIT,
                })  # fmt: skip
                print(rows[-1], flush=True)
                gc.collect()
                free(device)
    return {"checks": rows, "failed": [row["name"] for row in rows if row["value"] > row["limit"]]}


def one_update(source: Path, device: torch.device, precision: str, settings: list[str]) -> tuple[float, float]:
    """Loss and gradient norm of the first update."""
    params = run_params(source, f"model.precision={precision}", *settings)
    ranks = Ranks(device, params.training)
    model = load_model(source, params.model, device, plain=ranks.divides)
    groups = random_groups(4, 4, 64, 64, model.config.vocab_size)
    policy = make_learner(model, params.rl.optimizer, 10, ranks, name="rl")
    batch, _ = make_batch(groups, params.rl, score(groups, params.rl, ranks, policy.model), 0.0)
    figures = update_gradient(policy, params.rl, batch, 0.0)
    policy.update(figures.loss)
    return figures.loss, policy.norm
