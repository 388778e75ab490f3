"""The steps of the curate stage, in order: read → deduplicate → quality → decontaminate → share out → check.

Nothing is dropped silently: every row read ends in a split, in `dropped` or in `rejected`, or is counted as left
out by the `keep` and `limit` of its source. The rows are on disk (row_store.py); a step works on their numbers.
"""

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import NoReturn

import numpy as np

from mathrl.core.errors import UserError
from mathrl.core.files import from_fields
from mathrl.core.hashing import derive_seed
from mathrl.core.types import Problem
from mathrl.curation.curated import TRAINED, Curated, CurationStep
from mathrl.curation.decontaminate import Hit, Search, evaluation_index, trained_texts
from mathrl.curation.deduplicate import BENCHMARK, Dropped, Reason, deduplicate
from mathrl.curation.processes import in_order
from mathrl.curation.quality_gate import pass_gate
from mathrl.curation.row_shards import SPLITS, Digesting, Item, Numbers, Summary, write_shard
from mathrl.curation.row_store import RowStore, ShardRows, StoredProblems, shard_tasks
from mathrl.curation.similar_questions import model_folder
from mathrl.params.data import Curate, Decontaminate
from mathrl.reading.reading import (
    Read,
    Reader,
    Rejected,
    input_row,
    read_source,
    reject_repeated,
    rows_of,
    split_rejected,
)
from mathrl.reading.row_files import Row
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
        UserError: a source cannot be read, a bad row with on_bad_row stop, or no row is left.
    """
    planned = planned or plan(curate)
    clean = curate.decontaminate
    shown = frozenset({"sft", "rl"} if curate.sft_share else {"sft"})
    digesting = Digesting(curate.deduplicate.near, clean is not None, shown)
    generated = frozenset(r.name for r in planned.sources if r.generated)
    curated = Curated(RowStore(folder, digesting), generated)
    remedy = "correct the row, or set curate.on_bad_row to reject" if curate.on_bad_row == "stop" else None
    problems = read_sources(planned.sources, seed, remedy, curated)
    if not problems:
        raise UserError("curate: the sources hold no problem; add one to sources in params/curate.yaml")
    dropped, curated.variants = deduplicate(curated.store, curate.deduplicate)
    kept = curated.drop("deduplicate", problems, dropped)
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
    if not len(kept):
        _nothing_left(curated.dropped)
    return curated


def _nothing_left(dropped: Sequence[Dropped]) -> NoReturn:
    counts = Counter(row.reason for row in dropped)
    reasons, first = ", ".join(f"{reason} {count}" for reason, count in counts.items()), dropped[0]
    raise UserError(
        f"curate: no row is left of {len(dropped)} ({reasons}; the first: {first.id} for {first.other}, "
        f"{first.detail}); add sources, or loosen deduplicate and decontaminate"
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
    curated.evaluation_homes |= homes
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
        partial = file.with_suffix(".partial")
        partial.write_text("".join(json.dumps([number, asdict(hit)]) + "\n" for number, hit in hits), encoding="utf-8")
        partial.replace(file)
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


def _hits(step: _Step, piece: ShardRows) -> Hits:
    return step.hits(piece)


def stored_hits(problems: StoredProblems, search: Search, name: str) -> Iterator[tuple[int, Hit]]:
    """The numbers of the problems with a hit, ascending, and the strongest hit of each, for the step `name`."""
    for hits in in_order(_hits, _Step(name, search), problems.pieces()):
        yield from hits


def hits_of_solutions(problems: StoredProblems, search: Search) -> Iterator[tuple[int, Hit]]:
    """Like `stored_hits`, of the worked solutions alone."""
    for hits in in_order(_hits, _Step("solutions", search, solutions=True), problems.pieces()):
        yield from hits


def read_sources(sources: Iterable[ResolvedSource], seed: int, remedy: str | None, curated: Curated) -> StoredProblems:
    """The problems of all sources; bad rows, counts and digests go into the account.

    Raises:
        UserError: a source cannot be read or is empty, or has a bad row for which there is a `remedy`.
    """
    store = curated.store
    numbers = [np.empty(0, np.int64)]
    for resolved in sources:
        read, first = Read(), len(store)
        good, bad, cut = _read(resolved, seed, read, remedy, store)
        if not len(good) and not bad and not resolved.generated:
            raise UserError(f"{resolved.describe()}: no row in it")
        curated.inputs.append(input_row(resolved, read))
        if cut:
            curated.cut_turns[resolved.name] = curated.cut_turns.get(resolved.name, 0) + cut
        store.rename(store.in_earlier(first), resolved.name)  # rows that two sources share get distinct ids
        numbers.append(good)
        curated.rejected += bad
        name = f"read {resolved.name}" + (f" ({resolved.split})" if resolved.split else "")
        reasons = +Counter({"bad row": len(bad), **read.left_out})
        curated.steps.append(CurationStep(name, len(good) + reasons.total(), len(good), reasons))
    return StoredProblems(store, np.concatenate(numbers))


def _read(
    resolved: ResolvedSource, seed: int, read: Read, remedy: str | None, store: RowStore
) -> tuple[Numbers, list[Rejected], int]:
    """The numbers of a source's good rows, its bad rows in order, and the assistant turns cut off its prompts."""
    items, reader = _items(resolved, seed, read)
    tasks = shard_tasks(store.folder, len(store.shards), items, reader)
    first, summaries, failure = len(store), list[Summary](), None
    try:
        for summary in in_order(write_shard, store.digesting, tasks):
            summaries.append(summary)
            if remedy and summary.rejected:
                break
    except UserError as error:  # unless a row before it is bad
        failure = error
    starts = store.add([summary.stem for summary in summaries], resolved.name)
    repeats = _repeats(store, first, resolved.name)
    bad = _bad_rows(summaries, starts, repeats)
    if remedy and bad:
        raise UserError(f"{bad[0].where}: {bad[0].reason}; {remedy}")
    if failure:
        raise failure
    numbers = np.fromiter(repeats, np.int64, len(repeats))
    store.drop(numbers)
    read.left_out.update({"left out by keep": sum(summary.left_out for summary in summaries)})
    good = np.setdiff1d(np.arange(first, len(store)), numbers, assume_unique=True)
    return good, bad, sum(summary.cut_turns for summary in summaries)


