"""The cells of the families that need ranks: a step of SFT under FSDP, and with ranks that share micro-batches.

Run by test_families.py: `python -m tests.forked_ranks tests.models.family_ranks FOLDER 2`; rank 0 writes
FOLDER/cells.json, a row of cells for each family that FOLDER/families names.
"""

import warnings
from pathlib import Path
from typing import Any

import torch

from mathrl.core.errors import UserError
from mathrl.core.files import write_json
from mathrl.learners.distributed import Ranks
from mathrl.learners.sharding import load_to_train
from mathrl.models.load import load_model
from mathrl.models.sharding import whole
from mathrl.params.optimizer import AdamW
from mathrl.params.run import Model
from mathrl.params.train import Sft
from mathrl.params.training import Fsdp, Training
from mathrl.trainers.sft import train_sft
from tests.learners.fsdp_runs import demonstrations
from tests.models.families import make_family
from tests.trainers.small import training_run

FAMILIES = "families"
CELLS = {"FSDP": Fsdp(), "context parallel": Fsdp(context_parallel=2)}
FLOAT32 = Model(precision="float32")
# An eps of 1e-3: AdamW's first step does not turn a rounding error into a full step.
ADAM = AdamW(lr=0.01, warmup_steps=0, schedule="constant", eps=1e-3)
STEP = Sft(
    steps=1, tokens_per_step=64, tokens_per_microbatch=32, optimizer=ADAM.model_copy(update={"lr": 1e-2}), eval_every=0
)
TOLERANCE = 1e-6  # of weights that a step moves by up to 1e-2


def state(model: Any) -> torch.Tensor:
    return torch.cat([whole(each.detach(), torch.float32).flatten() for each in model.parameters()])


def trained(start: Path, state_folder: Path, training: Training) -> torch.Tensor:
    model = load_to_train(load_model, start, FLOAT32, Ranks(torch.device("cpu"), training))
    train_sft(model, demonstrations(20), (), STEP, training_run(state_folder, training=training))
    return state(model)


def cell(start: Path, state_folder: Path, fsdp: Fsdp, first: torch.Tensor, plain: torch.Tensor) -> str:
    """The step gives plain torch's weights, which are not the first ones."""
    try:
        divided = trained(start, state_folder, Training(backend="fsdp", fsdp=fsdp))
    except UserError as error:
        return f"refused: {error}"
    assert (plain - first).abs().max() > 1e-3 and torch.allclose(divided, plain, rtol=0, atol=TOLERANCE)
    return "yes"


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    ranks, cells = Ranks(torch.device("cpu")), {}
    for family in (folder / FAMILIES).read_text().split():
        start = folder / family
        if ranks.rank == 0:
            make_family(family, start)
        ranks.gather(None)
        plain = trained(start, folder / f"{family} torch", Training())
        first = state(load_model(start, FLOAT32, "cpu"))
        cells[family] = {
            name: cell(start, folder / f"{family} {name}", fsdp, first, plain) for name, fsdp in CELLS.items()
        }
    if ranks.rank == 0:
        write_json(folder / "cells.json", cells)
