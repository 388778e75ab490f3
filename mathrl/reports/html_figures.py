"""The charts, breakdowns and examples of a report."""

import base64
import io
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, cycle
from pathlib import Path
from typing import Any

from mathrl.core.figures import LINES, colour, panels, plain
from mathrl.core.files import write_jsonl
from mathrl.core.metrics import without_timings
from mathrl.core.results import Interval, ModelFigures
from mathrl.reports.pictures import draw_rates, first_responses

Rows = Sequence[Mapping[str, Any]]
Models = Mapping[str, ModelFigures]
Points = Sequence[tuple[float, float]]
# Title, and metric name → label; metrics that no row has are left out.
PANELS: tuple[tuple[str, dict[str, str]], ...] = (
    ("Loss", {"loss": "training", "dev/loss": "dev"}),
    ("Accuracy", {"reward/accuracy": "rollouts", "dev/accuracy": "dev"}),
    ("Pairs or steps judged right", {"judged_right": "training", "dev/judged_right": "dev"}),
    ("Reward", {"reward/overall": "overall"}),
    ("Response length, tokens", {"response_length": "rollouts", "dev/response_length": "dev"}),
    ("Entropy of the trained groups, nats per token", {"entropy": "entropy"}),
    ("KL to the reference, per token", {"kl": "KL"}),
    ("Policy loss", {"actor_loss": "policy"}),
    ("Critic loss", {"critic_loss": "critic"}),
    ("Explained variance of the critic", {"critic/explained_variance": "explained variance"}),
    ("Gradient norm", {"grad_norm": "policy", "critic/grad_norm": "critic"}),
    ("Share of tokens clipped", {"clip_fraction": "clipped"}),
    (
        "Shares",
        {
            "rollout/zero_variance_share": "groups without a difference",
            "rollout/truncated_share": "responses cut off",
            "rollout/repetition": "repeated",
        },
    ),
    ("Log-prob alignment", {"rollout/logprob_alignment": "sampler and trainer"}),
    ("Correlation of length and reward", {"rollout/length_reward_correlation": "correlation"}),
)
NO_PARTS = ("reward/overall", "reward/overall_std", "reward/accuracy")
# The number of examples shown by kind, and the fields of each response.
SHOWN = {"became right": 6, "became wrong": 3, "stayed wrong": 2, "stayed right": 1}
FIELDS = ("correct", "length", "truncated", "extracted", "response")
ZERO_TO_ONE = ("Accuracy", "Pairs or steps judged right", "Shares")
MOST_DOTS = 300
MARGINS = {"left": 0.13, "right": 0.97, "top": 0.96, "bottom": 0.19}  # shares of a chart


@dataclass(frozen=True)
class Chart:
    """A figure of the report: its title and a picture as a data URL."""

    title: str
    picture: str


def curves(rows: Rows) -> list[Chart]:
    """Small charts of a training run's metrics over steps."""
    logged = {name for row in rows for name in row}
    parts = {n: n.removeprefix("reward/") for n in sorted(logged) if n.startswith("reward/") and n not in NO_PARTS}
    evals = {n: n.split("/")[1] for n in sorted(logged) if n.startswith("eval/") and n.endswith("/accuracy")}
    further = {"Reward": parts, "Accuracy": evals}
    charts = []
    for title, metrics in PANELS:
        labels = {n: label for n, label in (metrics | further.get(title, {})).items() if n in logged}
        if labels:
            with _chart(title) as (axes, finished):
                draw_metrics(axes, rows, labels)
                axes.set(**({"ylim": (-0.02, 1.02)} if title in ZERO_TO_ONE else {}))
                if len(labels) > 1:
                    axes.legend(fontsize=7)
            charts += finished
    return charts


def pass_at_k(models: Models, names: Sequence[str]) -> list[Chart]:
    """pass@k and maj@k over k with their intervals; none where k is 1 alone."""
    shown = {name: models[name] for name in names}
    if all(len(figures.pass_at_k) < 2 for figures in shown.values()):
        return []
    with _chart("pass@k (solid) and maj@k (dashed)") as (axes, charts):
        draw_rates(axes, shown)
        axes.legend(fontsize=7)
    return charts


def length_and_accuracy(responses: Rows, names: Sequence[str]) -> list[Chart]:
    """A dot per problem: mean length of its responses, share that is correct."""
    dots: dict[str, Points] = {}
    for name in names:
        groups: dict[str, list[Mapping[str, Any]]] = {}
        for row in responses:
            if row["model"] == name:
                groups.setdefault(row["problem_id"], []).append(row)
        dots[name] = [
            (sum(row["length"] for row in group) / len(group), sum(row["correct"] for row in group) / len(group))
            for _, group in sorted(groups.items())[:MOST_DOTS]
        ]
    if not any(dots.values()):
        return []
    with _chart("pass@1 of a problem by length") as (axes, charts):
        for place, (name, points) in enumerate(dots.items()):
            lengths, shares = [length for length, _ in points], [share for _, share in points]
            axes.scatter(lengths, shares, s=12, alpha=0.45, linewidth=0, color=colour(name, place), label=plain(name))
        axes.set(ylim=(-0.04, 1.04), xlabel="mean length of a problem's responses, tokens")
        axes.legend(fontsize=7)
    return charts