def _items(resolved: ResolvedSource, seed: int, read: Read) -> tuple[Iterator[Item], Reader | None]:
    """The rows, and what makes problems of them; or problems, where rows are drawn or generated in order."""
    if resolved.generated or resolved.limit is not None:
        return iter(read_source(resolved, seed, read)), None
    rows, reader, unread = rows_of(resolved, read), Reader(resolved, seed), list[Row]()
    for row in rows:
        unread.append(row)
        if not row.problem:
            reader.fit(row)  # every shard begins with the shape of the source's first row
            break
    return chain(unread, rows), reader


def _repeats(store: RowStore, since: int, source: str) -> dict[int, Rejected]:
    """The rows from the number `since` on that have the id of an earlier one, by number."""
    numbers, groups = store.alike("id", since=since)
    repeats = {}
    for number in np.sort(numbers[numbers != groups]).tolist():  # a group has the number of its first row
        shard, at = store.place(number)
        repeats[number] = reject_repeated(store.problem(number).id, *store.shards[shard].places(at), source)
    return repeats


def _bad_rows(summaries: Iterable[Summary], starts: Iterable[int], repeats: dict[int, Rejected]) -> list[Rejected]:
    """All bad rows in the order of the source."""
    placed = [
        ((start + before, 0), row)
        for summary, start in zip(summaries, starts, strict=True)
        for before, row in summary.rejected
    ]
    placed += [((number, 1), row) for number, row in repeats.items()]
    return [row for _, row in sorted(placed, key=lambda pair: pair[0])]
