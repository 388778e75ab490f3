"""The quality gate as a step of curation: drops training rows by its rules, and reports every row that breaks one."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from mathrl.core.files import read_jsonl
from mathrl.core.markdown import code, table
from mathrl.curation.curated import TRAINED, Curated
from mathrl.curation.deduplicate import Reason
from mathrl.curation.processes import in_order
from mathrl.curation.quality import DESCRIPTIONS, Broken, broken_rules, votes_of
from mathrl.curation.row_store import ShardRows, StoredProblems
from mathrl.params.data import Quality

EXAMPLES = 3  # per rule in the report


@dataclass(frozen=True)
class _Gate:
    """What the rules need beside the problem; `votes` are a policy's answers by problem id."""

    votes: dict[str, list[str]]
    quality: Quality


def pass_gate(problems: StoredProblems, samples: Path | None, quality: Quality, curated: Curated) -> StoredProblems:
    """The rows without the training rows that break a rule of `quality.drop`; dev and test rows all stay."""
    gate = _Gate(votes_of(read_jsonl(samples)) if samples else {}, quality)
    return curated.drop("quality", problems, _failing_rows(problems, gate, curated))


def _failing_rows(problems: StoredProblems, gate: _Gate, curated: Curated) -> Iterator[tuple[int, Reason]]:
    """The rows to drop, by number; every row that breaks a rule goes into the account."""
    for number, broken in chain.from_iterable(in_order(_check, gate, problems.pieces())):
        curated.broken.append(broken)
        reasons = [rule for rule in broken.rules if rule in gate.quality.drop] if broken.split in TRAINED else []
        if reasons:
            yield number, Reason(reasons[0], None, "; ".join(DESCRIPTIONS[rule] for rule in reasons))


def _check(gate: _Gate, piece: ShardRows) -> list[tuple[int, Broken]]:
    """The rows of a piece that break rules, with their numbers."""
    return [
        (number, Broken(p.id, p.source, p.split, tuple(rules), p.question, p.answers))
        for number, p in piece.problems()
        if (rules := broken_rules(p, gate.votes, gate.quality))
    ]


def quality_section(curated: Curated, quality: Quality | None, seed: int) -> list[str]:
    """The report's part about the gate: rows per rule, in training and held-out splits, and examples of each."""
    if quality is None:
        return []
    trained, held_out = (
        Counter(rule for row in curated.broken if (row.split in TRAINED) == of for rule in row.rules)
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
        at = [number for number, row in enumerate(curated.broken) if name in row.rules]
        if at:
            parts += ["", f"### {name} ({len(at):,})", ""]
            for problem in map(curated.broken.__getitem__, random.Random(seed).sample(at, min(EXAMPLES, len(at)))):
                answers = ", ".join(problem.answers)
                parts += [f"- {code(problem.id)}: {code(problem.question, 300)} (answer: {code(answers, 60)})"]
    return [*parts, ""]
