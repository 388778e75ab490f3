"""The steps of the curate stage, in order: read → deduplicate → decontaminate → share out → check.

Nothing is dropped silently: every row read ends in a split, in `dropped` or in `rejected`, or is counted as left
out by the `keep` and `limit` of its source.
"""

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from mathrl.core.errors import UserError
from mathrl.core.seeding import derive_seed
from mathrl.core.types import Problem
from mathrl.data.decontaminate import EvaluationIndex, Hit, find_hits
from mathrl.data.deduplicate import Dropped, deduplicate
from mathrl.data.grams import exact_key
from mathrl.data.reading import Read, Rejected, input_row, read_source, taken
from mathrl.data.sources import ResolvedSource, resolve_evaluation, resolve_source
from mathrl.params.data import Curate, Decontaminate

SPLITS = ("sft", "rl", "dev", "test")
TRAINED = ("sft", "rl")


@dataclass(frozen=True)
class CurationPlan:
    """The sources to read, and the further evaluation sets of decontamination."""

    sources: tuple[ResolvedSource, ...]
    evaluation: tuple[ResolvedSource, ...]

    def describe(self) -> list[str]:
        return [r.describe() for r in self.sources] + [f"against {r.describe()}" for r in self.evaluation]


@dataclass
class CurationStep:
    """The number of rows before and after one step, and why rows went."""

    name: str
    rows_in: int
    rows_out: int
    reasons: Counter[str] = field(default_factory=Counter)


@dataclass
class Curated:
    """Disjoint splits, and an account of every row that is not in them."""

    splits: dict[str, list[Problem]]
    dropped: list[Dropped]
    rejected: list[Rejected]
    hits: list[Hit]
    steps: list[CurationStep]
    too_short: list[str]
    evaluation_sizes: dict[str, int]
    generated: frozenset[str]
    evaluation_homes: dict[str, str] = field(default_factory=dict)
    inputs: list[dict[str, Any]] = field(default_factory=list)
    evaluation_inputs: list[dict[str, Any]] = field(default_factory=list)


def plan(curate: Curate) -> CurationPlan:
    """Find every file, or the hub id where no local file is.

    Raises:
        UserError: a file, a folder or a name that does not exist.
    """
    sources = tuple(resolve_source(source, curate.data_folder) for source in curate.sources)
    clean = curate.decontaminate
    further = resolve_evaluation(clean.benchmarks, clean.files, curate.data_folder) if clean else []
    return CurationPlan(sources, tuple(further))


def run(curate: Curate, seed: int, planned: CurationPlan | None = None) -> Curated:
    """Curate the sources.

    Raises:
        UserError: a source cannot be read, a bad row with on_bad_row stop, or no row is left.
    """
    planned = planned or plan(curate)
    generated = frozenset(r.name for r in planned.sources if r.generated)
    curated = Curated({}, [], [], [], [], [], {}, generated)
    remedy = "correct the row, or set curate.on_bad_row to reject" if curate.on_bad_row == "stop" else None
    problems = _read(planned.sources, seed, remedy, curated)
    if not problems:
        raise UserError("curate: the sources hold no problem; add one to sources in params/curate.yaml")
    kept, dropped = deduplicate(problems, curate.deduplicate)
    _account(curated, "deduplicate", problems, kept, dropped)
    kept, _ = share_out(kept, "test", curate.test_share, seed)
    held_out = [p for p in kept if p.split in ("dev", "test")]
    if curate.decontaminate:
        against = [p for p in held_out if p.split in curate.decontaminate.against]
        for resolved in planned.evaluation:
            read = Read()
            problems_of_set, bad = taken(read_source(resolved, seed, read), remedy)
            curated.evaluation_inputs.append(input_row(resolved, read))
            curated.rejected += bad
            curated.evaluation_sizes[resolved.name] = len(problems_of_set)
            ids = {p.id for p in against}
            against += [p.with_(id=f"{p.source}/{p.id}") if p.id in ids else p for p in problems_of_set]
        kept = _decontaminate(kept, against, curate.decontaminate, "decontaminate", curated)
    kept, moved_dev = share_out(kept, "dev", curate.dev_share, seed)
    if moved_dev and curate.decontaminate and "dev" in curate.decontaminate.against:
        dev = [p for p in kept if p.split == "dev"]
        kept = _decontaminate(kept, dev, curate.decontaminate, "decontaminate against the shared-out dev", curated)
    kept, _ = share_out(kept, "sft", curate.sft_share, seed)
    curated.splits = {split: [p for p in kept if p.split == split] for split in SPLITS}
    check_disjoint(curated.splits)
    if not any(curated.splits.values()):
        _nothing_left(curated.dropped)
    return curated


