"""Pictures of an evaluation and of measured difficulty, in colours that colour-blind readers tell apart."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no display is needed, and none is opened
from matplotlib import pyplot as plt

# Okabe and Ito's colours, after them two of Tol's; a model keeps its own in every picture.
COLOURS = {"base": "#999999", "sft": "#0072B2", "rl": "#D55E00"}
FURTHER = ("#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#882255", "#332288")
MARKERS = {"base": "s", "sft": "^", "rl": "o"}
FURTHER_MARKERS = "DvPX*"  # another where the colours begin anew
SIDE_BY_SIDE = 4  # more models than these do not fit beside one another in a legend below
STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#dddddd",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "font.size": 10,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "legend.frameon": False,
}


def colour(model: str, place: int = 0) -> str:
    return COLOURS.get(model, FURTHER[place % len(FURTHER)])


def marker(model: str, place: int = 0) -> str:
    return MARKERS.get(model, FURTHER_MARKERS[place // len(FURTHER) % len(FURTHER_MARKERS)])


@contextmanager
def picture(file: Path, width: float = 6.4, height: float = 3.8) -> Iterator[Any]:
    """Axes to draw on; saved when the block ends, without a time stamp, so equal pictures are equal bytes."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(width, height), layout="constrained")
        try:
            yield axes
            file.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(file, dpi=140, metadata={"Software": None})
        finally:
            plt.close(figure)


def draw_accuracy(models: Mapping[str, Mapping[str, Any]], file: Path, title: str) -> None:
    """Bars of pass@1 with its interval and, lighter, pass@k of the largest k; figures above the bars."""
    largest = max((k for figures in models.values() for k in _ks(figures, "pass_at_")), default=1)
    with picture(file, width=max(6.4, 1.1 * len(models))) as axes:
        for x, (model, figures) in enumerate(models.items()):
            mean, low, high = (figures[f"pass_at_1{end}"] for end in ("", "_low", "_high"))
            if largest > 1 and f"pass_at_{largest}" in figures:
                axes.bar(x, figures[f"pass_at_{largest}"], 0.6, color=colour(model, x), alpha=0.25, linewidth=0)
            axes.bar(x, mean, 0.6, color=colour(model, x), linewidth=0)
            axes.errorbar(x, mean, [[mean - low], [high - mean]], color="#222222", capsize=4, linewidth=1.4)
            axes.text(x, high + 0.015, f"{mean:.3f}", ha="center", va="bottom", fontsize=10)
            some = figures.get(f"pass_at_{largest}", 0.0)
            if some > high + 0.1:  # else it would stand on the figure of pass@1
                axes.text(x, some + 0.015, f"{some:.3f}", ha="center", va="bottom", fontsize=8, color="#555555")
        axes.set_xticks(range(len(models)), list(models))
        axes.set(ylim=(0, 1.1), ylabel="share of correct responses", title=title)
        if largest > 1:
            axes.text(
                0.0,
                -0.16,
                f"solid: pass@1 with its interval; light: pass@{largest}",
                color="#555555",
                transform=axes.transAxes,
                fontsize=8,
            )


def draw_pass_at_k(models: Mapping[str, Mapping[str, Any]], file: Path, title: str) -> None:
    """pass@k (solid) with its interval, and maj@k (dashed), over k on a logarithmic axis."""
    beside = len(models) > SIDE_BY_SIDE
    with picture(file, width=9.0 if beside else 6.4, height=max(3.8, 0.36 * len(models) + 0.5)) as axes:
        for place, (model, figures) in enumerate(models.items()):
            ks = _ks(figures, "pass_at_")
            style: dict[str, Any] = {"color": colour(model, place), "marker": marker(model, place), "markersize": 5}
            axes.plot(ks, [figures[f"pass_at_{k}"] for k in ks], label=f"{model}, pass@k", **style)
            low, high = ([figures[f"pass_at_{k}_{end}"] for k in ks] for end in ("low", "high"))
            axes.fill_between(ks, low, high, color=colour(model, place), alpha=0.15, linewidth=0)
            votes = [1, *_ks(figures, "maj_at_")]
            shares = [figures["pass_at_1"], *(figures[f"maj_at_{k}"] for k in votes[1:])]
            style |= {"linestyle": "--", "markerfacecolor": "white"}
            axes.plot(votes, shares, label=f"{model}, maj@k", **style)
        every = sorted({k for figures in models.values() for k in _ks(figures, "pass_at_")})
        axes.set_xscale("log", base=2)
        axes.set_xticks(every, [str(k) for k in every])
        axes.set(ylim=(0, 1.02), xlabel="k responses", ylabel="share of problems", title=title)
        _legend(axes, len(models), below=-0.18, fontsize=8)


