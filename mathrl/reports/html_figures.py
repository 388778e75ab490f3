"""The charts and tables of a report."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from mathrl.reports.charts import line_chart, scatter

Rows = Sequence[Mapping[str, Any]]
Models = Mapping[str, Mapping[str, Any]]
# Title, and metric name → label; what no row has is left out.
PANELS: tuple[tuple[str, dict[str, str]], ...] = (
    ("Loss", {"loss": "training", "dev/loss": "dev"}),
    ("Accuracy", {"reward/accuracy": "roll-outs", "dev/accuracy": "dev"}),
    ("Pairs or steps judged right", {"judged_right": "training", "dev/judged_right": "dev"}),
    ("Reward", {"reward/overall": "overall"}),
    ("Response length, tokens", {"response_length": "roll-outs", "dev/response_length": "dev"}),
    ("Entropy, nats a token", {"entropy": "entropy"}),
    ("KL to the reference, a token", {"kl": "KL"}),
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
# How many examples of which kind are shown, and what of each response.
SHOWN = {"became right": 6, "became wrong": 3, "stayed wrong": 2, "stayed right": 1}
FIELDS = ("correct", "length", "truncated", "extracted", "response")
ZERO_TO_ONE = ("Accuracy", "Pairs or steps judged right", "Shares")


@dataclass(frozen=True)
class Chart:
    """A figure: an SVG, or a picture as a data URL."""

    title: str
    names: Sequence[str]
    svg: str = ""
    picture: str = ""
    scatter: bool = False


def curves(rows: Rows) -> list[Chart]:
    """Small charts of a training run's metrics over steps."""
    known = {name for row in rows for name in row}
    parts = {n: n.removeprefix("reward/") for n in sorted(known) if n.startswith("reward/") and n not in NO_PARTS}
    found = []
    for title, names in PANELS:
        shown = {n: label for n, label in (names | (parts if title == "Reward" else {})).items() if n in known}
        series = {label: [(row["step"], row[n]) for row in rows if n in row] for n, label in shown.items()}
        if any(series.values()):
            high = 1.0 if title in ZERO_TO_ONE else None
            low = 0.0 if title in ZERO_TO_ONE else None
            found.append(Chart(title, list(series), Markup(line_chart(series, low=low, high=high))))
    return found


def pass_at_k(models: Models, names: Sequence[str]) -> list[Chart]:
    """pass@k and maj@k over k with their intervals, a line a model."""
    found = []
    for kind, title in (("pass_at_", "pass@k"), ("maj_at_", "maj@k")):
        series, bands = {}, {}
        for name in names:
            figures = models[name]
            ks = sorted(int(key[len(kind) :]) for key in figures if key.startswith(kind) and key[len(kind) :].isdigit())
            if len(ks) > 1:
                series[name] = [(k, figures[f"{kind}{k}"]) for k in ks]
                bands[name] = [(k, figures[f"{kind}{k}_low"], figures[f"{kind}{k}_high"]) for k in ks]
        if series:
            svg = line_chart(series, low=0, high=1, bands=bands, logarithmic=True, across="k")
            found.append(Chart(title, list(series), Markup(svg)))
    return found


def length_and_reward(responses: Rows, names: Sequence[str]) -> list[Chart]:
    """A dot a problem: mean length of its responses, share that is right."""
    series: dict[str, list[tuple[float, float]]] = {}
    for name in names:
        groups: dict[str, list[Mapping[str, Any]]] = {}
        for row in responses:
            if row["model"] == name:
                groups.setdefault(row["problem_id"], []).append(row)
        series[name] = [
            (sum(row["length"] for row in each) / len(each), sum(row["correct"] for row in each) / len(each))
            for _, each in sorted(groups.items())[:300]
        ]
    if not any(series.values()):
        return []
    svg = scatter(series, across="mean length of a problem's responses, tokens")
    return [Chart("pass@1 of a problem by length", list(series), Markup(svg), scatter=True)]


def picture(file: Path, title: str) -> list[Chart]:
    """A picture that a stage left, if it did."""
    if not file.is_file():
        return []
    data = base64.b64encode(file.read_bytes()).decode()
    return [Chart(title, [], picture=f"data:image/png;base64,{data}")]


def model_table(models: Models, names: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """(column names, rows of text), a row a model."""
    some = models[names[0]]
    ks = [int(key[8:]) for key in some if key.startswith("pass_at_") and key[8:].isdigit()]
    k = max(ks)
    columns = ["model", "pass@1", "interval"]
    columns += [f"pass@{k}", f"maj@{k}"] if k > 1 else []
    columns += ["mean length", "cut off", "no answer", "problems"]
    rows = []
    for name in names:
        each = models[name]
        row = [name, f"{each['pass_at_1']:.3f}", f"{each['pass_at_1_low']:.3f} to {each['pass_at_1_high']:.3f}"]
        row += [f"{each[f'pass_at_{k}']:.3f}", f"{each.get(f'maj_at_{k}', 0.0):.3f}"] if k > 1 else []
        row += [
            f"{each['response_length']:.1f}",
            f"{each['truncated_share']:.1%}",
            f"{each['no_answer_share']:.1%}",
            str(each["problems"]),
        ]
        rows.append(row)
    return columns, rows


def breakdowns(models: Models, names: Sequence[str]) -> list[tuple[str, list[str], list[Any]]]:
    """(level or subject, model names, rows of (label, problems, [(pass@1, interval)])), if there are any."""
    found: list[tuple[str, list[str], list[Any]]] = []
    for by in ("level", "subject"):
        groups = [models[name][f"by_{by}"] for name in names]
        labels = list(dict.fromkeys(label for group in groups for label in group))
        if not labels:
            continue
        rows = []
        for label in labels:
            cells = [_cell(group[label]) if label in group else None for group in groups]
            problems = next(group[label]["problems"] for group in groups if label in group)
            rows.append((label, problems, cells))
        found.append((by, list(names), rows))
    return found


def _cell(figures: Mapping[str, float]) -> tuple[float, str]:
    return figures["pass_at_1"], f"{figures['pass_at_1_low']:.2f} to {figures['pass_at_1_high']:.2f}"


def before_after(responses: Rows, before: str, after: str) -> tuple[list[dict[str, Any]], str]:
    """Some problems with the first response of both models, by what became of it; and that said in words."""
    first: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in responses:
        first.setdefault(row["problem_id"], {}).setdefault(row["model"], row)
    kinds: dict[str, list[tuple[str, Any]]] = {kind: [] for kind in SHOWN}
    for key, each in sorted(first.items()):
        if before in each and after in each:
            was, now = each[before]["correct"], each[after]["correct"]
            kinds[("stayed " if was == now else "became ") + ("right" if now else "wrong")].append((key, each))
    shown = {kind: _spread(kinds[kind], number) for kind, number in SHOWN.items()}
    examples = [
        {
            "id": key,
            "question": each[after]["question"],
            "answer": each[after]["answers"][0],
            "sides": [{"model": name, **{field: each[name][field] for field in FIELDS}} for name in (before, after)],
        }
        for chosen in shown.values()
        for key, each in chosen
    ]
    said = ", ".join(f"{len(shown[kind])} of {len(kinds[kind])} that {kind}" for kind in SHOWN)
    return examples, said


def _spread(items: Sequence[Any], number: int) -> list[Any]:
    """`number` of them, evenly spread."""
    return [items[place * len(items) // number] for place in range(number)] if len(items) > number else list(items)
