"""`mathrl evaluate`: evaluate any model on any benchmark.

`mathrl evaluate --vary`: what the figures owe to the form of the prompt, decoding and the reading of answers.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import product
from math import prod
from pathlib import Path
from statistics import stdev
from typing import TYPE_CHECKING, Annotated

import typer

from mathrl.cli.options import Choices, Overrides, Presets, join_presets, with_choices
from mathrl.cli.output import AsJson, print_document, print_lines, print_table
from mathrl.compose import load_params
from mathrl.compose.checks import tool_problems
from mathrl.core.errors import UserError
from mathrl.core.paths import main_checkout
from mathrl.core.results import Comparison, ModelFigures, results_table, short_name
from mathrl.evaluation.benchmark import read_benchmark
from mathrl.evaluation.compare import compare_pair, holm
from mathrl.evaluation.responses import read_run
from mathrl.params.evaluate import TEST
from mathrl.params.load import parse_yaml
from mathrl.params.messages import near_path
from mathrl.params.rollout import Bubblewrap, NoTool
from mathrl.params.schema import Params
from mathrl.reading.registry import REGISTRY, newer_than
from mathrl.reports.evaluation import check_lengths, evaluate_once
from mathrl.reports.find_responses import RESPONSES

if TYPE_CHECKING:
    from mathrl.reports.probe import ProbeReport


class ToolName(StrEnum):
    """Tools of --tools."""

    PYTHON = "python"


def with_tool(params: Params) -> Params:
    """The parameters with the tool of section rollout, or with the sandbox of this machine where it has none.

    Raises:
        UserError: something that is set does not go with a tool.
    """
    rollout, prompt = params.rollout, params.prompt
    if rollout.tool.kind == "none":
        rollout = rollout.model_copy(update={"tool": Bubblewrap()})
    if rollout.turns.format == "tool_call":
        prompt = prompt.model_copy(update={"tools": "python"})
    params = params.model_copy(update={"rollout": rollout, "prompt": prompt})
    if problems := list(tool_problems(params)):
        raise UserError("; ".join(problems))
    return params


def without_tool(params: Params) -> Params:
    rollout = params.rollout.model_copy(update={"tool": NoTool()})
    return params.model_copy(update={"rollout": rollout, "prompt": params.prompt.model_copy(update={"tools": "none"})})


def print_probe(report: "ProbeReport", target: Path) -> None:
    """The table of the probe, with a verdict per score."""
    rows = [
        {
            "score": score.score,
            "problems": str(score.problems),
            "twins": str(score.twins),
            "AUC": str(score.auc),
            "mean": f"{score.own:.3f}",
            "mean of twins": f"{score.of_twins:.3f}",
            "verbatim": "" if score.verbatim is None else f"{score.verbatim:.1%} ({score.twins_verbatim:.1%})",
        }
        for score in report.scores
    ]
    print_table("contamination probe: problems against their twins", rows, left=("score",))
    lines = [f"{score.score}: {score.verdict}" for score in report.scores]
    print_lines([*lines, *(f"{name}: not probed, {why}" for name, why in report.missing.items())])
    print(f"probe: {target}/probe.json")


def evaluate(
    model: Annotated[str, typer.Option(help="Hugging Face model folder or hub id; with --endpoint its name there.")],
    benchmark: Annotated[
        list[str] | None,
        typer.Option(help="test (the curated split), a name such as gsm8k, a file, or hub's owner/name:config:split."),
    ] = None,
    field: Annotated[
        list[str] | None, typer.Option(help="A field of the benchmark's rows, e.g. answer_key=gold; repeatable.")
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="OpenAI-compatible URL of the model, such as http://localhost:8000/v1.")
    ] = None,
    choices: Choices = None,
    presets: Presets = None,
    overrides: Overrides = None,
    limit: Annotated[int | None, typer.Option(help="Maximum number of problems.")] = None,
    samples: Annotated[int | None, typer.Option(help="Responses per problem.")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder for figures, responses and pictures.")] = None,
    tools: Annotated[
        ToolName | None,
        typer.Option(help="Also evaluate with this tool: Python code that a response calls is run in a sandbox."),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(help="Evaluate with each value, as 'prompt.template=[plain, boxed]'; several: all combinations."),
    ] = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="Also probe whether the benchmark's problems were in the training data.")
    ] = False,
    twins: Annotated[int, typer.Option(min=1, help="--probe: twins that each problem is compared with.")] = 2,
    as_json: AsJson = False,
) -> None:
    """Evaluate a model on benchmarks: pass@1 with its interval, pass@k, maj@k; with --tools without and with them."""
    overrides = with_choices(choices, overrides)
    if probe and (vary or tools is not None):
        raise UserError("--probe goes with neither --vary nor --tools; probe the model in a command of its own")
    if vary and tools is not None:
        raise UserError("--vary and --tools exclude each other; vary rollout.tool.kind to compare tools")
    local = Path(model).resolve()  # relative to the current folder, not to the checkout
    target = output.absolute() if output else None
    if (
        endpoint is None
        and not local.exists()
        and ((local.parent.is_dir() and local.parent != Path.cwd()) or Path(model).is_absolute())
    ):
        raise UserError(
            f"{model}: no such folder{near_path(Path(model))}; give a Hugging Face model folder or a hub id"
        )
    given = [_from_checkout(each) for each in benchmark or ()]
    os.chdir(main_checkout())
    options = {"evaluate.limit": limit, "evaluate.samples": samples}
    settings = [f"{name}={value}" for name, value in options.items() if value is not None]
    settings += [f"evaluate.benchmarks={json.dumps(given)}"] if given else []
    if endpoint is not None:
        if probe or tools is not None:
            raise UserError("--endpoint goes with neither --probe nor --tools")
        settings = [f"evaluate.endpoint.endpoint={endpoint}", f"evaluate.endpoint.model={model}", *settings]
    preset = join_presets(presets)
    params = load_params(preset=preset, overrides=[*(overrides or ()), *settings])
    benchmarks = params.evaluate.benchmarks
    if field:
        from mathrl.cli.inspect import given_keys  # numpy: --help answers without it

        settings.append(f"evaluate.fields={json.dumps(dict.fromkeys(benchmarks, given_keys(field)))}")
        params = load_params(preset=preset, overrides=[*(overrides or ()), *settings])
    if len(benchmarks) > 1 and (probe or vary):
        raise UserError(f"{'--vary' if vary else '--probe'} goes with one benchmark; choose it with --benchmark")
    name, started_from = Path(model).name, params.model.base.path if params.model.base.type == "pretrained" else ""
    if endpoint is None and not local.exists() and Path(started_from).is_absolute() and Path(started_from).name == name:
        raise UserError(f"{model}: no such folder here (did you mean {started_from}?)")
    start = local if local.exists() and endpoint is None else model
    typed = [*(overrides or ()), *settings]
    if vary:
        changed = {label: [*typed, *changes] for label, changes in combinations(vary).items()}
        varied = {label: load_params(preset=preset, overrides=changes) for label, changes in changed.items()}
        _look_at(start, benchmarks[0], [(varied[label], changes) for label, changes in changed.items()])
        evaluate_settings(start, benchmarks[0], varied, target or _target(name, benchmarks[0]), as_json)
        return
    every = {}
    for each in benchmarks:  # a mistake in the last one is told before the first is sampled
        inside = target / short_name(each) if target and len(benchmarks) > 1 else target
        runs = _runs(name, params, inside or _target(name, each), tools)
        every[each] = runs
        _look_at(start, each, [(settings, typed) for settings, _ in runs.values()])
    documents = []
    for each, runs in every.items():
        results = {label: evaluate_once(start, each, *run) for label, run in runs.items()}
        report, folder = None, runs[name][1]
        if probe:
            from mathrl.reports.probe import probe_benchmark  # torch: --help answers without it

            report = probe_benchmark(start, each, params, folder, twins)
        if as_json:
            outputs = {label: str(folder) for label, (_, folder) in runs.items()}
            rows = {label: figures.to_row() for label, figures in results.items()}
            documents.append({"benchmark": each, "models": rows, "outputs": outputs, "probe": report})
        else:
            _print_results(each, results, [folder for _, folder in runs.values()], report, params)
    if as_json:
        print_document(documents[0] if len(documents) == 1 else {"evaluations": documents})
    elif TEST in benchmarks and started_from and started_from in (model, str(local)):
        print("next: mathrl plan    (memory, time and learning rates of the run, and whether RL would start)")


def _from_checkout(benchmark: str) -> str:
    """A benchmark as parameters name it: a file of the current folder by its path from the checkout."""
    path = Path(benchmark).absolute()
    if benchmark in REGISTRY or benchmark == TEST or not path.exists():
        return benchmark
    return str(path.relative_to(main_checkout()) if path.is_relative_to(main_checkout()) else path)


def _target(model: str, benchmark: str) -> Path:
    return Path("reports") / "evaluations" / f"{model}-{short_name(benchmark)}"


def _runs(name: str, params: Params, target: Path, tools: ToolName | None) -> dict[str, tuple[Params, Path]]:
    """The evaluations of one model, by their labels: parameters and folder."""
    if tools is None:
        return {name: (params, target)}
    with_it = (with_tool(params), target.with_name(f"{target.name}-{tools}"))
    return {name: (without_tool(params), target), f"{name} + {tools}": with_it}


def _print_results(
    benchmark: str,
    results: Mapping[str, ModelFigures],
    folders: Sequence[Path],
    report: "ProbeReport | None",
    params: Params,
) -> None:
    for row in results_table(results):
        print("  ".join(f"{column} {cell}" for column, cell in {"benchmark": benchmark, **row}.items()))
    figures, base = next(iter(results.values())), params.model.base
    if report is not None:
        print_probe(report, folders[0])
    if newer := newer_than(benchmark, base.released if base.type == "pretrained" else None):
        print(f"{benchmark} is {newer}: its problems cannot have been in the model's training data")
    if figures.prompts_too_long:
        print(f"{figures.prompts_too_long} prompts are longer than prompt.max_tokens and were left out")
    print(f"figures, responses and pictures: {', '.join(map(str, folders))}")


def _look_at(model: Path | str, benchmark: str, settings: Sequence[tuple[Params, Sequence[str]]]) -> None:
    """Print what a person should know of the benchmark before anything is sampled; refuse lengths that cut it off.

    Args:
        settings: Parameters of evaluations, with what was typed for each.
    """
    warned, read = [], read_benchmark(benchmark, settings[0][0])
    for params, typed in settings if settings[0][0].evaluate.endpoint is None else ():  # no tokenizer is here
        warned += check_lengths(model, benchmark, params, read.problems, typed)
    for line in dict.fromkeys([*read.notes(benchmark), *(f"warning: {line}" for line in warned)]):
        print(line, file=sys.stderr)


MOST = 64  # combinations of values


def combinations(varied: Sequence[str]) -> dict[str, list[str]]:
    """The overrides of every combination, by its name; the first of each parameter is what others are compared with.

    >>> combinations(["prompt.template=[plain, boxed]"])
    {'template=plain': ['prompt.template="plain"'], 'template=boxed': ['prompt.template="boxed"']}

    Raises:
        UserError: not KEY=[VALUE, VALUE, …], a parameter or a value twice, or too many combinations.
    """
    values: dict[str, dict[str, str]] = {}  # by their names, as JSON: an override reads the same value
    for text in varied:
        key, equals, listed = text.partition("=")
        choices = parse_yaml(listed, f"--vary {text}") if equals else None
        if not key or not isinstance(choices, list) or len(choices) < 2:
            raise UserError(f"--vary {text}: write KEY=[VALUE, VALUE], such as prompt.template=[plain, boxed]")
        if key in values:
            raise UserError(f"--vary {text}: {key} is varied twice; write its values in one list")
        written = [json.dumps(choice, ensure_ascii=False, default=str) for choice in choices]
        values[key] = {value.strip('"'): value for value in written}
        if len(values[key]) < len(choices):
            raise UserError(f"--vary {text}: a value is listed twice; list each once")
    if (count := prod(map(len, values.values()))) > MOST:
        raise UserError(f"--vary asks for {count} evaluations, more than {MOST}; leave out values")
    named = {}
    for chosen in product(*(named_values.items() for named_values in values.values())):
        pairs = list(zip(values, chosen, strict=True))
        name = ", ".join(f"{key.rpartition('.')[2]}={short}" for key, (short, _) in pairs)
        named[name] = [f"{key}={value}" for key, (_, value) in pairs]
    return named


def evaluate_settings(
    model: Path | str, benchmark: str, settings: Mapping[str, Params], target: Path, as_json: bool = False
) -> None:
    """Evaluate a model with every setting, in folders of `target` by number, and print what they change."""
    results, rows_of = {}, {}
    for number, (name, params) in enumerate(settings.items()):
        results[name] = evaluate_once(model, benchmark, params, target / str(number))
        rows_of[name] = [read_run(target / str(number) / RESPONSES, None, None).rows]
    first, *others = results
    confidence = next(iter(settings.values())).evaluate.confidence
    tests = {
        name: compare_pair((first, name), (rows_of[first], rows_of[name]), settings[first].evaluate) for name in others
    }
    corrected = dict(zip(tests, holm([test.p_value for test in tests.values()]), strict=True))
    if as_json:
        documents = [
            {"setting": name, "output": f"{target}/{number}", "figures": figures.to_row()}
            | {"comparison": tests[name].to_row() | {"corrected_p": corrected[name]} if name in tests else None}
            for number, (name, figures) in enumerate(results.items())
        ]
        print_document({"model": str(model), "benchmark": benchmark, "settings": documents})
        return
    rows = [_row(name, figures, tests.get(name), corrected.get(name)) for name, figures in results.items()]
    print_table(f"pass@1 by setting, {results[first].problems:,} problems", rows, left=("setting",))
    means = [figures.pass_at_1.mean for figures in results.values()]
    shown = [name for name, p in corrected.items() if p < 1 - confidence]
    spread = f"{min(means):.3f} to {max(means):.3f}, standard deviation {stdev(means):.3f}"
    print_lines(
        [
            f"over {len(means)} settings: {spread}",
            f"different from {first} beyond chance: {'; '.join(shown) or 'none'}",
            f"responses: {target}/0 to {target}/{len(means) - 1}",
        ]
    )


def _row(name: str, figures: ModelFigures, test: Comparison | None, corrected_p: float | None) -> dict[str, str]:
    difference = f"{test.difference:+.3f} [{test.low:+.3f}, {test.high:+.3f}]" if test else ""
    return {
        "setting": name,
        "pass@1": str(figures.pass_at_1),
        "length": f"{figures.response_length:.1f}",
        "truncated": f"{figures.truncated_share:.1%}",
        "difference from the first": difference,
        "p, corrected": "" if corrected_p is None else f"{corrected_p:.4f}",
    }
