"""controls: models that RL is compared with, beside SFT. `python -m mathrl.stages.controls`.

- more_sft: the SFT model trained further, with as much computation as RL took (not time, so that it is the
  same everywhere): a token that is trained on costs three times one that is sampled.
- forced_prefix: the SFT model, its responses starting with `controls.forced_prefix`.
- worked_only: the base model trained like the SFT model, on worked demonstrations alone.

Writes models/controls/ and reports/controls/summary.json, evaluated like the models of the pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mathrl.core.environment import rank, world_size
from mathrl.core.files import read_jsonl, write_json, written_aside
from mathrl.core.metrics import JsonlSink
from mathrl.core.problems import read_problems
from mathrl.core.progress import progress
from mathrl.core.types import Problem
from mathrl.data.sft_sets import few_shot_examples
from mathrl.evaluation.benchmark import EvaluatedModel, benchmark_problems
from mathrl.evaluation.summary import summarise
from mathrl.params import Params
from mathrl.params.run import Prompt
from mathrl.params.train import Sft
from mathrl.recipes.controls import equal_steps
from mathrl.stages.stage_run import StageRun, run_stage
from mathrl.stages.training_stage import load_start, open_training, write_model

if TYPE_CHECKING:
    from mathrl.trainers.training_run import TrainingRun

PROBLEMS, DEV, TEST = (Path(f"data/curated/{split}.jsonl") for split in ("sft", "dev", "test"))
BASE, SFT, RL_METRICS = Path("models/base"), Path("models/sft"), Path("reports/rl/metrics.jsonl")
MODELS, REPORT = Path("models/controls"), Path("reports/controls")


def work(run: StageRun) -> None:
    params = run.params
    benchmark = params.evaluate.benchmarks[0]
    problems, few_shot = benchmark_problems(benchmark, params), few_shot_examples(params.prompt, PROBLEMS)
    _check_lengths(run, problems, few_shot)
    training = open_training(run)
    controls: dict[str, tuple[Path, Sft]] = {}
    if params.controls.more_sft:
        steps = equal_steps(list(read_jsonl(RL_METRICS)), params.rl, params.sft)
        controls["more_sft"] = (SFT, params.sft.model_copy(update={"steps": steps}))
    if params.controls.worked_only:
        controls["worked_only"] = (BASE, params.sft.model_copy(update={"terse_share": 0.0}))
    trained = {name: _train(name, start, sft, run.params, training) for name, (start, sft) in controls.items()}
    results = _evaluate(run, trained, benchmark, problems, few_shot)
    if rank() != 0:
        return
    summary: dict[str, Any] = {
        "benchmark": benchmark,
        "models": {r.model: summarise(r.rows, params.evaluate).to_row() for r in results},
        "training": {name: {"steps": sft.steps, "from": str(start)} for name, (start, sft) in controls.items()},
    }
    with written_aside(MODELS) as folder:
        folder.mkdir()
        for name, path in trained.items():
            path.rename(folder / name)
    with written_aside(REPORT) as folder:
        folder.mkdir()
        write_json(folder / "summary.json", summary)
    run.summary({f"{r.model}/pass_at_1": float(summary["models"][r.model]["pass_at_1"]) for r in results})


def _check_lengths(run: StageRun, problems: Sequence[Problem], few_shot: Sequence[Problem]) -> None:
    """Of what is trained on, and of what the controls are evaluated on as the stage `evaluate` does."""
    from mathrl.models.load import load_tokenizer  # transformers

    def tokenizer() -> Any:
        return load_tokenizer(SFT, run.params.model)

    if run.params.controls.more_sft or run.params.controls.worked_only:
        run.check_lengths(read_problems(PROBLEMS), tokenizer)
    run.check_lengths(problems, tokenizer, few_shot, stage="evaluate")


def _train(name: str, start: Path, sft: Sft, params: Params, training: TrainingRun) -> Path:
    """Fine-tune from `start`; the model's folder, in the stage's state until all are there."""
    from mathrl.trainers.demonstrations import tokenize_demonstrations
    from mathrl.trainers.sft import train_sft

    state = training.state / name
    folder = state / "model"
    training.ranks.gather(name)
    if folder.is_dir():
        return folder
    model, tokenizer = load_start(start, params.model, training)
    demonstrations, dev = (
        tokenize_demonstrations(
            read_problems(file), params.prompt, tokenizer, sft.terse_share, params.run.seed, sft.call_format is not None
        )
        for file in (PROBLEMS, DEV)
    )

    def open_metrics(resume_after: int | None) -> JsonlSink:
        return JsonlSink(state / "metrics.jsonl", resume_after=resume_after)

    its_run = replace(training, state=state, open_metrics=open_metrics)
    train_sft(model, demonstrations, dev, sft, its_run, title=name)
    account = f"{sft.steps} steps of SFT from {start}, {sft.terse_share:.0%} of the demonstrations terse"
    write_model(model, tokenizer, folder, f"# Control {name} of mathrl\n\n{account}.\n")
    training.ranks.gather(name)
    return folder


def _evaluate(
    run: StageRun, trained: dict[str, Path], benchmark: str, problems: Sequence[Problem], few_shot: Sequence[Problem]
) -> list[EvaluatedModel]:
    """The controls on the benchmark; empty at ranks other than 0."""
    from mathrl.evaluation.evaluate_model import evaluate_model  # torch

    params = run.params
    plans: dict[str, tuple[Path, Prompt]] = {name: (folder, params.prompt) for name, folder in trained.items()}
    if params.controls.forced_prefix:
        forced = params.prompt.model_copy(update={"response_prefix": params.controls.forced_prefix})
        plans["forced_prefix"] = (SFT, forced)
    results = []
    for name, (folder, prompt) in plans.items():
        with progress(f"evaluate {name}", len(problems) * params.evaluate.samples) as bar:
            result = evaluate_model(
                folder,
                benchmark,
                problems,
                params.model_copy(update={"prompt": prompt}),
                label=name,
                few_shot=few_shot,
                state=run.state / "evaluate" / name,
                on_progress=lambda count, bar=bar: bar.advance(count * world_size()),  # type: ignore[misc]
            )
        if result is not None:
            results.append(result)
    return results


if __name__ == "__main__":
    run_stage("controls", work, inputs=[PROBLEMS, DEV, TEST, BASE, SFT, RL_METRICS], outputs=[MODELS, REPORT])
