"""Pictures of an evaluation, of measured difficulty and of lineage, responses to read, and pages from templates."""

import html
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from mathrl.core.figures import BLUE, DARK, GREY, SOFT, colour, marker, picture, plain
from mathrl.core.markdown import cell, code, code_block
from mathrl.core.results import GroupFigures, ModelFigures
from mathrl.tracking.lineage import Step

BESIDE = 4  # with more models than these a legend below the axes is too wide; it goes beside them
Models = Mapping[str, ModelFigures]
BOX, GAP, ROW = (230, 64), 90, 92
Edges = Sequence[tuple[str, str, str]]  # maker's run, path, reader's run


def draw_accuracy(models: Models, file: Path, title: str) -> None:
    """Bars of pass@1 with its interval and, lighter, pass@k of the largest k; figures above the bars."""
    largest = max((k for figures in models.values() for k in figures.pass_at_k), default=1)
    with picture(file, width=max(6.4, 1.1 * len(models))) as axes:
        for x, (model, figures) in enumerate(models.items()):
            first, most = figures.pass_at_1, figures.pass_at_k.get(largest)
            if largest > 1 and most is not None:
                axes.bar(x, most.mean, 0.6, color=colour(model, x), alpha=0.25, linewidth=0)
            axes.bar(x, first.mean, 0.6, color=colour(model, x), linewidth=0)
            errors = [[first.mean - first.low], [first.high - first.mean]]
            axes.errorbar(x, first.mean, errors, color=DARK, capsize=4, linewidth=1.4)
            axes.text(x, first.high + 0.015, f"{first.mean:.3f}", ha="center", va="bottom", fontsize=10)
            if most is not None and most.mean > first.high + 0.1:  # else it would overlap the figure of pass@1
                text = f"{most.mean:.3f}"
                axes.text(x, most.mean + 0.015, text, ha="center", va="bottom", fontsize=8, color=SOFT)
        axes.set_xticks(range(len(models)), map(plain, models))
        axes.set(ylim=(0, 1.1), ylabel="share of correct responses", title=plain(title))
        if largest > 1:
            note = f"solid: pass@1 with its interval; light: pass@{largest}"
            axes.text(0.0, -0.16, note, color=SOFT, transform=axes.transAxes, fontsize=8)


def draw_pass_at_k(models: Models, file: Path, title: str) -> None:
    """pass@k (solid) with its interval, and maj@k (dashed), over k on a logarithmic axis."""
    beside = len(models) > BESIDE
    with picture(file, width=9.0 if beside else 6.4, height=max(3.8, 0.36 * len(models) + 0.5)) as axes:
        draw_rates(axes, models)
        axes.set(ylabel="share of problems", title=plain(title))
        _legend(axes, len(models), below=-0.18, fontsize=8)


def draw_rates(axes: Any, models: Models) -> None:
    """The lines of `draw_pass_at_k`, on axes of any size."""
    for place, (model, figures) in enumerate(models.items()):
        passed, ks = figures.pass_at_k.values(), list(figures.pass_at_k)
        style: dict[str, Any] = {"color": colour(model, place), "marker": marker(model, place), "markersize": 5}
        axes.plot(ks, [rate.mean for rate in passed], label=f"{plain(model)}, pass@k", **style)
        low, high = [rate.low for rate in passed], [rate.high for rate in passed]
        axes.fill_between(ks, low, high, color=colour(model, place), alpha=0.15, linewidth=0)
        voted = {1: figures.pass_at_1, **figures.maj_at_k}
        style |= {"linestyle": "--", "markerfacecolor": "white"}
        axes.plot(list(voted), [rate.mean for rate in voted.values()], label=f"{plain(model)}, maj@k", **style)
    every = sorted({k for figures in models.values() for k in figures.pass_at_k})
    axes.set_xscale("log", base=2)
    axes.set_xticks(every, [str(k) for k in every])
    axes.set(ylim=(0, 1.02), xlabel="k responses")


def draw_groups(models: Mapping[str, Mapping[str, GroupFigures]], file: Path, title: str, by: str = "level") -> None:
    """pass@1 by group (`by` is what they are, level or subject) for each model, with intervals."""
    names = list(dict.fromkeys(name for groups in models.values() for name in groups))
    inches = 0.9 * len(names) + 2 + 2.5 * (len(models) > BESIDE)
    with picture(file, width=max(6.4, inches)) as axes:
        width = 0.8 / len(models)
        for place, (model, groups) in enumerate(models.items()):
            rates = {x: groups[name].pass_at_1 for x, name in enumerate(names) if name in groups}
            xs = [x + (place - (len(models) - 1) / 2) * width for x in rates]
            means = [rate.mean for rate in rates.values()]
            below = [rate.mean - rate.low for rate in rates.values()]
            above = [rate.high - rate.mean for rate in rates.values()]
            axes.bar(xs, means, width, color=colour(model, place), label=plain(model), linewidth=0)
            axes.errorbar(xs, means, [below, above], fmt="none", color=DARK, capsize=2, linewidth=1)
        axes.set_xticks(range(len(names)), map(plain, names), rotation=0 if by == "level" else 20)
        axes.set(ylim=(0, 1.05), xlabel=by, ylabel="pass@1", title=plain(title))
        _legend(axes, len(models), below=-0.15)


def _legend(axes: Any, models: int, below: float, **style: Any) -> None:
    """Below the axes, a column per model; beside them where there are many models."""
    if models > BESIDE:
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), **style)
    else:
        axes.legend(ncols=max(1, models), loc="upper center", bbox_to_anchor=(0.5, below), **style)


