"""evaluate: base, SFT and RL models on held-out problems. `python -m mathrl.stages.evaluate`.

Writes reports/summary.json (figures, paired tests, verdict), reports/metrics.json (the few figures that DVC shows) and
reports/evaluate/: responses.jsonl (every response), examples.md, accuracy.png, pass_at_k.png, levels.png. An
interrupted run resumes from the chunks that it has finished.
"""

import shutil
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from mathrl.core.environment import rank
from mathrl.core.errors import UserError
from mathrl.core.files import write_json, write_jsonl, write_text, written_aside
from mathrl.core.hashing import digest_path
from mathrl.core.metrics import progress
from mathrl.core.paths import CURATED_SFT, CURATED_TEST
from mathrl.core.results import PIPELINE, BenchmarkResults, EvaluationSummary
from mathrl.core.types import Problem
from mathrl.evaluation.benchmark import EvaluatedModel, digest_problems, prompt_of, read_benchmark
from mathrl.evaluation.compare import compare_models, verdict_of
from mathrl.params import Params
from mathrl.params.evaluate import TEST
from mathrl.reading.sources import INPUTS, link, of_sources, resolve_benchmark
from mathrl.reports.evaluation import FIELDS, draw, figures_of
from mathrl.reports.pictures import examples_markdown, side_by_side
from mathrl.stages.command import main
from mathrl.stages.stage_run import StageRun

MODELS = {name: Path("models") / name for name in PIPELINE}
SUMMARY, METRICS, REPORT = Path("reports/summary.json"), Path("reports/metrics.json"), Path("reports/evaluate")


def files(params: Params) -> dict[str, Path]:
    """The benchmarks' files outside the checkout, by the names of their links in data/inputs."""
    settings = params.evaluate
    names = [*settings.benchmarks, *([settings.few_shot_from] if "." in settings.few_shot_from else [])]
    return of_sources(resolve_benchmark(name, settings.data_folder) for name in names if name != TEST)


def work(
    run: StageRun,
    *,
    models: Mapping[str, Path] = MODELS,
    examples: Path = CURATED_SFT,
    test: Path = CURATED_TEST,
    summary_file: Path = SUMMARY,
    metrics_file: Path | None = None,
    report: Path = REPORT,
) -> None:
    """Evaluate the model folders of `models` by their labels; `test` and `examples` are the splits' files."""
    params = run.params
    if params.evaluate.endpoint is not None:
        raise UserError(
            "evaluate.endpoint is of the command `mathrl evaluate`: this stage evaluates folders; set it to null here"
        )
    # torch: not before the inputs have been checked.
    from mathrl.models.device import choose_device, hardware_of
    from mathrl.models.load import load_tokenizer
    from mathrl.rollout.choices import choose_engine
    from mathrl.rollout.resolve import has_gpu_vllm

    hardware = hardware_of(choose_device(params.run.device))
    run.record_resolved(choose_engine(params.rollout, params.model, hardware, has_gpu_vllm()))
    if TEST in params.evaluate.benchmarks:
        run.dataset(TEST, test)
    start = next(iter(models.values()))
    evaluated: dict[str, list[EvaluatedModel]] = {}
    guessed = {}
    for benchmark in params.evaluate.benchmarks:
        read = read_benchmark(benchmark, params, test)
        problems = read.problems
        if read.fields:
            guessed[benchmark] = read.to_row()
        for note in read.notes(benchmark) if rank() == 0 else ():
            print(note, file=sys.stderr, flush=True)
        if benchmark != TEST:
            run.dataset(benchmark, INPUTS / "evaluate", digest_problems(problems))
        asked, few_shot = prompt_of(benchmark, params, problems, examples)
        if start.is_dir():  # else it is refused by name below
            run.check_lengths(problems, partial(load_tokenizer, start, params.model), few_shot)
        evaluated[benchmark] = _evaluate_all(models, problems, benchmark, asked, few_shot, run.state)
    if rank() != 0:
        return
    summary = summary_of(evaluated, params)
    responses = [row for results in evaluated.values() for result in results for row in result.responses]
    shown = [row for row in responses if row["benchmark"] == summary.benchmark]
    rows = side_by_side(shown, list(models), params.evaluate.examples, params.run.seed)
    with written_aside(report) as folder:
        folder.mkdir()
        write_jsonl(folder / "responses.jsonl", responses)
        write_text(folder / "examples.md", examples_markdown(rows, list(models), summary.benchmark))
        if guessed:
            write_json(folder / FIELDS, guessed)
        draw(summary, folder)
        for file in sorted(folder.glob("*.png")):
            shutil.copy(file, run.artifacts / file.name)
    write_json(run.artifacts / "examples.json", rows)
    summary.write(summary_file)
    if metrics_file is not None:
        write_json(metrics_file, summary.headline())
    run.record_measured(models, summary.benchmark)
    run.summary(flat(summary))


def _evaluate_all(
    models: Mapping[str, Path],
    problems: Sequence[Problem],
    benchmark: str,
    params: Params,
    few_shot: Sequence[Problem],
    state: Path | None,
) -> list[EvaluatedModel]:
    """Every model on one benchmark; folders with the same bytes are sampled once."""
    from mathrl.evaluation.evaluate_model import evaluate_model  # torch

    done: dict[str, EvaluatedModel | None] = {}  # None at ranks other than 0, which skip a repeated model all the same
    results: list[EvaluatedModel] = []
    for model, folder in models.items():
        if not folder.is_dir():
            raise UserError(f"{folder}: it has no model; run the stage that writes it (mathrl run pipeline)")
        key = digest_path(folder)
        if key not in done:
            with progress(f"evaluate {model} on {benchmark}", len(problems) * params.evaluate.samples) as bar:
                done[key] = evaluate_model(
                    folder,
                    benchmark,
                    problems,
                    params,
                    label=model,
                    few_shot=few_shot,
                    state=None if state is None else state / key,
                    on_progress=bar.advance,
                )
        result = done[key]
        if result is not None:
            results.append(result.relabel(model))
    return results


def summary_of(evaluated: Mapping[str, Sequence[EvaluatedModel]], params: Params) -> EvaluationSummary:
    """The summary of every benchmark, the first of evaluate.benchmarks leading."""
    settings = params.evaluate
    results = {}
    for benchmark, models in evaluated.items():
        tests = compare_models({model.model: [model.rows] for model in models}, settings)
        figures = {model.model: figures_of(model, params) for model in models}
        results[benchmark] = BenchmarkResults(figures, tests)
    leading = results[settings.benchmarks[0]]
    sampling = ("samples", "temperature", "top_p", "max_tokens", "confidence")
    return EvaluationSummary(
        settings.benchmarks[0],
        results,
        verdict_of(list(leading.models), leading.comparisons),
        {name: getattr(settings, name) for name in sampling},
    )


def flat(summary: EvaluationSummary) -> dict[str, float]:
    """Figures for the tracker: rl/pass_at_1, rl/response_length, sft_to_rl/difference, …"""
    figures = {
        f"{model}/{name}": value for model, row in summary.models.items() for name, value in row.numbers().items()
    }
    for name, test in summary.comparisons.items():
        figures |= {f"{name}/{key}": float(getattr(test, key)) for key in ("difference", "low", "high", "p_value")}
    return figures


if __name__ == "__main__":
    read = [*MODELS.values(), CURATED_TEST, CURATED_SFT, INPUTS / "evaluate"]
    main(
        "evaluate",
        partial(work, metrics_file=METRICS),
        inputs=read,
        outputs=[SUMMARY, METRICS, REPORT],
        before=lambda params: link("evaluate", files(params)),
    )
