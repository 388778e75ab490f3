"""sft: the base model, then supervised fine-tuning on the sft split. `python -m mathrl.stages.sft`.

Writes models/base, models/sft and reports/sft/ (metrics.jsonl, health.json, curve.png). Resumes bit for bit
from its last checkpoint; a signal ends it at the next step with exit status 75.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mathrl.core.environment import rank
from mathrl.core.files import written_aside
from mathrl.core.types import Problem, read_problems
from mathrl.engines.engine import check_trl
from mathrl.health.watch import HealthMonitor
from mathrl.params import Params
from mathrl.stages.command import main
from mathrl.stages.stage_run import StageRun
from mathrl.stages.training_stage import load_start, open_training, write_model, write_report

if TYPE_CHECKING:
    from mathrl.models.packing import Group
    from mathrl.trainers.training_run import TrainingRun

PROBLEMS, DEV = Path("data/curated/sft.jsonl"), Path("data/curated/dev.jsonl")
BASE, MODEL, REPORT = Path("models/base"), Path("models/sft"), Path("reports/sft")
TITLE = "Supervised fine-tuning"
PANELS = ({"loss": "training loss", "dev/loss": "dev loss"}, {"grad_norm": "gradient norm"})

# The model of a folder, trained on demonstrations, and the last figures.
Train = Callable[[Path, "Sequence[Group]", "Sequence[Group]", Params, "TrainingRun"], tuple[Any, dict[str, float]]]


def work(
    run: StageRun,
    *,
    start: Path = BASE,
    data: Sequence[Path] = (PROBLEMS,),
    dev: Path = DEV,
    model: Path = MODEL,
    report: Path = REPORT,
    base: bool = True,
) -> None:
    """Fine-tune the model of the folder `start` on the problems of the files `data`.

    Writes the folders `model` and `report`. With `base` the base model is made first, in `start`. With sft.steps 0
    `model` is a copy of `start`: no other rank is started and no model is loaded.
    """
    params, seed = run.params, run.params.run.seed
    if not params.sft.steps:
        if rank() == 0:
            _hand_on(run, start, data, model, report, base)
        return
    train = _trainer(params.sft.engine.type)
    health = HealthMonitor(params.health, None, run.health)
    training = open_training(run, health)
    # torch: not before the inputs have been checked.
    from mathrl.models.load import load_tokenizer, make_base
    from mathrl.trainers.supervised import tokenize_demonstrations

    if base and rank() == 0:
        make_base(params.model, start, seed, data)
    training.ranks.gather("the start is there")
    tokenizer = load_tokenizer(start, params.model)
    problems = [problem for file in data for problem in read_problems(file)]
    run.check_lengths(problems, lambda: tokenizer)
    demonstrations, held_out = (
        tokenize_demonstrations(
            part, params.prompt, tokenizer, params.sft.terse_share, seed, params.sft.call_format is not None
        )
        if part
        else []
        for part in (problems, _demonstrable(dev, params.sft.terse_share))
    )
    network, figures = train(start, demonstrations, held_out, params, training)
    summary, dev_loss = {"loss": figures["loss"], "tokens": figures["tokens_seen"]}, "no demonstrations on dev"
    if held_out:
        summary["dev/loss"] = figures["dev/loss"]
        dev_loss = f"loss on dev demonstrations {figures['dev/loss']:.4f}"
    card = (
        f"# SFT model of mathrl\n\nFine-tuned from {start} on {len(demonstrations):,} "
        f"demonstrations, {params.sft.terse_share:.0%} of them without the steps: {params.sft.steps} steps, "
        f"{int(figures['tokens_seen']):,} tokens, seed {seed}; {dev_loss}.\n"
    )
    write_model(network, tokenizer, model, card)
    write_report(run, report, TITLE, PANELS, {"sft": data}, summary, health)


def _demonstrable(dev: Path, terse_share: float) -> list[Problem]:
    """The dev problems with a demonstration: RL's rows, of which dev may be a share, often have no solution."""
    problems = read_problems(dev)
    kept = [each for each in problems if each.solution or each.control.response is not None or terse_share == 1]
    if len(kept) < len(problems) and rank() == 0:
        without = f"{len(problems) - len(kept)} of {len(problems)} dev problems have no worked solution"
        print(f"sft: {without}; the loss on dev is without them", file=sys.stderr, flush=True)
    return kept


def _trainer(engine: str) -> Train:
    """The function of the engine that trains, imported: torch, and accelerate before transformers."""
    if engine == "trl":
        check_trl("sft.engine")
        from mathrl.engines.trl_sft import train_sft_with_trl

        return train_sft_with_trl
    return _train


def _train(
    start: Path, demonstrations: Sequence[Group], held_out: Sequence[Group], params: Params, training: TrainingRun
) -> tuple[Any, dict[str, float]]:
    """By mathrl's own loop."""
    from mathrl.trainers.sft import train_sft

    network, _ = load_start(start, params.model, training)
    return network, train_sft(network, demonstrations, held_out, params.sft, training)


def _hand_on(run: StageRun, start: Path, data: Sequence[Path], model: Path, report: Path, base: bool) -> None:
    """`model` as a copy of `start`, and a report without steps."""
    from mathrl.models.base import make_base  # torch

    print(f"SFT is off (sft.steps=0): {'the base model' if base else start} is handed on", flush=True)
    if base:
        make_base(run.params.model, start, run.params.run.seed, data)
    with written_aside(model) as folder:
        shutil.copytree(start, folder)
    run.open_metrics()
    write_report(run, report, TITLE, PANELS, {"sft": data}, {}, HealthMonitor(run.params.health, None, run.health))


if __name__ == "__main__":
    main("sft", work, inputs=[PROBLEMS, DEV], outputs=[BASE, MODEL, REPORT])
