"""Responses of an evaluation to read: some problems, each with a response of every model."""

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mathrl.core.markdown import cell, code, fenced

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
        parts += [f"## {code(row['problem_id'])}", "", fenced(str(row["question"])), ""]
        parts += [f"Answer: {code(str(row['answer']))}", ""]
        for model in models:
            if model in row:
                mark, _, text = str(row[model]).partition(" ")
                parts += [f"**{cell(model)}** {mark}", "", fenced(text[:1500] + ("…" if len(text) > 1500 else "")), ""]
    return "\n".join(parts)
