"""The quality gate as a step of curation: drops training rows by its rules, and reports every row that breaks one."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

from mathrl.core.files import read_jsonl
from mathrl.core.types import Problem
from mathrl.data.curated import TRAINED, Curated, account
from mathrl.data.deduplicate import Dropped
from mathrl.data.markdown import cell, table
from mathrl.data.quality import DESCRIPTIONS, broken_rules, votes_of
from mathrl.params.quality import Quality

EXAMPLES = 3  # per rule in the report


def pass_gate(problems: list[Problem], samples: Path | None, quality: Quality, curated: Curated) -> list[Problem]:
    """The rows without the training rows that break a rule of `quality.drop`; dev and test rows all stay."""
    votes = votes_of(read_jsonl(samples)) if samples else {}
    kept: list[Problem] = []
    dropped: list[Dropped] = []
    for problem in problems:
        rules = broken_rules(problem, votes, quality)
        if rules:
            curated.broken.append((problem, rules))
        reasons = [rule for rule in rules if rule in quality.drop] if problem.split in TRAINED else []
        if reasons:
            dropped.append(Dropped(problem, reasons[0], detail="; ".join(DESCRIPTIONS[rule] for rule in reasons)))
        else:
            kept.append(problem)
    account(curated, "quality", problems, kept, dropped)
    return kept


def broken_row(problem: Problem, rules: list[Any]) -> dict[str, Any]:
    """A line of quality.jsonl.

    Example:
        {"id": "dapo/08414", "source": "dapo", "split": "rl", "rules": ["link", "figure"], "question": "…",
         "answers": ["49"]}
    """
    row = {"id": problem.id, "source": problem.source, "split": problem.split, "rules": rules}
    return row | {"question": problem.question, "answers": list(problem.answers)}


def quality_section(curated: Curated, quality: Quality | None, seed: int) -> list[str]:
    """The report's part about the gate: rows per rule, in training and held-out splits, and examples of each."""
    if quality is None:
        return []
    trained, held_out = (
        Counter(rule for problem, rules in curated.broken if (problem.split in TRAINED) == of for rule in rules)
        for of in (True, False)
    )
    parts = [
        "## Quality",
        "",
        "Training rows that break a dropped rule go; rows of dev and test stay and are only counted. "
        "`data/curated/quality.jsonl` lists every row that breaks a rule.",
        "",
    ]
    rows = (
        (name, what, f"{trained[name]:,}", "dropped" if name in quality.drop else "reported", f"{held_out[name]:,}")
        for name, what in DESCRIPTIONS.items()
        if name != "majority" or quality.samples
    )
    parts += table(("rule", "a problem that", "training rows", "which are", "dev and test rows"), rows)
    for name in DESCRIPTIONS:
        problems = [problem for problem, rules in curated.broken if name in rules]
        if problems:
            parts += ["", f"### {name} ({len(problems):,})", ""]
            for problem in random.Random(seed).sample(problems, min(EXAMPLES, len(problems))):
                answers = ", ".join(problem.answers)
                parts += [f"- `{problem.id}`: {cell(problem.question)[:300]} (answer: {cell(answers)[:60]})"]
    return [*parts, ""]
