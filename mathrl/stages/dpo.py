"""dpo: direct preference optimisation on pairs; a step of recipes. `python -m mathrl.stages.dpo OUT`.

Resumes bit for bit from its last checkpoint; a signal ends it at the next step with exit status 75.
"""

from collections.abc import Sequence
from pathlib import Path

from mathrl.core.files import read_jsonl
from mathrl.stages.command import main
from mathrl.stages.stage_run import StageRun
from mathrl.stages.training_stage import load_start, open_training, write_model, write_report

PANELS = (
    {"loss": "training loss", "dev/loss": "dev loss"},
    {"judged_right": "pairs ordered right", "dev/judged_right": "dev pairs"},
    {"margin": "margin", "dev/margin": "dev margin"},
)


def work(run: StageRun, *, start: Path, data: Sequence[Path], model: Path, report: Path) -> None:
    """Train the model of the folder `start`, which is also the reference, on the pairs of the files `data`.

    Writes the folders `model` and `report`.
    """
    params = run.params
    training = open_training(run)
    # torch: not before the inputs have been checked.
    from mathrl.trainers.preference import tokenize_pairs, train_dpo
    from mathrl.trainers.supervised import hold_out

    network, tokenizer = load_start(start, params.model, training)
    rows = [row for file in data for row in read_jsonl(file)]
    pairs, dev = (
        tokenize_pairs(part, params.prompt, tokenizer) for part in hold_out(rows, params.dpo.dev_share, params.run.seed)
    )
    figures = train_dpo(network, pairs, dev, params.dpo, training)
    card = (
        f"# DPO model of mathrl\n\nTrained from {start} on {len(pairs):,} pairs: {params.dpo.steps} steps of "
        f"{params.dpo.pairs_per_step}, beta {params.dpo.beta}, seed {params.run.seed}.\n"
    )
    write_model(network, tokenizer, model, card)
    summary = {**figures, "pairs": float(len(pairs))}
    write_report(run, report, "Direct preference optimisation", PANELS, {"pairs": data}, summary)


if __name__ == "__main__":
    main("dpo", work)
