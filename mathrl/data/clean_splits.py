"""Decontamination between the splits of one curation, and the shares of rl rows that other splits get."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from mathrl.core.seeding import derive_seed
from mathrl.core.types import Problem
from mathrl.data.curated import TRAINED, Curated
from mathrl.data.decontaminate import Search, evaluation_index
from mathrl.data.deduplicate import Reason
from mathrl.data.row_shards import SPLITS, Numbers
from mathrl.data.row_store import StoredProblems
from mathrl.data.stored_hits import hits_of_solutions, stored_hits
from mathrl.params.data import Curate, Decontaminate


def decontaminate_splits(
    problems: StoredProblems, against: Sequence[Problem], params: Decontaminate, name: str, curated: Curated
) -> StoredProblems:
    search = _search(against, params, curated)
    homes = {problem.id: problem.source for problem in against}
    curated.evaluation_homes |= homes
    curated.too_short += search.index.too_short

    def contaminated() -> Iterator[tuple[int, Reason]]:
        for number, hit in stored_hits(problems.of(*TRAINED), search, name.replace(" ", "-")):
            if not hit.dropped(params.min_share):
                # Reported, so that a person can judge the threshold.
                curated.hits.append(replace(hit, others=()) if hit.others else hit)
                continue
            curated.hits.append(hit)
            source = curated.store.source(number)
            curated.overlap[source, homes[hit.eval_id]] += 1
            curated.matched_whole[source] += hit.whole
            kind = "evaluation text whole" if hit.whole else "embedding" if hit.semantic else f"{params.ngram}-gram"
            why = ", dropped by decision" if hit.decision else ""
            detail = f"{kind} of its {hit.part}, share {hit.share:.2f}{why}: {hit.ngram or 'similar words'}"
            yield number, Reason("contaminated", hit.eval_id, detail)

    return curated.drop(name, problems, contaminated())


def _search(against: Sequence[Problem], params: Decontaminate, curated: Curated) -> Search:
    index = evaluation_index(params, others_from=params.min_share)
    for problem in against:
        index.add_problem(problem)
    return Search(index, _own_generator(against, params, curated))


def _own_generator(against: Sequence[Problem], params: Decontaminate, curated: Curated) -> dict[str, frozenset[str]]:
    """The ids that the rows of a generated source are not compared with: those of the same generator."""
    if params.within_generator:
        return {}
    return {source: frozenset(p.id for p in against if p.source == source) for source in curated.generated}


def share_out(problems: StoredProblems, target: str, share: float, seed: int, barred: Numbers | None = None) -> int:
    """Move a seeded share of the rl rows to `target` if that is empty, and return their number.

    Rows that are `barred` stay; if that leaves fewer rows than the share, all the others move.
    """
    if not share or len(problems.of(target)):
        return 0
    rl = problems.of("rl").numbers
    free = rl if barred is None else rl[~np.isin(rl, barred)]
    size = min(round(share * len(rl)), len(free))
    moved = random.Random(derive_seed(seed, "share_out", target)).sample(range(len(free)), size)
    problems.store.splits[free[moved]] = SPLITS.index(target)
    return size


def share_out_sft(
    problems: StoredProblems, against: Sequence[Problem], curate: Curate, seed: int, curated: Curated
) -> None:
    """Move the share of the sft split; a row whose solution is contaminated stays in rl, which never shows it."""
    clean = curate.decontaminate
    if not curate.sft_share or len(problems.of("sft")):
        return
    barred: list[int] = []
    if clean:
        solution_hits = hits_of_solutions(problems.of("rl"), _search(against, clean, curated))
        barred = [number for number, hit in solution_hits if hit.dropped(clean.min_share)]
    share_out(problems, "sft", curate.sft_share, seed, np.array(barred, np.int64))
    curated.solutions_barred = len(barred)
