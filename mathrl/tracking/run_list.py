"""The list of runs: a row per pipeline, recipe or sweep, with the figures of the MLflow run that holds its stages.

That run is named after what it changed. Its metrics: sft/pass_at_1, rl/pass_at_1 with their _low and _high, dev/best,
sampled_tokens, minutes. Its parameters: those that people change most and those that were changed; the file
params.yaml has all. Imported runs that MLflow lacks are rows too.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mathrl.core.files import to_fields
from mathrl.core.markdown import cell
from mathrl.core.mirroring import TRAINING
from mathrl.core.records import IMPORTED, MAIN, RunRecord, all_records, change_words
from mathrl.tracking.batches import MlflowBatches, Point, tags_under
from mathrl.tracking.client import search_runs

LINKED = 50  # stages that a note links
COLOURS = ("green", "yellow", "red")
DIGITS = 4  # after the point: MLflow's lists print all that a figure has
FINAL, BEST = "final/", "dev/best"
MODELS = ("base", "sft", "rl")
SHORT = {  # names of the table's figures in a document
    "dev": BEST,
    "sft": "sft/pass_at_1",
    "rl": "rl/pass_at_1",
    "rl_low": "rl/pass_at_1_low",
    "rl_high": "rl/pass_at_1_high",
    "sampled_tokens": "sampled_tokens",
    "minutes": "minutes",
}


def parent_params(record: RunRecord) -> dict[str, Any]:
    """What the list of runs has columns for: {"model": "fresh", "data": "chain", "rl.optimizer.lr": 0.01, …}."""
    sections = record.pipeline_params
    flat = {f"{name}.{key}": value for name, section in sections.items() for key, value in section.items()}
    main = {key: value for key in MAIN if (value := _value(sections, key)) is not None}
    base = sections.get("model", {}).get("base")
    sources = sections.get("curate", {}).get("sources")
    shown: dict[str, Any] = {
        kind: record.composition[kind] for kind in ("method", "hardware") if kind in record.composition
    }
    shown |= {"preset": record.preset} if record.preset else {}
    shown |= {"model": base.get("path", base.get("type"))} if base else {}
    shown |= {"data": ", ".join(dict.fromkeys(str(source.get("name")) for source in sources))} if sources else {}
    shown |= main
    shown |= {key: value for key, value in flat.items() if record.sweep and key.startswith("sweep.")}
    return shown | {"changed": ", ".join(change_words(record.changed)) or "nothing"} | record.changed


def _value(sections: Mapping[str, Any], key: str) -> Any:
    """The value at a dotted key of recorded sections; None where there is none."""
    value: Any = sections
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def refresh_parent(client: Any, batches: MlflowBatches, parent: str) -> None:
    """Bring the parent's figures, health and note up to date with its last LINKED stages, made now or found."""
    run = client.get_run(parent)
    every = list(tags_under(run.data.tags, "stage.").items())
    stages = {name: client.get_run(stage) for name, stage in every[-LINKED:]}
    figures = headline(stages)
    at = max((stage.info.end_time or stage.info.start_time for stage in stages.values()), default=0)
    batches.metrics(parent, [Point(name, round(value, DIGITS), at) for name, value in figures.items()])
    tags = {"mlflow.note.content": _note(run, stages, figures, len(every) - len(stages))}
    colours = [stage.data.tags["health"] for stage in stages.values() if "health" in stage.data.tags]
    best = next((model for model in reversed(MODELS) if f"{model}/pass_at_1_high" in figures), None)
    tags |= {"interval": "{:.3f} to {:.3f}".format(*_interval(figures, best))} if best else {}
    tags |= {"health": max(colours, key=COLOURS.index)} if colours else {}
    batches.tags(parent, tags)


def _interval(figures: Mapping[str, float], model: str) -> tuple[float, float]:
    return figures[f"{model}/pass_at_1_low"], figures[f"{model}/pass_at_1_high"]