def draw_difficulty(rows: Sequence[Mapping[str, Any]], file: Path, summary: Mapping[str, Any] | None = None) -> None:
    """The number of problems by pass rate; the ends (never and always solved) are grey.

    With the summary, the title has the rank agreement with the source's levels as well.
    """
    most = max(int(row["samples"]) for row in rows)
    bins = min(most, 16)
    counts = [0] * (bins + 1)
    for row in rows:
        counts[round(row["pass_rate"] * bins)] += 1
    with picture(file) as axes:
        shades = [GREY if i in (0, bins) else BLUE for i in range(bins + 1)]
        bars = axes.bar(range(bins + 1), counts, 0.85, color=shades, linewidth=0)
        axes.bar_label(bars, [f"{count:,}" if count else "" for count in counts], fontsize=8, padding=2)
        axes.set_xticks(range(bins + 1), [f"{i / bins:.3g}" for i in range(bins + 1)], fontsize=8)
        title = f"Pass rate over {most} samples, {len(rows):,} problems"
        if summary and summary["level_agreement"] is not None:
            rho, problems = summary["level_agreement"], summary["level_agreement_problems"]
            title += f"\nAgreement with the levels: Spearman's rho {rho:.2f} (n = {problems:,})"
        axes.set(xlabel="pass rate (grey: never or always solved, no signal for RL)", ylabel="problems", title=title)


Rows = Iterable[Mapping[str, Any]]


def side_by_side(responses: Rows, models: Sequence[str], count: int, seed: int) -> list[dict[str, Any]]:
    """A seeded choice of problems, each with the first response of every model.

    Example:
        {"problem_id": "chain/test/00003", "question": "7+5-3*4=", "answer": "36",
         "rl": "✓ <think>7+5=12;…</think><answer>36</answer>"}
    """
    first = first_responses(responses)
    rows = []
    for id in sorted(random.Random(seed).sample(sorted(first), min(count, len(first)))):
        answers = [(model, first[id][model]) for model in models if model in first[id]]
        head = answers[0][1]
        rows.append(
            {
                "problem_id": id,
                "question": head["question"],
                "answer": head["answers"][0],
                **{model: f"{'✓' if row['correct'] else '✗'} {row['response']}" for model, row in answers},
            }
        )
    return rows


def first_responses(responses: Rows) -> dict[str, dict[str, Mapping[str, Any]]]:
    """The first response of each model to each problem: {problem id: {model: row}}."""
    first: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in responses:
        first.setdefault(row["problem_id"], {}).setdefault(row["model"], row)
    return first


def examples_markdown(rows: Sequence[Mapping[str, Any]], models: Sequence[str], benchmark: str) -> str:
    """The rows of `side_by_side` as Markdown; ✓ marks a correct response, ✗ a wrong one."""
    parts = [f"# {len(rows)} problems of {cell(benchmark)}, one response of each model", ""]
    for row in rows:
        parts += [f"## {code(row['problem_id'])}", "", code_block(str(row["question"])), ""]
        parts += [f"Answer: {code(str(row['answer']))}", ""]
        for model in models:
            if model in row:
                mark, _, text = str(row[model]).partition(" ")
                parts += [
                    f"**{cell(model)}** {mark}",
                    "",
                    code_block(text[:1500] + ("…" if len(text) > 1500 else "")),
                    "",
                ]
    return "\n".join(parts)


def render(template: str, **values: Any) -> str:
    """A page from the template of this name beside this file; texts in `values` are escaped."""
    text = Path(__file__).with_name(template).read_text("utf-8")
    return Environment(autoescape=True, undefined=StrictUndefined).from_string(text).render(**values)


def lineage_picture(steps: Sequence[Step], edges: Edges) -> Markup:
    """The steps as an SVG, sources at the left: a column is the longest way to the model."""
    column = _columns(steps, edges)
    last = max(column.values())
    rows: dict[int, int] = {}
    at: dict[str, tuple[int, int]] = {}
    for step in steps:
        place = last - column[step.run]
        at[step.run] = (10 + place * (BOX[0] + GAP), 10 + rows.get(place, 0) * ROW)
        rows[place] = rows.get(place, 0) + 1
    width, height = 20 + (last + 1) * (BOX[0] + GAP) - GAP, 20 + max(rows.values()) * ROW
    size = f"width='{width}' height='{height}' viewBox='0 0 {width} {height}'"
    parts = [f"<svg xmlns='http://www.w3.org/2000/svg' {size}>"]
    for maker, reader in sorted({(maker, reader) for maker, _, reader in edges}):
        (x, y), (u, v) = at[maker], at[reader]
        x, y, v = x + BOX[0], y + BOX[1] // 2, v + BOX[1] // 2
        bend = (x + u) // 2
        parts.append(f"<path d='M{x} {y}C{bend} {y} {bend} {v} {u} {v}' fill='none' stroke='#888'/>")
    for step in steps:
        x, y = at[step.run]
        texts = (step.stage, f"run {step.run[:8]}, commit {step.commit[:8]}", ", ".join(step.outputs)[:36])
        parts.append(f"<rect x='{x}' y='{y}' width='{BOX[0]}' height='{BOX[1]}' rx='4' fill='#eef3fa' stroke='#456'/>")
        parts += [f"<text x='{x + 8}' y='{y + 18 + 18 * n}'>{html.escape(text)}</text>" for n, text in enumerate(texts)]
    return Markup("".join([*parts, "</svg>"]))


def _columns(steps: Sequence[Step], edges: Edges) -> dict[str, int]:
    column = {step.run: 0 for step in steps}
    for _ in steps:  # no way is longer than there are steps
        for maker, _path, reader in edges:
            column[maker] = max(column[maker], min(column[reader] + 1, len(steps)))
    return column
