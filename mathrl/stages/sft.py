"""sft: the base model, then supervised fine-tuning on the sft split. `python -m mathrl.stages.sft`.

Writes models/base, models/sft and reports/sft/ (metrics.jsonl, health.json, curve.png). Resumes bit for bit
from its last checkpoint; a signal ends it at the next step with exit status 75.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from mathrl.core.files import write_json, written_aside
from mathrl.core.launch import launch_ranks, rank
from mathrl.core.problems import read_problems
from mathrl.stages.stage_run import StageRun, run_stage

PROBLEMS, DEV = Path("data/curated/sft.jsonl"), Path("data/curated/dev.jsonl")
BASE, MODEL, REPORT = Path("models/base"), Path("models/sft"), Path("reports/sft")
PANELS = ({"loss": "training loss", "dev/loss": "dev loss"}, {"grad_norm": "gradient norm"})


def work(run: StageRun) -> None:
    fine_tune(run, start=BASE, data=(PROBLEMS,), dev=DEV, model=MODEL, report=REPORT, base=True)


def fine_tune(
    run: StageRun, *, start: Path, data: Sequence[Path], dev: Path, model: Path, report: Path, base: bool = False
) -> None:
    """Fine-tune the model of the folder `start` on the problems of the files `data`.

    Writes the folders `model` and `report`; with sft.steps 0 `model` is a copy of `start`. With `base` the
    base model is made first, in `start`.
    """
    params = run.params
    launch_ranks(params.run.processes, params.run.device)
    # torch: after the ranks are started, so that each has its own.
    from mathrl.health.watch import WatchedSink, examine
    from mathrl.learners.distributed import Backend, choose_device
    from mathrl.models.load import export_model, load_model, load_tokenizer, make_base
    from mathrl.reports.training_curves import report_curves
    from mathrl.trainers.demonstrations import tokenize_demonstrations
    from mathrl.trainers.sft import train_sft

    backend = Backend(choose_device(params.run.device), params.training)
    if base and rank() == 0:
        make_base(params.model, start, params.run.seed)
    backend.gather("the start is there")
    tokenizer = load_tokenizer(start, params.model)
    network = load_model(start, params.model, backend.device, plain=backend.plain)
    demonstrations, held_out = (
        tokenize_demonstrations(
            [problem for file in files for problem in read_problems(file)],
            params.prompt,
            tokenizer,
            params.sft.terse_share,
            params.run.seed,
        )
        if params.sft.steps
        else []
        for files in (data, (dev,))
    )

    def open_metrics(resume_after: int | None) -> WatchedSink:
        return WatchedSink(run.open_metrics(resume_after), params.health, None, run.health)

    result = train_sft(network, demonstrations, held_out, params.sft, params.run.seed, backend, run.state, open_metrics)
    if rank() != 0:
        return
    if params.sft.steps:
        card = (
            f"# SFT model of mathrl\n\nFine-tuned from {start} on {len(demonstrations):,} "
            f"demonstrations, {params.sft.terse_share:.0%} of them without the steps: {result.steps} steps, "
            f"{result.tokens:,} tokens, seed {params.run.seed}; "
            f"loss on dev demonstrations {result.dev_loss:.4f}.\n"
        )
        export_model(network, tokenizer, model, card)
    else:
        with written_aside(model) as folder:
            shutil.copytree(start, folder)
    with written_aside(report) as folder:
        folder.mkdir()
        rows = report_curves(
            run.metrics_file, folder, run.artifacts / f"{run.name}_curve.png", PANELS, "Supervised fine-tuning"
        )
        watch = examine(rows, params.health, None)
        write_json(folder / "health.json", watch.report())
        run.health(watch.report())
    for file in data:
        run.dataset("sft", file)
    if params.sft.steps:
        run.summary({"loss": result.loss, "dev/loss": result.dev_loss or 0.0, "tokens": float(result.tokens)})


if __name__ == "__main__":
    run_stage("sft", work, inputs=[PROBLEMS, DEV], outputs=[BASE, MODEL, REPORT])
