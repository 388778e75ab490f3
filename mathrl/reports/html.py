"""One HTML file about a run: verdict, curves, examples before and after, health, lineage, how to reproduce.

The card of a registered version has the same in Markdown, with what was set.

Nothing in it is loaded from anywhere. It is made from what the stages left (reports/, pipelines/recipes/NAME/STEP/) and
from their records; `mathrl runs report` writes it, and the stage register keeps one with its MLflow run.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.figures import colour
from mathrl.core.files import read_json, read_jsonl, write_text
from mathrl.core.hashing import digest_path
from mathrl.core.markdown import cell, code, table
from mathrl.core.paths import RECIPES, WORKTREE_NOTE, is_group
from mathrl.core.records import METRICS, RunRecord, all_records
from mathrl.core.results import EvaluationSummary, results_table
from mathrl.evaluation.compare import compare_models, leading_comparison, pairs, verdict_of
from mathrl.evaluation.forecast import forecast_sentences
from mathrl.evaluation.responses import read_run
from mathrl.params import Params
from mathrl.params.load import dump_yaml
from mathrl.params.schema import SECTIONS
from mathrl.reading.registry import newer_than
from mathrl.reports.find_run import TrainingMetrics, read_training_run
from mathrl.reports.html_figures import before_after, breakdowns, curves, length_and_accuracy, pass_at_k, stored_picture
from mathrl.reports.pictures import lineage_picture, render
from mathrl.tracking.lineage import GIVEN, Step
from mathrl.tracking.upload import flatten

WORST = ("unknown", "green", "yellow", "red")
# The metric that stands for how a training run ended: the first of these that it has.
FINAL = ("dev/accuracy", "reward/accuracy", "dev/judged_right", "dev/loss", "loss")

LONGEST = 4000  # characters: MLflow keeps 5000 of a description, and the gate's decision stands in it too


@dataclass(frozen=True)
class Material:
    """What a report is about: files, all below `root`.

    `outputs` are the paths whose makers the lineage begins with; `histogram` is the picture of pass rates.
    """

    title: str
    root: Path
    trained: Sequence[TrainingMetrics]
    summary: EvaluationSummary | None
    responses: Path | None
    outputs: Sequence[str]
    command: str
    histogram: Path | None = None
    overrides: Sequence[str] = field(default_factory=tuple)


def pipeline_material(root: Path) -> Material:
    """The material of the default pipeline in a checkout or in a run under runs/."""
    stages = [root / "reports" / name for name in ("sft", "rl")]
    summary, responses = root / "reports" / "summary.json", root / "reports" / "evaluate" / "responses.jsonl"
    note = root / WORKTREE_NOTE
    worktree = read_json(note) if note.is_file() else {}
    overrides = [str(override) for override in worktree.get("overrides", ())]
    return Material(
        f"mathrl {root.name}" if worktree else "mathrl pipeline",
        root,
        [read_training_run(folder) for folder in stages if _has_steps(folder)],
        EvaluationSummary.read(summary) if summary.is_file() else None,
        responses if responses.is_file() else None,
        [path for path in ("models/rl", "reports/evaluate", "models/sft") if (root / path).exists()],
        f"mathrl run {worktree.get('run', 'pipeline')}",
        root / "reports" / "difficulty" / "histogram.png",
        overrides,
    )


def step_material(root: Path, recipe: str, step: str) -> Material:
    """The material of a recipe's step: an evaluation with the models that it compares, or a model that was trained."""
    folder = root / RECIPES / recipe
    summary = folder / step / "summary.json"
    evaluated = _summary_of_step(summary)
    names = list(evaluated.models) if evaluated else [step]
    reports = [folder / name / "report" for name in names]
    responses = folder / step / "report" / "responses.jsonl"
    return Material(
        f"{recipe}/{step}",
        root,
        [read_training_run(report) for report in reports if _has_steps(report)],
        evaluated,
        responses if responses.is_file() else None,
        [f"pipelines/recipes/{recipe}/{step}"],
        f"mathrl recipe {recipe}",
    )


def record_material(folder: Path) -> Material:
    """The material of a record without outputs in a checkout: a run that was imported from another trainer."""
    training = read_training_run(folder)
    command = f"mathrl import {shlex.quote(training.record.workspace)}" if training.record else ""
    return Material(training.name, folder, [training], None, None, [], command)


