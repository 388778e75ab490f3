"""dpo: direct preference optimisation on pairs; a step of recipes (`mathrl.stages.recipe_step dpo`).

Resumes bit for bit from its last checkpoint; a signal ends it at the next step with exit status 75.
"""

from collections.abc import Sequence
from pathlib import Path

from mathrl.core.files import read_jsonl, written_aside
from mathrl.core.launch import launch_ranks, rank
from mathrl.stages.stage_run import StageRun

PANELS = (
    {"loss": "training loss", "dev/loss": "dev loss"},
    {"judged_right": "pairs ordered right", "dev/judged_right": "dev pairs"},
    {"margin": "margin", "dev/margin": "dev margin"},
)


def prefer(run: StageRun, *, start: Path, data: Sequence[Path], model: Path, report: Path) -> None:
    """Train the model of the folder `start`, which is also the reference, on the pairs of the files `data`.

    Writes the folders `model` and `report`.
    """
    params = run.params
    launch_ranks(params.run.processes, params.run.device)
    # torch: after the ranks are started, so that each has its own.
    from mathrl.learners.distributed import Backend, choose_device
    from mathrl.models.load import export_model, load_model, load_tokenizer
    from mathrl.reports.training_curves import report_curves
    from mathrl.trainers.preference import tokenize_pairs, train_dpo
    from mathrl.trainers.supervised import hold_out

    backend = Backend(choose_device(params.run.device), params.training)
    tokenizer = load_tokenizer(start, params.model)
    network = load_model(start, params.model, backend.device, plain=backend.plain)
    rows = [row for file in data for row in read_jsonl(file)]
    pairs, dev = (
        tokenize_pairs(part, params.prompt, tokenizer) for part in hold_out(rows, params.dpo.dev_share, params.run.seed)
    )
    figures = train_dpo(network, pairs, dev, params.dpo, params.run.seed, backend, run.state, run.open_metrics)
    if rank() != 0:
        return
    card = (
        f"# DPO model of mathrl\n\nTrained from {start} on {len(pairs):,} pairs: {params.dpo.steps} steps of "
        f"{params.dpo.pairs_per_step}, beta {params.dpo.beta}, seed {params.run.seed}.\n"
    )
    export_model(network, tokenizer, model, card)
    with written_aside(report) as folder:
        folder.mkdir(parents=True)
        report_curves(
            run.metrics_file, folder, run.artifacts / f"{run.name}_curve.png", PANELS, "Direct preference optimisation"
        )
    for file in data:
        run.dataset("pairs", file)
    run.summary({**figures, "pairs": float(len(pairs))})
