"""The charts, breakdowns and examples of a report."""

import base64
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from mathrl.core.figures import LINES, colour, picture
from mathrl.core.results import Interval, ModelFigures

Rows = Sequence[Mapping[str, Any]]
Models = Mapping[str, ModelFigures]
Points = Sequence[tuple[float, float]]
# Title, and metric name → label; metrics that no row has are left out.
PANELS: tuple[tuple[str, dict[str, str]], ...] = (
    ("Loss", {"loss": "training", "dev/loss": "dev"}),
    ("Accuracy", {"reward/accuracy": "roll-outs", "dev/accuracy": "dev"}),
    ("Pairs or steps judged right", {"judged_right": "training", "dev/judged_right": "dev"}),
    ("Reward", {"reward/overall": "overall"}),
    ("Response length, tokens", {"response_length": "roll-outs", "dev/response_length": "dev"}),
    ("Entropy, nats per token", {"entropy": "entropy"}),
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
FEW = 20  # points of a line that are marked one by one
MOST_DOTS = 300


@dataclass(frozen=True)
class Chart:
    """A figure of the report: its title and a picture as a data URL."""

    title: str
    picture: str


def curves(rows: Rows) -> list[Chart]:
    """Small charts of a training run's metrics over steps."""
    logged = {name for row in rows for name in row}
    parts = {n: n.removeprefix("reward/") for n in sorted(logged) if n.startswith("reward/") and n not in NO_PARTS}
    charts = []
    for title, metrics in PANELS:
        labels = {n: label for n, label in (metrics | (parts if title == "Reward" else {})).items() if n in logged}
        lines = {label: [(row["step"], row[n]) for row in rows if n in row] for n, label in labels.items()}
        if lines:
            charts.append(_line_chart(title, lines, share=title in ZERO_TO_ONE))
    return charts


def _line_chart(title: str, lines: Mapping[str, Points], *, share: bool) -> Chart:
    """Values over steps; points that are not finite are left out, few points are marked one by one."""
    with _chart(title) as (axes, charts):
        for (label, points), colour in zip(lines.items(), cycle(LINES), strict=False):
            finite = [point for point in points if math.isfinite(point[1])]
            style = {"marker": "o", "markersize": 3} if len(finite) <= FEW else {}
            axes.plot(*zip(*finite, strict=True) if finite else ([], []), color=colour, label=label, **style)
        axes.set(xlabel="step", **({"ylim": (-0.02, 1.02)} if share else {}))
        if len(lines) > 1:
            axes.legend(fontsize=7)
    return charts[0]


def pass_at_k(models: Models, names: Sequence[str]) -> list[Chart]:
    """pass@k and maj@k over k with their intervals, a line per model."""
    charts = []
    for title in ("pass@k", "maj@k"):
        rates = {name: models[name].pass_at_k if title == "pass@k" else models[name].maj_at_k for name in names}
        rates = {name: by_k for name, by_k in rates.items() if len(by_k) > 1}
        if not rates:
            continue
        with _chart(title) as (axes, made):
            for name, by_k in rates.items():
                style = {"color": colour(name, names.index(name))}
                ks = list(by_k)
                axes.plot(ks, [rate.mean for rate in by_k.values()], marker="o", markersize=3, label=name, **style)
                low, high = [rate.low for rate in by_k.values()], [rate.high for rate in by_k.values()]
                axes.fill_between(ks, low, high, alpha=0.15, linewidth=0, **style)
            axes.set_xscale("log", base=2)
            every = sorted({k for by_k in rates.values() for k in by_k})
            axes.set_xticks(every, [str(k) for k in every])
            axes.set(ylim=(0, 1.02), xlabel="k responses")
            axes.legend(fontsize=7)
        charts += made
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
            axes.scatter(lengths, shares, s=12, alpha=0.45, linewidth=0, color=colour(name, place), label=name)
        axes.set(ylim=(-0.04, 1.04), xlabel="mean length of a problem's responses, tokens")
        axes.legend(fontsize=7)
    return charts


@contextmanager
def _chart(title: str) -> Iterator[tuple[Any, list[Chart]]]:
    """(axes to draw on, a list that holds the finished chart when the block has ended)."""
    svg, charts = io.StringIO(), list[Chart]()
    with picture(svg, 4.2, 2.5) as axes:
        axes.tick_params(labelsize=8)
        axes.xaxis.label.set_size(8)
        yield axes, charts
    charts.append(Chart(title, _data_url("image/svg+xml", svg.getvalue().encode())))


def stored_picture(file: Path, title: str) -> list[Chart]:
    """A PNG that a stage wrote, if it did."""
    return [Chart(title, _data_url("image/png", file.read_bytes()))] if file.is_file() else []


def _data_url(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


@dataclass(frozen=True)
class Cell:
    """pass@1 of a model in a group: the value, its interval in words and the model's colour."""

    value: float
    interval: str
    colour: str


@dataclass(frozen=True)
class Breakdown:
    """pass@1 by level or subject; a row is (group, problems, a cell per model, None where it has no problem)."""

    by: str
    models: Sequence[str]
    rows: Sequence[tuple[str, int, Sequence[Cell | None]]]


def breakdowns(models: Models, names: Sequence[str]) -> list[Breakdown]:
    """By level and by subject, where the problems have them."""
    tables = []
    for by in ("level", "subject"):
        groups = [models[name].groups(by) for name in names]
        rows = []
        for label in dict.fromkeys(label for group in groups for label in group):
            cells = [
                _cell(group[label].pass_at_1, colour(name, place)) if label in group else None
                for place, (name, group) in enumerate(zip(names, groups, strict=True))
            ]
            problems = next(group[label].problems for group in groups if label in group)
            rows.append((label, problems, cells))
        if rows:
            tables.append(Breakdown(by, list(names), rows))
    return tables


def _cell(rate: Interval, shade: str) -> Cell:
    return Cell(rate.mean, f"{rate.low:.2f} to {rate.high:.2f}", shade)


def before_after(responses: Rows, before: str, after: str) -> tuple[list[dict[str, Any]], str]:
    """Problems with the first response of both models, chosen by what became of it; and a sentence that counts them."""
    first: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in responses:
        first.setdefault(row["problem_id"], {}).setdefault(row["model"], row)
    kinds: dict[str, list[tuple[str, Any]]] = {kind: [] for kind in SHOWN}
    for id, answers in sorted(first.items()):
        if before in answers and after in answers:
            was, now = answers[before]["correct"], answers[after]["correct"]
            kinds[("stayed " if was == now else "became ") + ("right" if now else "wrong")].append((id, answers))
    shown = {kind: _spread(kinds[kind], number) for kind, number in SHOWN.items()}
    examples = [
        {
            "id": id,
            "question": answers[after]["question"],
            "answer": answers[after]["answers"][0],
            "sides": [{"model": name, **{field: answers[name][field] for field in FIELDS}} for name in (before, after)],
        }
        for chosen in shown.values()
        for id, answers in chosen
    ]
    counts = ", ".join(f"{len(shown[kind])} of {len(kinds[kind])} that {kind}" for kind in SHOWN)
    return examples, counts


def _spread(items: Sequence[Any], number: int) -> list[Any]:
    """`number` of them, evenly spread."""
    return [items[place * len(items) // number] for place in range(number)] if len(items) > number else list(items)
