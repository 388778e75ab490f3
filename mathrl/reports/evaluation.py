"""One model on one benchmark outside the pipeline: figures, responses, examples and pictures in a folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mathrl.core.files import write_json, write_jsonl, write_text, written_aside
from mathrl.core.paths import CURATED_SFT
from mathrl.core.progress import progress
from mathrl.core.types import Problem
from mathrl.data.sft_sets import few_shot_examples
from mathrl.evaluation.benchmark import benchmark_problems, evaluate_model
from mathrl.evaluation.summary import summarise
from mathrl.params import Params
from mathrl.reports.examples import examples_markdown, side_by_side, table_rows


def evaluate_once(
    model: Path | str, benchmark: str, params: Params, output: Path, *,
    problems: Sequence[Problem] | None = None, examples: Path = CURATED_SFT,
) -> dict[str, Any]:  # fmt: skip
    """Any Hugging Face model folder on one benchmark, outside the pipeline: summary.json, responses.jsonl and
    pictures in `output`. `problems` are the benchmark's where they are known, `examples` the split with the
    worked ones. Returns the figures, with the printable row under `row`.

    Raises:
        UserError: no such benchmark, no model there, or every prompt too long.
    """
    problems = benchmark_problems(benchmark, params) if problems is None else problems
    few_shot = few_shot_examples(params.prompt, examples)
    label = Path(str(model)).name
    with progress(f"evaluate {label} on {benchmark}", len(problems) * params.evaluate.samples) as bar:
        result = evaluate_model(model, benchmark, problems, params, label=label, few_shot=few_shot,
                                on_progress=bar.advance)  # fmt: skip
    assert result is not None, "evaluate_once runs in one process"
    figures = summarise(result.rows, params.evaluate, params.run.seed) | {"prompts_too_long": result.dropped}
    summary = {"benchmark": benchmark, "models": {label: figures}, "comparisons": {}, "benchmarks": {}}
    with written_aside(output) as folder:
        folder.mkdir()
        write_json(folder / "summary.json", summary)
        write_jsonl(folder / "responses.jsonl", result.responses)
        told = side_by_side(result.responses, [label], params.evaluate.examples, params.run.seed)
        write_text(folder / "examples.md", examples_markdown(told, [label], benchmark))
        draw(summary, folder)
    return figures | {"model": label, "benchmark": benchmark, "row": table_rows({label: figures})[0]}


def draw(summary: dict[str, Any], folder: Path) -> None:
    """The pictures of the first benchmark, and of the others under their names."""
    from mathrl.reports.pictures import draw_accuracy, draw_levels, draw_pass_at_k  # matplotlib

    named = {summary["benchmark"]: summary, **summary["benchmarks"]}
    for place, (benchmark, figures) in enumerate(named.items()):
        models, end = figures["models"], "" if place == 0 else f"_{benchmark}"
        draw_accuracy(models, folder / f"accuracy{end}.png", f"Accuracy on {benchmark}")
        draw_pass_at_k(models, folder / f"pass_at_k{end}.png", f"pass@k and maj@k on {benchmark}")
        for by, name in (("by_level", "levels"), ("by_subject", "subjects")):
            if any(model[by] for model in models.values()):
                draw_levels(models, folder / f"{name}{end}.png", f"pass@1 on {benchmark}", by)
