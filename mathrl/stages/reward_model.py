"""reward_model, process_reward_model: scores of responses or of steps; steps of recipes.

From a causal LM's folder a new scorer is made; from a reward model's it is refreshed. Resumes bit for
bit from its last checkpoint; a signal ends it at the next step with exit status 75.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mathrl.core.files import read_json, read_jsonl, written_aside
from mathrl.core.launch import launch_ranks, rank
from mathrl.params import Params
from mathrl.stages.stage_run import StageRun

PANELS = (
    {"loss": "training loss", "dev/loss": "dev loss"},
    {"judged_right": "right", "dev/judged_right": "dev: right"},
)


def train(
    run: StageRun, *, start: Path, data: Sequence[Path], replay: Sequence[Path], model: Path, report: Path
) -> None:
    """Train on the pairs, or labelled steps, of the files `data` and on a share of those of `replay`.

    Writes the folders `model` (plain Hugging Face token classification with one label) and `report`.
    """
    params, process = run.params, run.name == "process_reward_model"
    how, seed = params.reward_model, params.run.seed
    launch_ranks(params.run.processes, params.run.device)
    # torch: after the ranks are started, so that each has its own.
    from mathrl.learners.distributed import Backend, choose_device
    from mathrl.models.load import export_model, load_tokenizer
    from mathrl.reports.training_curves import report_curves
    from mathrl.trainers.preference import tokenize_pairs
    from mathrl.trainers.reward_model import tokenize_steps, train_reward_model, with_replay
    from mathrl.trainers.supervised import hold_out

    backend = Backend(choose_device(params.run.device), params.training)
    tokenizer, scorer = load_tokenizer(start, params.model), _scorer(start, params, backend)
    new, old = ([row for file in files for row in read_jsonl(file)] for files in (data, replay))
    rows, held = hold_out(new, how.dev_share, seed)
    known = {row["problem_id"] for row in held}
    old = [row for row in old if row["problem_id"] not in known]  # held out is held out
    rows = with_replay(rows, old, how.replay, seed)
    items, dev = (
        tokenize_steps(part, params.prompt, tokenizer, params.reward.steps, how.labels)
        if process
        else tokenize_pairs(part, params.prompt, tokenizer)
        for part in (rows, held)
    )
    scorer.config.reward_logits = process
    figures = train_reward_model(
        scorer, items, dev, how, tokenizer.eos_token_id, seed, backend, run.state, run.open_metrics
    )
    if rank() != 0:
        return
    what = "responses with labelled steps" if process else "pairs"
    card = (
        f"# {'Process reward' if process else 'Reward'} model of mathrl\n\nTrained from {start} on "
        f"{len(items):,} {what}, {len(rows) - len(new) + len(held):,} of them repeated: {how.steps} steps of "
        f"{how.batch}, seed {seed}. The score after a token is the output of the position behind it.\n"
    )
    export_model(scorer, tokenizer, model, card)
    with written_aside(report) as folder:
        folder.mkdir(parents=True)
        report_curves(
            run.metrics_file, folder, run.artifacts / f"{run.name}_curve.png", PANELS, f"Reward model, on {what}"
        )
    for file in data:
        run.dataset("labels", file)
    run.summary({**figures, "items": float(len(items))})


def _scorer(start: Path, params: Params, backend: Any) -> Any:
    from mathrl.models.load import load_model, resolve_folder
    from mathrl.models.scores import load_scorer, make_scorer

    where, _ = resolve_folder(start)
    config = Path(where) / "config.json"
    kinds = read_json(config).get("architectures") or [""] if config.exists() else [""]
    if str(kinds[0]).endswith("ForTokenClassification"):
        return load_scorer(start, params.model, backend.device, plain=backend.plain)
    return make_scorer(load_model(start, params.model, backend.device, plain=backend.plain))