def draw_levels(models: Mapping[str, Mapping[str, Any]], file: Path, title: str, by: str = "by_level") -> None:
    """pass@1 by level (or by subject) for each model, with intervals."""
    groups = list(dict.fromkeys(group for figures in models.values() for group in figures[by]))
    wide = 0.9 * len(groups) + 2 + 2.5 * (len(models) > SIDE_BY_SIDE)
    with picture(file, width=max(6.4, wide)) as axes:
        width = 0.8 / len(models)
        for place, (model, figures) in enumerate(models.items()):
            shown = [(i, figures[by][g]) for i, g in enumerate(groups) if g in figures[by]]
            at = [i + (place - (len(models) - 1) / 2) * width for i, _ in shown]
            means = [f["pass_at_1"] for _, f in shown]
            errors = [
                [f["pass_at_1"] - f["pass_at_1_low"] for _, f in shown],
                [f["pass_at_1_high"] - f["pass_at_1"] for _, f in shown],
            ]
            axes.bar(at, means, width, color=colour(model, place), label=model, linewidth=0)
            axes.errorbar(at, means, errors, fmt="none", color="#222222", capsize=2, linewidth=1)
        axes.set_xticks(range(len(groups)), groups, rotation=0 if by == "by_level" else 20)
        axes.set(ylim=(0, 1.05), xlabel=by.removeprefix("by_"), ylabel="pass@1", title=title)
        _legend(axes, len(models), below=-0.15)


def _legend(axes: Any, models: int, below: float, **style: Any) -> None:
    """Below the axes, a column a model; where there are many models, beside them."""
    if models > SIDE_BY_SIDE:
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), **style)
    else:
        axes.legend(ncols=max(1, models), loc="upper center", bbox_to_anchor=(0.5, below), **style)


def draw_difficulty(rows: Sequence[Mapping[str, Any]], file: Path, summary: Mapping[str, Any] | None = None) -> None:
    """How many problems have which pass rate; the ends (never and always solved) stand out.

    With the summary, the title has the rank agreement with the source's levels too.
    """
    most = max(int(row["samples"]) for row in rows)
    bins = min(most, 16)
    counts = [0] * (bins + 1)
    for row in rows:
        counts[round(row["pass_rate"] * bins)] += 1
    with picture(file) as axes:
        shades = ["#999999" if i in (0, bins) else "#0072B2" for i in range(bins + 1)]
        bars = axes.bar(range(bins + 1), counts, 0.85, color=shades, linewidth=0)
        axes.bar_label(bars, [f"{count:,}" if count else "" for count in counts], fontsize=8, padding=2)
        axes.set_xticks(range(bins + 1), [f"{i / bins:.3g}" for i in range(bins + 1)], fontsize=8)
        title = f"Pass rate over {most} samples, {len(rows):,} problems"
        if summary and summary["level_agreement"] is not None:
            levelled = summary["level_agreement_problems"]
            rho = summary["level_agreement"]
            title += f"\nAgreement with the levels: Spearman's rho {rho:.2f} (n = {levelled:,})"
        axes.set(xlabel="pass rate (grey: never or always solved, no signal for RL)", ylabel="problems", title=title)


def _ks(figures: Mapping[str, Any], start: str) -> list[int]:
    return sorted(
        int(name[len(start) :]) for name in figures if name.startswith(start) and name[len(start) :].isdigit()
    )