@contextmanager
def _chart(title: str) -> Iterator[tuple[Any, list[Chart]]]:
    """(axes to draw on, a list that holds the finished chart when the block has ended)."""
    svg, charts = io.StringIO(), list[Chart]()
    with panels(svg, 1, 4.2, 2.5, layout=None, gridspec_kw=MARGINS) as (axes,):
        axes.tick_params(labelsize=8)
        axes.xaxis.label.set_size(8)
        yield axes, charts
    charts.append(Chart(title, _data_url("image/svg+xml", svg.getvalue().encode())))


def stored_picture(file: Path, title: str) -> list[Chart]:
    """A PNG that a stage wrote, if it did."""
    return [Chart(title, _data_url("image/png", file.read_bytes()))] if file.is_file() else []


def _data_url(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def breakdowns(models: Models, names: Sequence[str]) -> dict[str, list[tuple[str, int, list[Interval | None]]]]:
    """By level and by subject, where the problems have them: the group, its problems, pass@1 of each model or None."""
    tables = {}
    for by in ("level", "subject"):
        groups = [models[name].groups(by) for name in names]
        rows = []
        for label in dict.fromkeys(chain(*groups)):
            figures = [group.get(label) for group in groups]
            problems = next(group.problems for group in figures if group)
            rows.append((label, problems, [group.pass_at_1 if group else None for group in figures]))
        if rows:
            tables[by] = rows
    return tables


def before_after(responses: Rows, before: str, after: str) -> tuple[list[dict[str, Any]], str]:
    """Problems with the first response of both models, chosen by what became of it; and a sentence that counts them."""
    kinds: dict[str, list[tuple[str, Any]]] = {kind: [] for kind in SHOWN}
    for id, answers in sorted(first_responses(responses).items()):
        if before in answers and after in answers:
            was, now = answers[before]["correct"], answers[after]["correct"]
            kinds[("stayed " if was == now else "became ") + ("right" if now else "wrong")].append((id, answers))
    shown = {kind: _spread(kinds[kind], number) for kind, number in SHOWN.items()}
    examples = [
        {
            "id": id,
            "question": answers[after]["question"],
            "answer": answers[after]["answers"][0],
            "sides": [
                {"model": name, **{field: answers[name][field] for field in FIELDS}, "cells": cells(answers[name])}
                for name in (before, after)
            ],
        }
        for chosen in shown.values()
        for id, answers in chosen
    ]
    counts = ", ".join(f"{len(shown[kind])} of {len(kinds[kind])} that {kind}" for kind in SHOWN)
    return examples, counts


def cells(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The text of a response in cells: the model's own ("model"), and each call's output with the call's status.

    >>> call = {"code": "print(6*7)", "output": "42", "status": "ok"}
    >>> cells({"response": "a print(6*7) out: 42 b", "calls": [call]})
    [('a print(6*7) out: ', 'model'), ('42', 'ok'), (' b', 'model')]
    """
    text, start, parts = str(row["response"]), 0, []
    for call in row.get("calls", ()):
        code = text.find(call["code"], start)
        place = text.find(call["output"], code + len(call["code"])) if code >= 0 else -1
        if place < 0:  # cut at the response's last token
            break
        parts += [(text[start:place], "model"), (call["output"], call["status"])]
        start = place + len(call["output"])
    return [(part, status) for part, status in [*parts, (text[start:], "model")] if part or status != "model"]


def _spread(items: Sequence[Any], number: int) -> list[Any]:
    """`number` of them, evenly spread."""
    return [items[place * len(items) // number] for place in range(number)] if len(items) > number else list(items)


FEW = 20  # points that are marked one by one


def draw_curves(rows: Sequence[Mapping[str, Any]], labels: Sequence[Mapping[str, str]], path: Path, title: str) -> None:
    """One panel per entry of `labels`, side by side: metric name → label; metrics without a value are left out.

    The same rows give the same bytes.
    """
    logged = {name for row in rows for name in row}
    shown = [{name: label for name, label in panel.items() if name in logged} for panel in labels]
    shown = [panel for panel in shown if panel]
    count = max(1, len(shown))
    with panels(path, count, 4.6 * count, 3.4) as all_axes:
        for axes, panel in zip(all_axes, shown, strict=False):
            draw_metrics(axes, rows, panel)
            axes.legend(fontsize=9)
        all_axes[0].figure.suptitle(title, fontsize=11)


def draw_metrics(axes: Any, rows: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> None:
    """A line per metric; values that are not finite are left out, few points are marked one by one."""
    for line, (name, label) in zip(cycle(LINES), labels.items(), strict=False):
        points = [(row["step"], row[name]) for row in rows if math.isfinite(row.get(name, math.nan))]
        style = {"marker": "o", "markersize": 4} if len(points) <= FEW else {}
        axes.plot(
            *zip(*points, strict=True) if points else ([], []), color=line, label=plain(label), linewidth=1.6, **style
        )
    axes.set_xlabel("step")


def report_curves(
    metrics: Path, folder: Path, copy: Path, labels: Sequence[Mapping[str, str]], title: str
) -> list[dict[str, Any]]:
    """Write the rows of `metrics` without timings into `folder`, as metrics.jsonl and as curve.png.

    The picture is copied to `copy`. Returns the rows.
    """
    rows = without_timings(metrics)
    write_jsonl(folder / "metrics.jsonl", rows)
    draw_curves(rows, labels, folder / "curve.png", title)
    shutil.copy(folder / "curve.png", copy)
    return rows