def _has_steps(report: Path) -> bool:
    """Whether a training wrote metrics there; one of 0 steps passes its start on and leaves an empty file."""
    file = report / METRICS
    return file.is_file() and file.stat().st_size > 0


def _summary_of_step(file: Path) -> EvaluationSummary | None:
    """The summary of an evaluate step; other steps write a summary.json of their own."""
    return EvaluationSummary.read(file) if file.is_file() and "models" in read_json(file) else None


def write_report(material: Material, output: Path, params: Params) -> str:
    """Write the page; returns its health, the worst of the runs in it.

    Raises:
        UserError: there is neither a training run nor an evaluation.
    """
    page = page_of(material, params)
    write_text(output, render("report.html", page=page))  # responses and questions are texts of others
    return str(page["colour"])


def page_of(material: Material, params: Params) -> dict[str, Any]:
    """What the template shows."""
    if not material.trained and material.summary is None:
        raise UserError(f"no training run and no evaluation to report yet: start {material.command}")
    health = [(stage.name, stage.health()[0]) for stage in material.trained]
    colour = max((report["colour"] for _, report in health), key=WORST.index, default="unknown")
    steps, edges, complete = lineage(material)
    page: dict[str, Any] = {
        "title": material.title, "colour": colour, "health": health, "lineage": steps, "complete": complete,
        "picture": lineage_picture(steps, edges) if steps else "",
        "curves": [(stage.name, curves(stage.rows), _forecast(stage)) for stage in material.trained],
        "commands": commands(material, steps), "origin": origin(steps), "cards": cards(material),
        "params": [(step.stage, dump_yaml(step.params)) for step in steps if step.params],
        "models": [], "breakdowns": {}, "examples": [], "verdict": "not evaluated yet",
    }  # fmt: skip
    if material.summary is not None:
        page |= evaluation(material.summary, material, params)
    names = [
        ("models", "models", page["models"]),
        ("level", "levels", page["breakdowns"]),
        ("curves-1", "curves", page["curves"]),
        ("health", "health", True),
        ("examples", "examples", page["examples"]),
        ("lineage", "lineage", True),
        ("reproduce", "reproduce", True),
    ]
    return page | {"sections": [(place, name) for place, name, there in names if there]}


def _forecast(stage: TrainingMetrics) -> str:
    """The forecast of an RL run's curves, a sentence each; "" where there is none."""
    sentences = forecast_sentences(stage.record, stage.rows) if stage.record else []
    return " ".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in sentences)


def benchmark_title(benchmark: str, params: Params) -> str:
    """The benchmark's name, with a word if its problems are newer than the model."""
    base = params.model.base
    newer = newer_than(benchmark, base.released if base.type == "pretrained" else None)
    return f"{benchmark} ({newer})" if newer else benchmark


def evaluation(summary: EvaluationSummary, material: Material, params: Params) -> dict[str, Any]:
    """The part of the page about responses to the benchmark."""
    benchmark, models = summary.benchmark, summary.models
    responses = read_jsonl(material.responses) if material.responses else ()
    rows = [row for row in responses if row["benchmark"] == benchmark]
    names = [name for name in dict.fromkeys(row["model"] for row in rows) if name in models] or list(models)
    table = results_table({name: models[name] for name in names})
    page: dict[str, Any] = {
        "benchmark": benchmark_title(benchmark, params),
        "columns": list(table[0]),
        "models": table,
        "breakdowns": breakdowns(models, names),
        "colours": {name: colour(name, place) for place, name in enumerate(names)},
        "verdicts": [test.verdict() for test in summary.comparisons.values()],
        "verdict": summary.verdict,
    }
    before, after = next(iter(pairs(names)), (names[-1], names[-1]))
    page["charts"] = [
        *pass_at_k(models, names),
        *length_and_accuracy(rows, list(dict.fromkeys((before, after)))),
        *(stored_picture(material.histogram, "Pass rates before RL") if material.histogram else []),
    ]
    if len(names) > 1:
        if leading_comparison(names, summary.comparisons) is None and material.responses:
            page["verdict"] = comparison_html(material.responses, names, benchmark, params)
        if rows:
            examples, counts = before_after(rows, before, after)
            page |= {"before": before, "after": after, "examples": examples, "chosen": counts}
    return page


