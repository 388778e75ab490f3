"""evaluate: base, SFT and RL models on held-out problems. `python -m mathrl.stages.evaluate`.

Writes reports/summary.json (figures, paired tests, verdict) and reports/evaluate/: responses.jsonl (every
response), examples.md, accuracy.png, pass_at_k.png, levels.png. Resumes from the chunks that an interrupted
run finished.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.files import write_json, write_jsonl, write_text, written_aside
from mathrl.core.hashing import digest, digest_path
from mathrl.core.launch import launch_ranks, rank, world_size
from mathrl.core.paths import CURATED_SFT, CURATED_TEST
from mathrl.core.progress import progress
from mathrl.core.types import Problem
from mathrl.data.inputs import INPUTS, link, of_sources
from mathrl.data.sft_sets import few_shot_examples
from mathrl.data.sources import resolve_benchmark
from mathrl.evaluation.benchmark import Evaluated, benchmark_problems, evaluate_model
from mathrl.evaluation.summary import comparisons, summarise
from mathrl.params import Params
from mathrl.params.evaluate import TEST
from mathrl.reports.evaluation import draw
from mathrl.reports.examples import examples_markdown, side_by_side
from mathrl.stages.stage_run import StageRun, run_stage

MODELS = {name: Path("models") / name for name in ("base", "sft", "rl")}
SUMMARY, REPORT = Path("reports/summary.json"), Path("reports/evaluate")


def files(params: Params) -> dict[str, Path]:
    """The benchmarks' files outside the checkout, by the names of their links in data/inputs."""
    how = params.evaluate
    return of_sources(resolve_benchmark(name, how.data_folder) for name in how.benchmarks if name != TEST)


def work(run: StageRun) -> None:
    measure(run, models=MODELS, examples=CURATED_SFT, test=CURATED_TEST, summary_file=SUMMARY, report=REPORT)


def measure(
    run: StageRun, *, models: Mapping[str, Path], examples: Path, test: Path, summary_file: Path, report: Path
) -> None:
    """Evaluate the model folders of `models` by their labels; `test` and `examples` are the splits' files."""
    params = run.params
    launch_ranks(params.run.processes, params.run.device, fewer=True)
    if TEST in params.evaluate.benchmarks:
        run.dataset(TEST, test)
    few_shot = few_shot_examples(params.prompt, examples)
    found: dict[str, list[Evaluated]] = {}
    for benchmark in params.evaluate.benchmarks:
        problems = benchmark_problems(benchmark, params, test)
        if benchmark != TEST:
            asked = [[problem.id, problem.question, list(problem.answers)] for problem in problems]
            run.dataset(benchmark, INPUTS / "evaluate", digest(asked))
        found[benchmark] = _evaluate_all(models, problems, benchmark, params, few_shot, run.state)
    if rank() != 0:
        return
    summary = summary_of(found, params)
    responses = [row for results in found.values() for result in results for row in result.responses]
    headline = params.evaluate.benchmarks[0]
    shown = [row for row in responses if row["benchmark"] == headline]
    told = side_by_side(shown, list(models), params.evaluate.examples, params.run.seed)
    with written_aside(report) as folder:
        folder.mkdir()
        write_jsonl(folder / "responses.jsonl", responses)
        write_text(folder / "examples.md", examples_markdown(told, list(models), headline))
        draw(summary, folder)
        for file in sorted(folder.glob("*.png")):
            shutil.copy(file, run.artifacts / file.name)
    write_json(run.artifacts / "examples.json", told)
    write_json(summary_file, summary)
    run.measured(models, headline)
    run.summary(flat(summary))


def _evaluate_all(
    models: Mapping[str, Path],
    problems: Sequence[Problem],
    benchmark: str,
    params: Params,
    few_shot: Sequence[Problem],
    state: Path | None,
) -> list[Evaluated]:
    """Every model on one benchmark; folders with the same bytes are sampled once."""
    done: dict[str, Evaluated] = {}
    results: list[Evaluated] = []
    for model, folder in models.items():
        if not folder.is_dir():
            raise UserError(f"{folder}: no model there; run the stage that makes it (mathrl run pipeline)")
        key = digest_path(folder)
        if key in done:
            results.append(done[key].relabelled(model))
            continue
        with progress(f"evaluate {model} on {benchmark}", len(problems) * params.evaluate.samples) as bar:
            result = evaluate_model(
                folder,
                benchmark,
                problems,
                params,
                label=model,
                few_shot=few_shot,
                state=state,
                on_progress=lambda count, bar=bar: bar.advance(count * world_size()),  # type: ignore[misc]
            )
        if result is not None:
            done[key] = result
            results.append(result)
    return results


def summary_of(found: dict[str, list[Evaluated]], params: Params) -> dict[str, Any]:
    """reports/summary.json: the first benchmark's figures at the top, all under `benchmarks`."""
    how, seed = params.evaluate, params.run.seed
    benchmarks: dict[str, Any] = {}
    for benchmark, results in found.items():
        tests = comparisons({r.model: r.rows for r in results}, how, seed)
        benchmarks[benchmark] = {
            "models": {r.model: summarise(r.rows, how, seed) | {"prompts_too_long": r.dropped} for r in results},
            "comparisons": {name: test.to_row() for name, test in tests.items()},
        }
    headline = how.benchmarks[0]
    tests = benchmarks[headline]["comparisons"]
    verdict = tests["sft_to_rl"]["verdict"] if "sft_to_rl" in tests else "one model: nothing to compare"
    sampling = {
        "samples": how.samples,
        "temperature": how.temperature,
        "top_p": how.top_p,
        "max_tokens": how.max_tokens,
        "confidence": how.confidence,
    }
    others = {name: figures for name, figures in benchmarks.items() if name != headline}
    head = {"benchmark": headline, "verdict": verdict, "sampling": sampling}
    return {**head, **benchmarks[headline], "benchmarks": others}


def flat(summary: dict[str, Any]) -> dict[str, float]:
    """Figures for the tracker: rl/pass_at_1, rl/response_length, sft_to_rl/difference, …"""
    out: dict[str, float] = {}
    for model, figures in summary["models"].items():
        out |= {f"{model}/{k}": float(v) for k, v in figures.items() if isinstance(v, int | float)}
    for name, test in summary["comparisons"].items():
        out |= {f"{name}/{k}": float(test[k]) for k in ("difference", "low", "high", "p_value")}
    return out


if __name__ == "__main__":
    read = [*MODELS.values(), CURATED_TEST, CURATED_SFT, INPUTS / "evaluate"]
    run_stage(
        "evaluate", work, inputs=read, outputs=[SUMMARY, REPORT], before=lambda params: link("evaluate", files(params))
    )
