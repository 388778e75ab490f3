"""The steps of the curate stage, in order: read → deduplicate → quality → decontaminate → share out → check.

Nothing is dropped silently: every row read ends in a split, in `dropped` or in `rejected`, or is counted as left
out by the `keep` and `limit` of its source. The rows are on disk (row_store.py); a step works on their numbers.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from mathrl.core.errors import UserError
from mathrl.core.types import Problem
from mathrl.data.clean_splits import decontaminate_splits, share_out, share_out_sft
from mathrl.data.curated import Curated
from mathrl.data.deduplicate import BENCHMARK, Dropped, deduplicate
from mathrl.data.quality_gate import pass_gate
from mathrl.data.read_sources import read_sources
from mathrl.data.reading import Read, input_row, read_source, taken
from mathrl.data.row_shards import SPLITS, Digesting
from mathrl.data.row_store import RowStore
from mathrl.data.similar_questions import model_folder
from mathrl.data.sources import ResolvedSource, absolute, resolve_evaluation, resolve_source
from mathrl.params.data import Curate


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
            problems_of_set, bad = taken(read_source(resolved, seed, read), remedy)
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
