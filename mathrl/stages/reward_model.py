"""reward_model, process_reward_model: scores of responses or of steps; steps of recipes.

From a causal LM's folder a new scorer is made; from a reward model's it is refreshed. Resumes bit for
bit from its last checkpoint; a signal ends it at the next step with exit status 75.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mathrl.core.files import read_json, read_jsonl
from mathrl.params import Params
from mathrl.stages.command import main
from mathrl.stages.stage_run import StageRun
from mathrl.stages.training_stage import open_training, write_model, write_report

PANELS = (
    {"loss": "training loss", "dev/loss": "dev loss"},
    {"judged_right": "right", "dev/judged_right": "dev: right"},
)


def work(
    run: StageRun, *, start: Path, data: Sequence[Path], replay: Sequence[Path], model: Path, report: Path
) -> None:
    """Train on the pairs, or labelled steps, of the files `data` and on a share of those of `replay`.

    Writes the folders `model` (plain Hugging Face token classification with one label) and `report`.
    """
    params, process = run.params, run.name == "process_reward_model"
    settings, seed = params.reward_model, params.run.seed
    training = open_training(run)
    # torch: not before the inputs have been checked.
    from mathrl.models.load import load_tokenizer
    from mathrl.trainers.preference import tokenize_pairs
    from mathrl.trainers.reward_model import tokenize_steps, train_reward_model, with_replay
    from mathrl.trainers.supervised import hold_out

    tokenizer, scorer = load_tokenizer(start, params.model), _scorer(start, params, training.ranks)
    new, old = ([row for file in files for row in read_jsonl(file)] for files in (data, replay))
    rows, held_out = hold_out(new, settings.dev_share, seed)
    held_out_ids = {row["problem_id"] for row in held_out}
    old = [row for row in old if row["problem_id"] not in held_out_ids]
    rows = with_replay(rows, old, settings.replay, seed)
    items, dev = (
        tokenize_steps(part, params.prompt, tokenizer, params.reward.steps, settings.labels)
        if process
        else tokenize_pairs(part, params.prompt, tokenizer)
        for part in (rows, held_out)
    )
    scorer.config.reward_logits = process
    figures = train_reward_model(scorer, items, dev, settings, tokenizer.eos_token_id, training)
    what = "responses with labelled steps" if process else "pairs"
    card = (
        f"# {'Process reward' if process else 'Reward'} model of mathrl\n\nTrained from {start} on "
        f"{len(items):,} {what}, {len(rows) - len(new) + len(held_out):,} of them repeated: {settings.steps} steps of "
        f"{settings.batch}, seed {seed}. The score after a token is the output of the position behind it.\n"
    )
    write_model(scorer, tokenizer, model, card)
    summary = {**figures, "items": float(len(items))}
    write_report(run, report, f"Reward model, on {what}", PANELS, {"labels": data}, summary)


def _scorer(start: Path, params: Params, ranks: Any) -> Any:
    from mathrl.learners.sharding import load_to_train, sharded_like
    from mathrl.models.load import load_model, resolve_folder
    from mathrl.models.scores import load_scorer, make_scorer

    folder, _ = resolve_folder(start)
    config = Path(folder) / "config.json"
    architectures = read_json(config).get("architectures") or [""] if config.exists() else [""]
    if str(architectures[0]).endswith("ForTokenClassification"):
        return load_to_train(load_scorer, start, params.model, ranks)
    network = load_to_train(load_model, start, params.model, ranks)
    with sharded_like(network, ranks):
        return make_scorer(network)


if __name__ == "__main__":
    main("reward_model", work)
