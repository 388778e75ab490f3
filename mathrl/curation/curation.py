"""The steps of the curate stage, in order: read → deduplicate → quality → decontaminate → share out → check.

Nothing is dropped silently: every row read ends in a split, in `dropped` or in `rejected`, or is counted as left
out by the `keep` and `limit` of its source. The rows are on disk (row_store.py); a step works on their numbers.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import NoReturn

import numpy as np

from mathrl.core.errors import UserError
from mathrl.core.files import from_fields, read_jsonl, to_fields, written_aside
from mathrl.core.hashing import derive_seed
from mathrl.core.types import Problem
from mathrl.curation.curated import TRAINED, Curated, read_sources
from mathrl.curation.decisions import Hit
from mathrl.curation.decontaminate import Search, evaluation_index, model_folder, trained_texts
from mathrl.curation.deduplicate import BENCHMARK, Reason, deduplicate
from mathrl.curation.processes import in_order
from mathrl.curation.quality import DESCRIPTIONS, Broken, broken_rules, votes_of
from mathrl.curation.row_shards import SPLITS, Digesting, Numbers
from mathrl.curation.row_store import RowStore, ShardRows, StoredProblems
from mathrl.params.data import Curate, Decontaminate, Quality
from mathrl.reading.reading import Read, input_row, read_source, split_rejected
from mathrl.reading.sources import ResolvedSource, absolute, resolve_evaluation, resolve_source


@dataclass(frozen=True)
class CurationPlan:
    """The sources to read, and the further evaluation sets of decontamination."""

    sources: tuple[ResolvedSource, ...]
    evaluation: tuple[ResolvedSource, ...]
    samples: Path | None = None  # a policy's graded samples, for curate.quality

    def describe(self) -> list[str]:
        return [r.describe() for r in self.sources] + [f"against {r.describe()}" for r in self.evaluation]


def plan(curate: Curate) -> CurationPlan:
    """Find every file, or the hub id where no local file is.

    Raises:
        UserError: a file, a folder or a name that does not exist, or an embedding model's folder without a model.
    """
    sources = tuple(resolve_source(source, curate.data_folder) for source in curate.sources)
    clean = curate.decontaminate
    further = resolve_evaluation(clean.benchmarks, clean.files, curate.data_folder) if clean else []
    samples = absolute(curate.quality.samples) if curate.quality and curate.quality.samples else None
    if samples and not samples.is_file():
        raise UserError(f"curate.quality.samples: {samples} is not a file; name the samples.jsonl of a sample step")
    if clean and clean.embedding:
        model_folder(clean.embedding.model)
    return CurationPlan(sources, tuple(further), samples)


def run(curate: Curate, seed: int, planned: CurationPlan | None = None, folder: Path | None = None) -> Curated:
    """Curate the sources.

    `folder` keeps the rows that were read, so that a killed run goes on there; without it a temporary folder does.

    Raises:
        UserError: a source cannot be read, a bad row with on_bad_row stop, or no row is left, or none to train on.
    """
    planned = planned or plan(curate)
    clean = curate.decontaminate
    shown = frozenset({"sft", "rl"} if curate.sft_share else {"sft"})
    digesting = Digesting(curate.deduplicate.near, clean is not None, shown)
    curated = Curated(RowStore(folder, digesting), curate.not_compared_within())
    remedy = "correct the row, or set curate.on_bad_row to reject" if curate.on_bad_row == "stop" else None
    kept = read_sources(planned.sources, seed, remedy, curated)
    if not kept:
        raise UserError("curate: the sources hold no problem; add one to sources in params/curate.yaml")
    wanted = TRAINED if len(kept.of(*TRAINED)) else SPLITS
    dropped, curated.variants = deduplicate(curated.store, curate.deduplicate)
    kept = curated.drop("deduplicate", kept, dropped)
    curated.store.release()
    if curate.quality:
        kept = pass_gate(kept, planned.samples, curate.quality, curated)
    share_out(kept, "test", curate.test_share, seed)
    against: list[Problem] = []
    if clean:
        against += kept.of(*({"dev", "test"} & {*clean.against}))
        for resolved in planned.evaluation:
            read = Read()
            problems_of_set, bad = split_rejected(read_source(resolved, seed, read), remedy)
            curated.evaluation_inputs.append(input_row(resolved, read))
            curated.rejected += bad
            curated.evaluation_sizes[resolved.name] = len(problems_of_set)
            ids = {p.id for p in against}
            against += [p.with_(id=f"{p.source}/{p.id}") if p.id in ids else p for p in problems_of_set]
        kept = decontaminate_splits(kept, against, clean, "decontaminate", curated)
    moved_dev = share_out(kept, "dev", curate.dev_share, seed)
    if moved_dev and clean and "dev" in clean.against:
        dev = list(kept.of("dev"))
        kept = decontaminate_splits(kept, dev, clean, "decontaminate against the shared-out dev", curated)
        against += dev
    share_out_sft(kept, against, curate, seed, curated)
    curated.splits = {split: kept.of(split) for split in SPLITS}
    check_disjoint(curated.store)
    if not len(kept.of(*wanted)):
        _nothing_left(curated, "" if wanted == SPLITS else " to train on")
    return curated


def _nothing_left(curated: Curated, use: str) -> NoReturn:
    dropped = curated.dropped
    counts = Counter(row.reason for row in dropped)
    reasons, first = ", ".join(f"{reason} {count}" for reason, count in counts.items()), dropped[0]
    own = sorted({source for source, home in curated.overlap if source == home})
    remedy = f"set one_template: true on {', '.join(own)} if its rows are written from one template, " if own else ""
    raise UserError(
        f"curate: no row{use} is left of {len(dropped)} ({reasons}; the first: {first.id} for {first.other}, "
        f"{first.detail}); {remedy}add sources, or loosen deduplicate and decontaminate"
    )


def check_disjoint(store: RowStore) -> None:
    """Check that no id occurs twice, and no question, in one split or in two.

    A benchmark may ask a question twice, since it is measured as it was published.

    Raises:
        UserError: names both problems.
    """
    for columns in (("high", "low"), ("id",)):
        numbers, groups = store.alike(*columns)
        for group in np.split(numbers, np.flatnonzero(np.diff(groups)) + 1) if len(numbers) else []:
            problems = sorted(map(store.problem, group.tolist()), key=lambda problem: SPLITS.index(problem.split))
            twin, problem = problems[:2]
            if columns == ("id",):
                raise UserError(f"curate: the id {problem.id} occurs twice; give its source a unique id_key")
            if not twin.split == problems[-1].split == BENCHMARK:
                raise UserError(
                    f"curate: {twin.id} ({twin.split}) and {problem.id} ({problem.split}) ask the same question; "
                    "set deduplicate.exact to true"
                )


def decontaminate_splits(
    problems: StoredProblems, against: Sequence[Problem], params: Decontaminate, name: str, curated: Curated
) -> StoredProblems:
    search = _search(against, params, curated)
    homes = {problem.id: problem.source for problem in against}
    curated.too_short += search.index.too_short

    def contaminated_rows() -> Iterator[tuple[int, Reason]]:
        for number, hit in stored_hits(problems.of(*TRAINED), search, name.replace(" ", "-")):
            if not hit.is_dropped(params.min_share):
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

    return curated.drop(name, problems, contaminated_rows())


def _search(against: Sequence[Problem], params: Decontaminate, curated: Curated) -> Search:
    index = evaluation_index(params, others_from=params.min_share)
    for problem in against:
        index.add_problem(problem)
    alike = {source: frozenset(p.id for p in against if p.source == source) for source in curated.alike}
    return Search(index, alike)


@dataclass(frozen=True)
class _Gate:
    """The quality gate; `votes` are a policy's answers by problem id."""

    votes: dict[str, list[str]]
    quality: Quality

    def check(self, piece: ShardRows) -> list[tuple[int, Broken]]:
        """The rows of a piece that break rules, with their numbers."""
        return [
            (number, Broken(p.id, p.source, p.split, tuple(rules), p.question, p.answers))
            for number, p in piece.problems()
            if (rules := broken_rules(p, self.votes, self.quality))
        ]


