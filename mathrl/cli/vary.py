"""`mathrl evaluate --vary`: what the figures owe to the form of the prompt, decoding and the reading of answers."""

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from pathlib import Path
from statistics import stdev

from mathrl.cli.output import print_document
from mathrl.cli.tables import print_lines, print_table
from mathrl.core.errors import UserError
from mathrl.core.results import Comparison, ModelFigures
from mathrl.evaluation.compare import compare_pair, holm
from mathrl.evaluation.responses import read_run
from mathrl.params import Params
from mathrl.params.load import parse_yaml
from mathrl.reports.evaluation import evaluate_once
from mathrl.reports.find_responses import RESPONSES

MOST = 64  # combinations of values


def combinations(varied: Sequence[str]) -> dict[str, list[str]]:
    """The overrides of every combination, by its name; the first of each parameter is what others are compared with.

    >>> combinations(["prompt.template=[plain, boxed]"])
    {'template=plain': ['prompt.template=plain'], 'template=boxed': ['prompt.template=boxed']}

    Raises:
        UserError: not KEY=[VALUE, VALUE, …], a parameter twice, or too many combinations.
    """
    values: dict[str, list[str]] = {}
    for text in varied:
        key, equals, listed = text.partition("=")
        choices = parse_yaml(listed, f"--vary {text}") if equals else None
        if not key or not isinstance(choices, list) or len(choices) < 2:
            raise UserError(f"--vary {text}: write KEY=[VALUE, VALUE], such as prompt.template=[plain, boxed]")
        if key in values:
            raise UserError(f"--vary {text}: {key} is varied twice; write its values in one list")
        values[key] = [str(choice) for choice in choices]
    if (count := prod(map(len, values.values()))) > MOST:
        raise UserError(f"--vary asks for {count} evaluations, more than {MOST}; leave out values")
    named = {}
    for chosen in product(*values.values()):
        settings = [f"{key}={value}" for key, value in zip(values, chosen, strict=True)]
        short = [f"{key.rpartition('.')[2]}={value}" for key, value in zip(values, chosen, strict=True)]
        named[", ".join(short)] = settings
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
