"""The last step of a recipe: its evaluations, one seed or several, as pipelines/recipes/<name>/summary.json."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mathrl.core.files import write_json
from mathrl.core.types import EvalRow
from mathrl.evaluation.intervals import cluster_interval
from mathrl.evaluation.responses import read_runs
from mathrl.evaluation.runs import compare_runs, seeds_interval
from mathrl.evaluation.summary import accuracies, values_of
from mathrl.params.evaluate import Evaluate
from mathrl.stages.stage_run import StageRun

Run = dict[str, float]


def summarise(run: StageRun, *, evaluated: Sequence[Sequence[str]], out: Path) -> None:
    """Write `out` from the folders of evaluate steps: pairs of the step's name and a folder, one a seed.

    Example of what is written:
        {"test": {"test": {"models": {"sft": {"seeds": 3, "problems": 500, "samples": 8, "pass_at_1": 0.41,
         "pass_at_1_low": 0.35, "pass_at_1_high": 0.47, …}}, "order": ["sft", …],
         "comparisons": {"sft_to_rl": {…}}}}}
        (evaluate step, benchmark, model)
    """
    how, seed = run.params.evaluate, run.params.run.seed
    rows: dict[str, dict[str, dict[str, list[list[EvalRow]]]]] = {}
    for step, folder in evaluated:
        for each in read_runs(Path(folder) / "report" / "responses.jsonl"):
            rows.setdefault(step, {}).setdefault(each.benchmark, {}).setdefault(each.label, []).append(each.rows)
    summary: dict[str, Any] = {
        step: {name: _benchmark(models, how, seed) for name, models in benchmarks.items()}
        for step, benchmarks in rows.items()
    }
    write_json(out, summary)
    figures = {
        f"{step}/{model}/{name}": float(value)
        for step, benchmarks in summary.items()
        for model, each in next(iter(benchmarks.values()))["models"].items()
        for name, value in each.items()
    }
    run.summary(figures)


def _benchmark(models: dict[str, list[list[EvalRow]]], how: Evaluate, seed: int) -> dict[str, Any]:
    """The figures of each model, and the paired tests of the first against each of the others."""
    first, *others = models
    tests = {
        f"{first}_to_{other}": compare_runs(
            first,
            other,
            [accuracies(rows) for rows in models[first]],
            [accuracies(rows) for rows in models[other]],
            confidence=how.confidence,
            resamples=how.resamples,
            seed=seed,
        ).to_row()
        for other in others
    }
    return {
        "order": list(models),
        "models": {name: figures(runs, how, seed) for name, runs in models.items()},
        "comparisons": tests,
    }


def figures(runs: Sequence[Sequence[EvalRow]], how: Evaluate, seed: int) -> dict[str, float]:
    """pass@k, maj@k, length and truncated share with intervals: over problems, and over seeds if several.

    k as in `how.ks`; where a step took more samples than the largest of them, at the powers of two as well.
    """
    samples = len(runs[0][0].correct)
    out: dict[str, float] = {"seeds": len(runs), "problems": len(runs[0]), "samples": samples}
    powers = {2**n for n in range(samples.bit_length())} if samples > max(how.ks) else set()
    ks = [k for k in sorted(powers | set(how.ks)) if 1 < k <= samples]
    for name in ("pass_at_1", *(f"{kind}_at_{k}" for k in ks for kind in ("pass", "maj"))):
        out |= _interval(name, [values_of(rows, name) for rows in runs], how, seed)
    lengths = [{row.problem_id: sum(row.lengths) / samples for row in rows} for rows in runs]
    out |= _interval("response_length", lengths, how, seed)
    cut = [{row.problem_id: sum(row.truncated) / samples for row in rows} for rows in runs]
    return out | {"truncated_share": sum(sum(each.values()) / len(each) for each in cut) / len(cut)}


def _interval(name: str, runs: Sequence[Run], how: Evaluate, seed: int) -> Run:
    share = name != "response_length"
    if len(runs) > 1:
        found = seeds_interval(runs, confidence=how.confidence)
    else:
        found = cluster_interval(
            list(runs[0].values()), confidence=how.confidence, resamples=how.resamples, seed=seed, share=share
        )
    # Over few seeds Student's t is wide; a share stays one, and a length is not negative.
    low, high = max(0.0, found.low), min(1.0, found.high) if share else found.high
    return {name: found.mean, f"{name}_low": low, f"{name}_high": high}