def headline(stages: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a list's columns, from the stages' runs."""
    final = stages["evaluate"].data.metrics if "evaluate" in stages else {}
    names = [f"{model}/pass_at_1{end}" for model in MODELS for end in ("", "_low", "_high")]
    figures: dict[str, float] = {name: final[f"{FINAL}{name}"] for name in names if f"{FINAL}{name}" in final}
    figures |= _largest(BEST, stages.values()) | _largest("sampled_tokens", stages.values())
    ended = [run.info.end_time - run.info.start_time for run in stages.values() if run.info.end_time]
    return figures | {"minutes": round(sum(ended) / 60_000, 2)}


def _largest(name: str, runs: Iterable[Any]) -> dict[str, float]:
    values = [run.data.metrics[f"{FINAL}{name}"] for run in runs if f"{FINAL}{name}" in run.data.metrics]
    return {name: max(values)} if values else {}


def _note(parent: Any, stages: Mapping[str, Any], figures: Mapping[str, float], more: int) -> str:
    """The result, what was changed, links to the stages' runs wherever they were made; MLflow cuts long notes."""
    lines = []
    models = [model for model in reversed(MODELS) if f"{model}/pass_at_1_high" in figures]
    for model in models:
        mean, (low, high) = figures[f"{model}/pass_at_1"], _interval(figures, model)
        lines.append(f"- {model}: pass@1 **{mean:.3f}**, {low:.3f} to {high:.3f}")
    lines += [f"- best on dev: {figures[BEST]:.3f}"] if BEST in figures else []
    lines += [f"- changed: {cell(parent.data.params.get('changed', 'nothing'))}", "", "Stages, made now or found:", ""]
    lines += [
        f"- [{name}](#/experiments/{run.info.experiment_id}/runs/{run.info.run_id})" for name, run in stages.items()
    ]
    lines += [f"- and {more} more, in this run's tags `stage.*`"] if more else []
    if "register" in stages:
        run = stages["register"].info
        page = f"#/experiments/{run.experiment_id}/runs/{run.run_id}/artifacts/report.html{TRAINING}"
        lines += ["", f"[Report: all figures, curves and examples]({page})"]
    return "\n".join(lines)


@dataclass(frozen=True)
class RunRow:
    """One run.

    Example:
        RunRow(name="pipeline lr=0.002", run="4f2c…", started=1.78e9, status="FINISHED", folder="rl-lr_2e-3-1f",
               health="green", figures={"dev/best": 0.97, "rl/pass_at_1": 0.98, …})

    `folder` is the name of its worktree under runs/; empty for a run in the checkout.
    """

    name: str
    run: str
    started: float
    status: str
    folder: str
    health: str
    figures: Mapping[str, float] = field(default_factory=dict)

    def to_row(self) -> dict[str, Any]:
        """Its fields with the figures of the table by short names; None where it has none."""
        row = to_fields(self)
        figures = row.pop("figures")
        return row | {short: figures.get(name) for short, name in SHORT.items()}

    def cells(self) -> dict[str, str]:
        """Its row of the table on the terminal; the second line has the interval, and the folder under runs/."""
        row = self.to_row()
        low, high, tokens, minutes = (row[name] for name in ("rl_low", "rl_high", "sampled_tokens", "minutes"))
        interval = f"\n{low:.3f} to {high:.3f}" if low is not None and high is not None else ""
        return {
            "started": time.strftime("%m-%d %H:%M", time.localtime(self.started)),
            "run, what is different, folder": self.name + (f"\nruns/{self.folder}" if self.folder else ""),
            "best dev": _share(row["dev"]),
            "sft": _share(row["sft"]),
            "rl": _share(row["rl"]) + interval,
            "sampled": "" if tokens is None else f"{tokens / 1e6:.2f} M" if tokens >= 1e5 else f"{tokens:,.0f}",
            "min": "" if minutes is None else f"{minutes:.1f}",
            "health": self.health,
        }


def list_runs(client: Any) -> list[RunRow]:
    """Every run, the newest first: those of MLflow, and the imported ones that it does not have."""
    tracked = [_row(run) for run in search_runs(client, "tags.`mathrl.role` LIKE '%'", ["start_time DESC"])]
    known = {row.name for row in tracked}
    imported = [_foreign_row(record) for record in all_records(IMPORTED) if record.name not in known]
    return sorted([*tracked, *imported], key=lambda row: row.started, reverse=True)


def _foreign_row(record: RunRecord) -> RunRow:
    health = record.health["colour"] if record.health else ""
    minutes = {"minutes": (record.ended - record.started) / 60} if record.ended else {}
    return RunRow(record.name, "", record.started, "FINISHED", "", health, record.summary | minutes)


def _row(run: Any) -> RunRow:
    workspace, imported = Path(run.data.tags.get("mathrl.workspace", "")), "mathrl.imported_from" in run.data.tags
    return RunRow(
        name=run.info.run_name,
        run=run.info.run_id,
        started=run.info.start_time / 1000,
        status=run.info.status,
        folder=workspace.name if workspace.parent.name == "runs" and not imported else "",
        health=run.data.tags.get("health", "") if run.info.status != "FAILED" else "failed",
        figures=run.data.metrics,
    )


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