def pass_gate(problems: StoredProblems, samples: Path | None, quality: Quality, curated: Curated) -> StoredProblems:
    """The rows without the training rows that break a rule of `quality.drop`; dev and test rows all stay.

    Every row that breaks a rule goes into the account.
    """
    gate = _Gate(votes_of(read_jsonl(samples)) if samples else {}, quality)

    def failing_rows() -> Iterator[tuple[int, Reason]]:
        for number, broken in chain.from_iterable(in_order(_Gate.check, gate, problems.pieces())):
            curated.broken.append(broken)
            reasons = [rule for rule in broken.rules if rule in quality.drop] if broken.split in TRAINED else []
            if reasons:
                yield number, Reason(reasons[0], None, "; ".join(DESCRIPTIONS[rule] for rule in reasons))

    return curated.drop("quality", problems, failing_rows())


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
        solution_hits = stored_hits(problems.of("rl"), _search(against, clean, curated), "solutions", solutions=True)
        barred = [number for number, hit in solution_hits if hit.is_dropped(clean.min_share)]
    share_out(problems, "sft", curate.sft_share, seed, np.array(barred, np.int64))
    curated.solutions_barred = len(barred)


Hits = list[tuple[int, Hit]]


@dataclass(frozen=True)
class _Step:
    """A search, under the name of the curation step whose hits the files hold."""

    name: str
    search: Search
    solutions: bool = False  # the worked solutions alone, of rows of any split

    def hits(self, piece: ShardRows) -> Hits:
        """The numbers of the rows with a hit, ascending, and the strongest hit of each."""
        file = piece.stem.with_suffix(f".{self.name}.hits")
        if file.exists():
            with file.open(encoding="utf-8") as stream:
                return [(number, from_fields(Hit, row)) for number, row in map(json.loads, stream)]
        hits = self._search(piece)
        with written_aside(file) as aside, aside.open("w", encoding="utf-8") as stream:
            stream.writelines(json.dumps([number, to_fields(hit)]) + "\n" for number, hit in hits)
        return hits

    def _search(self, piece: ShardRows) -> Hits:
        index, shard = self.search.index, piece.shard
        solved = index.may_hit(shard.rows("solution_grams", piece.at))
        if self.solutions:
            return self._strongest([(n, p, [p.solution or ""]) for n, p in piece.only(solved).problems()])
        asked = index.may_hit(shard.rows("question_grams", piece.at)) | solved & (piece.splits == SPLITS.index("sft"))
        return self._strongest([(n, p, list(trained_texts(p))) for n, p in piece.only(asked).problems()])

    def _strongest(self, rows: Sequence[tuple[int, Problem, list[str]]]) -> Hits:
        hits = self.search.strongest([(problem, texts) for _, problem, texts in rows])
        return [(number, hit) for (number, _, _), hit in zip(rows, hits, strict=True) if hit]


def stored_hits(
    problems: StoredProblems, search: Search, name: str, *, solutions: bool = False
) -> Iterator[tuple[int, Hit]]:
    """The numbers of the problems with a hit, ascending, and the strongest hit of each, for the step `name`."""
    for hits in in_order(_Step.hits, _Step(name, search, solutions), problems.pieces()):
        yield from hits
