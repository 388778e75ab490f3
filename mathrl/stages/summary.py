"""The last step of a recipe: its evaluations, one seed or several, as pipelines/recipes/<name>/summary.json."""

from collections.abc import Sequence
from pathlib import Path

from mathrl.core.results import BenchmarkResults, write_recipe_summary
from mathrl.core.types import EvalRow
from mathrl.evaluation.claim import claim_results
from mathrl.evaluation.compare import compare_models
from mathrl.evaluation.responses import ModelRun, check_same_problems, read_runs
from mathrl.evaluation.summary import summarise_seeds
from mathrl.params.evaluate import Evaluate
from mathrl.params.recipe_steps import Claim
from mathrl.recipes.recipe import CLAIM
from mathrl.stages.command import main
from mathrl.stages.stage_run import StageRun

Runs = list[list[EvalRow]]


def work(run: StageRun, *, evaluated: Sequence[Sequence[str]], out: Path, claim: Sequence[Sequence[str]] = ()) -> None:
    """Write `out` from the reports of evaluate steps: pairs of the step's name and a folder, one per seed.

    `claim` has the recipe's claim as pairs (start, NAME), (model, NAME), an (of, STEP) per evaluation and a
    (apart, MODEL) per model that is no control.

    Example of what is written (evaluate step, benchmark, model):
        {"test": {"test": {"models": {"sft": {"seeds": 3, "problems": 500, "samples": 8, "pass_at_1": 0.41,
         "pass_at_1_low": 0.35, "pass_at_1_high": 0.47, …}}, "order": ["sft", …],
         "comparisons": {"sft_to_rl": {…}}}}}
    """
    settings = run.params.evaluate
    rows: dict[str, dict[str, dict[str, Runs]]] = {}
    firsts: dict[tuple[str, str], ModelRun] = {}
    for step, folder in evaluated:
        for model in read_runs(Path(folder) / "responses.jsonl"):
            check_same_problems([firsts.setdefault((step, model.benchmark), model), model])
            models = rows.setdefault(step, {}).setdefault(model.benchmark, {})
            models.setdefault(model.label, []).append(model.rows)
    summary = {
        step: {name: _results(models, settings) for name, models in benchmarks.items()}
        for step, benchmarks in rows.items()
    }
    if claim:
        summary[CLAIM] = _claim_tested(claim, rows, settings)
    write_recipe_summary(out, summary)
    run.summary(
        {
            f"{step}/{model}/{name}": value
            for step, benchmarks in summary.items()
            for model, figures in next(iter(benchmarks.values())).models.items()
            for name, value in figures.numbers().items()
        }
    )


def _claim_tested(
    words: Sequence[Sequence[str]], rows: dict[str, dict[str, dict[str, Runs]]], settings: Evaluate
) -> dict[str, BenchmarkResults]:
    """The claim's table and tests, by benchmark."""
    named = {field: [name for other, name in words if other == field] for field, _ in words}
    evaluations = named["of"]
    apart = tuple(named.get("apart", ()))
    claim = Claim(start=named["start"][0], model=named["model"][0], evaluations=tuple(evaluations), apart=apart)
    return {
        benchmark: claim_results({step: rows[step].get(benchmark, {}) for step in evaluations}, claim, settings)
        for benchmark in rows[evaluations[0]]
    }


def _results(models: dict[str, Runs], settings: Evaluate) -> BenchmarkResults:
    figures = {name: summarise_seeds(runs, settings) for name, runs in models.items()}
    # A recipe's steps have its seeds, in the same order: with them the start, and the order of the prompts.
    several = len({len(runs) for runs in models.values()}) == 1
    return BenchmarkResults(figures, compare_models(models, settings, by_seed=several))


if __name__ == "__main__":
    main("summary", work)