def share_out(problems: Sequence[Problem], target: str, share: float, seed: int) -> tuple[list[Problem], int]:
    """Move a seeded share of the rl rows to `target` if that is empty; all rows, and the number moved."""
    if not share or any(p.split == target for p in problems):
        return list(problems), 0
    at = [i for i, p in enumerate(problems) if p.split == "rl"]
    moved = set(random.Random(derive_seed(seed, "share_out", target)).sample(at, round(share * len(at))))
    return [p.with_(split=target) if i in moved else p for i, p in enumerate(problems)], len(moved)


def _nothing_left(dropped: list[Dropped]) -> NoReturn:
    counts = Counter(row.reason for row in dropped)
    reasons, first = ", ".join(f"{reason} {count}" for reason, count in counts.items()), dropped[0]
    raise UserError(
        f"curate: no row is left of {len(dropped)} ({reasons}; the first: {first.problem.id} for {first.other}, "
        f"{first.detail}); add sources, or loosen deduplicate and decontaminate"
    )


def check_disjoint(splits: dict[str, list[Problem]]) -> None:
    """Check that no question and no id occurs twice, in one split or in two.

    Raises:
        UserError: names both problems.
    """
    questions: dict[int, Problem] = {}
    ids: dict[str, Problem] = {}
    for problem in (p for rows in splits.values() for p in rows):
        twin = questions.setdefault(exact_key(problem.question), problem)
        if twin is not problem:
            raise UserError(
                f"curate: {twin.id} ({twin.split}) and {problem.id} ({problem.split}) ask the same question; "
                "set deduplicate.exact to true"
            )
        if ids.setdefault(problem.id, problem) is not problem:
            raise UserError(f"curate: the id {problem.id} occurs twice; give its source a unique id_key")


def _read(sources: Iterable[ResolvedSource], seed: int, remedy: str | None, curated: Curated) -> list[Problem]:
    problems: list[Problem] = []
    ids: set[str] = set()
    for resolved in sources:
        read = Read()
        source_problems, bad = taken(read_source(resolved, seed, read), remedy)
        curated.inputs.append(input_row(resolved, read))
        # Rows that two sources share get distinct ids.
        source_problems = [p.with_(id=f"{p.source}/{p.split}/{p.id}") if p.id in ids else p for p in source_problems]
        ids.update(p.id for p in source_problems)
        problems += source_problems
        curated.rejected += bad
        name = f"read {resolved.name}" + (f" ({resolved.split})" if resolved.split else "")
        reasons = +Counter({"bad row": len(bad), **read.left_out})
        curated.steps.append(CurationStep(name, len(source_problems) + reasons.total(), len(source_problems), reasons))
    return problems


def _decontaminate(
    problems: Sequence[Problem], against: Sequence[Problem], params: Decontaminate, name: str, curated: Curated
) -> list[Problem]:
    index = EvaluationIndex(params.ngram)
    own_generator: dict[str, frozenset[str]] = {}
    for problem in against:
        index.add_problem(problem)
        curated.evaluation_homes[problem.id] = problem.source
    if not params.within_generator:
        own_generator = {s: frozenset(p.id for p in against if p.source == s) for s in curated.generated}
    kept: list[Problem] = []
    dropped: list[Dropped] = []
    for problem in problems:
        if problem.split not in TRAINED:
            kept.append(problem)
            continue
        ((_, hit),) = find_hits([problem], index, skip=own_generator.get(problem.source, frozenset()))
        if hit is None:
            kept.append(problem)
        elif hit.share < params.min_share:
            curated.hits.append(replace(hit, others=()))  # reported, so that a person can judge the threshold
            kept.append(problem)
        else:
            curated.hits.append(hit)
            kind = "evaluation text whole" if hit.whole else f"{params.ngram}-gram"
            detail = f"{kind} of its {hit.part}, share {hit.share:.2f}: {hit.ngram}"
            dropped.append(Dropped(problem, "contaminated", hit.eval_id, detail))
    curated.too_short += index.too_short
    _account(curated, name, problems, kept, dropped)
    return kept


def _account(curated: Curated, name: str, before: Sequence[Any], after: Sequence[Any], dropped: list[Dropped]) -> None:
    curated.steps.append(CurationStep(name, len(before), len(after), Counter(row.reason for row in dropped)))
    curated.dropped += dropped
