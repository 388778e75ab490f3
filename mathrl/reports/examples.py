"""What an evaluation says in words: the table, the verdict, twenty responses side by side."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

COLUMNS = ("model", "pass@1", "pass@k", "maj@k", "response length", "truncated")


def table_rows(models: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """One row a model under `COLUMNS`; pass@k and maj@k name their k.

    Example:
        ("rl", "0.884 [0.861, 0.906]", "pass@8 0.945", "maj@8 0.913", "34.1", "0.2 %")
    """
    rows: list[tuple[str, ...]] = []
    for model, figures in models.items():
        ks = [int(name[8:]) for name in figures if name.startswith("pass_at_") and name[8:].isdigit()]
        k = max(ks)
        interval = f"{figures['pass_at_1']:.3f} [{figures['pass_at_1_low']:.3f}, {figures['pass_at_1_high']:.3f}]"
        maj = f"maj@{k} {figures[f'maj_at_{k}']:.3f}" if f"maj_at_{k}" in figures else ""
        some = f"pass@{k} {figures[f'pass_at_{k}']:.3f}" if k > 1 else ""
        length, truncated = figures["response_length"], 100 * figures["truncated_share"]
        rows.append((model, interval, some, maj, f"{length:.1f}", f"{truncated:.1f} %"))
    return rows


def side_by_side(
    responses: Sequence[Mapping[str, Any]], models: Sequence[str], count: int, seed: int
) -> list[dict[str, Any]]:
    """A seeded choice of problems, each with the first response of every model.

    Example:
        {"problem_id": "chain/test/00003", "question": "7+5-3*4=", "answer": "36",
         "rl": "✓ <think>7+5=12;…</think><answer>36</answer>"}
    """
    first: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in responses:
        first.setdefault((row["problem_id"], row["model"]), row)
    ids = sorted({id for id, _ in first})
    rows = []
    for id in sorted(random.Random(seed).sample(ids, min(count, len(ids)))):
        there = [(model, first[id, model]) for model in models if (id, model) in first]
        head = there[0][1]
        rows.append(
            {
                "problem_id": id,
                "question": head["question"],
                "answer": head["answers"][0],
                **{m: f"{'✓' if r['correct'] else '✗'} {r['response']}" for m, r in there},
            }
        )
    return rows


def examples_markdown(rows: Sequence[Mapping[str, Any]], models: Sequence[str], benchmark: str) -> str:
    """`side_by_side` for reading; the first of each model's responses, correct ✓ or wrong ✗."""
    parts = [f"# {len(rows)} problems of {benchmark}, one response of each model", ""]
    for row in rows:
        parts += [f"## `{row['problem_id']}`", "", _fenced(str(row["question"])), "", f"Answer: `{row['answer']}`", ""]
        for model in models:
            if model in row:
                mark, _, text = str(row[model]).partition(" ")
                parts += [f"**{model}** {mark}", "", _fenced(text[:1500] + ("…" if len(text) > 1500 else "")), ""]
    return "\n".join(parts)


def _fenced(text: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}text\n{text}\n{fence}"