def comparison_html(responses: Path, names: Sequence[str], benchmark: str, params: Params) -> str:
    """The verdict on models whose evaluation made no comparison of them."""
    runs = {name: [read_run(responses, name, benchmark).rows] for name in names}
    return verdict_of(names, compare_models(runs, params.evaluate))


def cards(material: Material) -> list[tuple[str, str, str]]:
    """The figures at the top: (what, value, a note)."""
    figures = []
    summary = material.summary
    if summary is not None and (test := leading_comparison(list(summary.models), summary.comparisons)) is not None:
        before, after = summary.models[test.before], summary.models[test.after]
        figures.append(("pass@1", f"{after.pass_at_1.mean:.3f}", f"{test.before}: {before.pass_at_1.mean:.3f}"))
        figures.append(("difference", f"{test.difference:+.3f}", f"{test.low:+.3f} to {test.high:+.3f}"))
        k = max(before.pass_at_k.keys() & after.pass_at_k.keys())
        if k > 1:
            note = f"{test.before}: {before.pass_at_k[k].mean:.3f}"
            figures.append((f"pass@{k}", f"{after.pass_at_k[k].mean:.3f}", note))
        note = f"{test.before}: {before.response_length:.1f} tokens"
        figures.append(("mean length", f"{after.response_length:.1f}", note))
        figures.append(("problems", str(after.problems), f"{after.samples} responses each"))
    for stage in material.trained:
        last = stage.rows[-1]
        metric = next((name for name in FINAL if name in last), None)
        note = f"{metric} {last[metric]:.3f} at the end" if metric else ""
        figures.append((f"steps of {stage.name}", f"{last['step']:,.0f}", note))
    return figures


def lineage(material: Material) -> tuple[list[Step], list[tuple[str, str, str]], str]:
    """The way back through this machine's records: steps, edges, and in words whether it is complete."""
    makers: dict[tuple[str, str], RunRecord] = {}
    by_digest: dict[str, RunRecord] = {}  # another trainer may have read a copy
    for record in all_records():
        for path, digest in record.outputs.items():
            makers[path, digest] = by_digest[digest] = record
    steps: dict[str, Step] = {}
    edges: list[tuple[str, str, str]] = []
    missing: list[str] = []
    ahead = [(path, digest_path(material.root / path), "") for path in material.outputs]
    for record in imported_records(material):
        checkpoints = dict.fromkeys(record.resolved.get("checkpoints", {}).values(), "")
        steps[record.key] = Step(record.key, record.name, "", False, record.params, record.inputs, checkpoints, {})
        ahead += [(path, digest, record.key) for path, digest in record.inputs.items()]
    while ahead:
        path, digest, reader = ahead.pop(0)
        maker = makers.get((path, digest)) or (by_digest.get(digest) if Path(path).is_absolute() else None)
        if maker is None:
            missing.append(f"{path} ({digest})")
            continue
        key = maker.key
        if reader:
            edges.append((key, path, reader))
        if key in steps:
            continue
        outputs = {p: d for p, d in maker.outputs.items() if "/" not in p or p.count("/") == 1 or p in material.outputs}
        read = {p: d for p, d in maker.inputs.items() if not p.startswith(GIVEN)}
        sources = {p: d for p, d in maker.inputs.items() if p.startswith(GIVEN)}
        steps[key] = Step(
            key, maker.name, maker.commit, maker.dirty, maker.params, read, outputs, sources, code=maker.code
        )
        ahead += [(path, digest, key) for path, digest in read.items()]
    counted = f"{len(steps)} stages on this machine"
    if missing:
        several = ", ".join(dict.fromkeys(missing))
        return list(steps.values()), edges, f"{counted}; not made here, or not by these records: {several}."
    return list(steps.values()), edges, f"Complete: {counted}, every input made by one of them."


def imported_records(material: Material) -> list[RunRecord]:
    """Those of its runs that another trainer made."""
    return [stage.record for stage in material.trained if stage.record is not None and stage.record.imported_from]


