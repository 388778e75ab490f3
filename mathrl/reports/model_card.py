"""The card of a registered version, in Markdown: figures, health, lineage, what was set, how to reproduce it."""

from collections.abc import Mapping, Sequence

from mathrl.core.markdown import cell, code, table
from mathrl.core.results import EvaluationSummary, results_table
from mathrl.health.watch import examine
from mathrl.params.schema import SECTIONS
from mathrl.reports.html import Material, lineage, origin
from mathrl.tracking.lineage import Step
from mathrl.tracking.upload import flatten

LONGEST = 4000  # characters: MLflow keeps 5000 of a description, and the gate's decision stands in it too


def model_card(title: str, reference: str, digest: str, material: Material) -> str:
    """The card of the version `title` ("mathrl-chain version 3"), which `reference` ("mathrl-chain:3") names.

    What was set comes last, because a long list is cut off there.
    """
    steps, _, complete = lineage(material)
    lines = [f"# {title}", ""]
    if material.summary is not None:
        lines += [f"**{cell(material.summary.verdict)}**", "", *_figures(material.summary), ""]
    lines += [f"Digest `{digest}`. {origin(steps)}.", "", "## Health", "", *_health(material), ""]
    lines += ["## Lineage", "", *_lineage(steps), "", complete, ""]
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
        report = examine(stage.rows, *stage.settings()).report()
        lines.append(f"- {stage.name}: {report['colour']}")
        lines += [
            f"    - {finding['rule']} ({finding['colour']}): {cell(finding['cause'])}" for finding in report["findings"]
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
