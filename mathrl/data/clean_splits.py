"""Decontamination between the splits of one curation, and the shares of rl rows that other splits get."""

import random
from collections.abc import Sequence
from dataclasses import replace

from mathrl.core.seeding import derive_seed
from mathrl.core.types import Problem
from mathrl.data.curated import TRAINED, Curated, account
from mathrl.data.decisions import decisions_of
from mathrl.data.decontaminate import EvaluationIndex, find_hits
from mathrl.data.deduplicate import Dropped
from mathrl.params.data import Curate, Decontaminate


def decontaminate_splits(
    problems: Sequence[Problem], against: Sequence[Problem], params: Decontaminate, name: str, curated: Curated
) -> list[Problem]:
    index = _index(against, params)
    own_generator = _own_generator(against, params, curated)
    curated.evaluation_homes |= {problem.id: problem.source for problem in against}
    kept: list[Problem] = []
    dropped: list[Dropped] = []
    trained = (problem for problem in problems if problem.split in TRAINED)
    hits = find_hits(trained, index, skips=own_generator)
    for problem in problems:
        hit = next(hits)[1] if problem.split in TRAINED else None
        if hit is None:
            kept.append(problem)
        elif not hit.dropped(params.min_share):
            curated.hits.append(replace(hit, others=()))  # reported, so that a person can judge the threshold
            kept.append(problem)
        else:
            curated.hits.append(hit)
            kind = "evaluation text whole" if hit.whole else f"{params.ngram}-gram"
            why = ", dropped by decision" if hit.decision else ""
            detail = f"{kind} of its {hit.part}, share {hit.share:.2f}{why}: {hit.ngram}"
            dropped.append(Dropped(problem, "contaminated", hit.eval_id, detail))
    curated.too_short += index.too_short
    account(curated, name, problems, kept, dropped)
    return kept


def _index(against: Sequence[Problem], params: Decontaminate) -> EvaluationIndex:
    index = EvaluationIndex(params.ngram, params.share, decisions_of(params))
    for problem in against:
        index.add_problem(problem)
    return index


def _own_generator(against: Sequence[Problem], params: Decontaminate, curated: Curated) -> dict[str, frozenset[str]]:
    """The ids that the rows of a generated source are not compared with: those of the same generator."""
    if params.within_generator:
        return {}
    return {source: frozenset(p.id for p in against if p.source == source) for source in curated.generated}


def share_out(
    problems: Sequence[Problem], target: str, share: float, seed: int, barred: frozenset[str] = frozenset()
) -> tuple[list[Problem], int]:
    """Move a seeded share of the rl rows to `target` if that is empty; all rows, and the number moved.

    Rows whose ids are `barred` stay; if that leaves fewer rows than the share, all the others move.
    """
    if not share or any(p.split == target for p in problems):
        return list(problems), 0
    rl = [i for i, p in enumerate(problems) if p.split == "rl"]
    at = [i for i in rl if problems[i].id not in barred]
    size = min(round(share * len(rl)), len(at))
    moved = set(random.Random(derive_seed(seed, "share_out", target)).sample(at, size))
    return [p.with_(split=target) if i in moved else p for i, p in enumerate(problems)], len(moved)


def share_out_sft(
    problems: list[Problem], against: Sequence[Problem], curate: Curate, seed: int, curated: Curated
) -> list[Problem]:
    """Move the share of the sft split; a row whose solution is contaminated stays in rl, which never shows it."""
    clean = curate.decontaminate
    if not curate.sft_share or any(p.split == "sft" for p in problems):
        return problems
    barred: frozenset[str] = frozenset()
    if clean:
        index = _index(against, clean)
        skips = _own_generator(against, clean, curated)
        rows = [p for p in problems if p.split == "rl" and p.solution]
        hits = ((p, index.look_up(p.id, p.solution or "", skips.get(p.source, frozenset()))) for p in rows)
        barred = frozenset(p.id for p, hit in hits if hit and hit.dropped(clean.min_share))
    shared, _ = share_out(problems, "sft", curate.sft_share, seed, barred)
    curated.solutions_barred = len(barred)
    return shared