def origin(steps: Sequence[Step]) -> str:
    commits = dict.fromkeys(step.commit[:12] for step in steps if step.commit)
    dirty = " with uncommitted changes" if any(step.dirty for step in steps) else ""
    return f"Commit {', '.join(commits)}{dirty}" if commits else "The records of its stages are not on this machine."


def commands(material: Material, steps: Sequence[Step]) -> str:
    """The commands that reproduce the run; of another trainer's run, the one that imports it."""
    if imported_records(material):
        return material.command
    commit = next((step.commit for step in steps if step.commit), "")
    presets = [text.removeprefix("preset ") for text in material.overrides if text.startswith("preset ")]
    words = [material.command, *(f"--preset {preset}" for preset in presets)]
    words += [shlex.quote(text) for text in material.overrides if is_group(text)]
    typed = [text for text in material.overrides if not (text.startswith("preset ") or is_group(text))]
    words += [f"--set {shlex.quote(text)}" for text in typed]
    lines = [f"git checkout {commit}" if commit else "# the commit is not known on this machine"]
    if any(step.dirty for step in steps):
        lines.append("# there were uncommitted changes, which are not in that commit")
    version = next((f"=={step.code['mathrl']}" for step in steps if step.code), "")
    checkout = (material.root / "mathrl" / "stages").is_dir()
    lines.append("make install" if checkout else f"pip install -c constraints.txt 'mathrl[platform]{version}'")
    return "\n".join([*lines, " ".join(words)])


def model_card(title: str, reference: str, digest: str, material: Material) -> str:
    """The card of the version `title` ("mathrl-chain version 3"), which `reference` ("mathrl-chain:3") names.

    What was set comes last, because a long list is cut off there.
    """
    steps, _, complete = lineage(material)
    lines = [f"# {cell(title)}", ""]
    if material.summary is not None:
        lines += [f"**{cell(material.summary.verdict)}**", "", *_figures(material.summary), ""]
    lines += [f"Digest `{digest}`. {origin(steps)}.", "", "## Health", "", *_health(material), ""]
    lines += ["## Lineage", "", *_lineage(steps), "", cell(complete), ""]
    lines += ["## Reproduce", "", f"    mathrl models reproduce {reference}", "", "## Set, against the defaults", ""]
    changed = _changed_settings(steps)
    lines += [f"- {code(f'{name}: {value}')}" for name, value in changed.items()] or ["Nothing."]
    text = "\n".join(lines) + "\n"
    return text if len(text) <= LONGEST else text[: LONGEST - 24].rpartition("\n")[0] + "\n- and more: see MLflow\n"


def default_texts() -> dict[str, str]:
    """Every parameter's default as MLflow shows it: {"rl.steps": "60", …}."""
    return flatten({name: kind.model_construct().model_dump(mode="json") for name, kind in SECTIONS.items()})


def _figures(summary: EvaluationSummary) -> list[str]:
    """The table of results as Markdown."""
    rows = results_table(summary.models)
    return [f"On {cell(summary.benchmark)}:", "", *table(list(rows[0]), (list(row.values()) for row in rows))]


def _health(material: Material) -> list[str]:
    lines = []
    for stage in material.trained:
        report = stage.health()[0]
        lines.append(f"- {cell(stage.name)}: {report['colour']}")
        lines += [
            f"    - {cell(finding['rule'])} ({finding['colour']}): {cell(finding['cause'])}"
            for finding in report["findings"]
        ]
    return lines or ["No training run on this machine."]


def _lineage(steps: Sequence[Step]) -> list[str]:
    """A line per stage, sources first."""
    lines = []
    for step in reversed(steps):
        made = ", ".join(f"{code(path)} {digest}" for path, digest in step.outputs.items())
        sources = f" from {cell(', '.join(step.sources))}" if step.sources else ""
        lines.append(f"- {cell(step.stage)}{sources}: {made}")
    return lines or ["The records of its stages are not on this machine."]


def _changed_settings(steps: Sequence[Step]) -> Mapping[str, str]:
    """What the stages' parameters have other than the defaults, by dotted name."""
    defaults, changed = default_texts(), dict[str, str]()
    for step in steps:
        values = flatten(dict(step.params))
        changed |= {name: value for name, value in values.items() if defaults.get(name) != value}
    return dict(sorted(changed.items()))
