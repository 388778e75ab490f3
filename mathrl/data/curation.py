"""The steps of the curate stage, in order: read → deduplicate → quality → decontaminate → share out → check.

Nothing is dropped silently: every row read ends in a split, in `dropped` or in `rejected`, or is counted as left
out by the `keep` and `limit` of its source.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from mathrl.core.errors import UserError
from mathrl.core.types import Problem
from mathrl.data.clean_splits import decontaminate_splits, share_out, share_out_sft
from mathrl.data.curated import SPLITS, Curated, CurationStep, account
from mathrl.data.deduplicate import BENCHMARK, Dropped, deduplicate
from mathrl.data.grams import exact_key
from mathrl.data.quality_gate import pass_gate
from mathrl.data.reading import Read, input_row, read_source, taken
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
        UserError: a file, a folder or a name that does not exist.
    """
    sources = tuple(resolve_source(source, curate.data_folder) for source in curate.sources)
    clean = curate.decontaminate
    further = resolve_evaluation(clean.benchmarks, clean.files, curate.data_folder) if clean else []
    samples = absolute(curate.quality.samples) if curate.quality and curate.quality.samples else None
    if samples and not samples.is_file():
        raise UserError(f"curate.quality.samples: {samples} is not a file; name the samples.jsonl of a sample step")
    return CurationPlan(sources, tuple(further), samples)


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
    kept, dropped, curated.variants = deduplicate(problems, curate.deduplicate)
    account(curated, "deduplicate", problems, kept, dropped)
    if curate.quality:
        kept = pass_gate(kept, planned.samples, curate.quality, curated)
    kept, _ = share_out(kept, "test", curate.test_share, seed)
    held_out = [p for p in kept if p.split in ("dev", "test")]
    against: list[Problem] = []
    if curate.decontaminate:
        against += [p for p in held_out if p.split in curate.decontaminate.against]
        for resolved in planned.evaluation:
            read = Read()
            problems_of_set, bad = taken(read_source(resolved, seed, read), remedy)
            curated.evaluation_inputs.append(input_row(resolved, read))
            curated.rejected += bad
            curated.evaluation_sizes[resolved.name] = len(problems_of_set)
            ids = {p.id for p in against}
            against += [p.with_(id=f"{p.source}/{p.id}") if p.id in ids else p for p in problems_of_set]
        kept = decontaminate_splits(kept, against, curate.decontaminate, "decontaminate", curated)
    kept, moved_dev = share_out(kept, "dev", curate.dev_share, seed)
    if moved_dev and curate.decontaminate and "dev" in curate.decontaminate.against:
        dev = [p for p in kept if p.split == "dev"]
        name = "decontaminate against the shared-out dev"
        kept = decontaminate_splits(kept, dev, curate.decontaminate, name, curated)
        against += dev
    kept = share_out_sft(kept, against, curate, seed, curated)
    curated.splits = {split: [p for p in kept if p.split == split] for split in SPLITS}
    check_disjoint(curated.splits)
    if not any(curated.splits.values()):
        _nothing_left(curated.dropped)
    return curated


def _nothing_left(dropped: list[Dropped]) -> NoReturn:
    counts = Counter(row.reason for row in dropped)
    reasons, first = ", ".join(f"{reason} {count}" for reason, count in counts.items()), dropped[0]
    raise UserError(
        f"curate: no row is left of {len(dropped)} ({reasons}; the first: {first.problem.id} for {first.other}, "
        f"{first.detail}); add sources, or loosen deduplicate and decontaminate"
    )


def check_disjoint(splits: dict[str, list[Problem]]) -> None:
    """Check that no id occurs twice, and no question, in one split or in two.

    A benchmark may ask a question twice, since it is measured as it was published.

    Raises:
        UserError: names both problems.
    """
    questions: dict[int, Problem] = {}
    ids: dict[str, Problem] = {}
    for problem in (p for rows in splits.values() for p in rows):
        twin = questions.setdefault(exact_key(problem.question), problem)
        if twin is not problem and not twin.split == problem.split == BENCHMARK:
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
        if cut := sum(problem.control.cut_turns for problem in source_problems):
            curated.cut_turns[resolved.name] = curated.cut_turns.get(resolved.name, 0) + cut
        # Rows that two sources share get distinct ids.
        source_problems = [p.with_(id=f"{p.source}/{p.split}/{p.id}") if p.id in ids else p for p in source_problems]
        ids.update(p.id for p in source_problems)
        problems += source_problems
        curated.rejected += bad
        name = f"read {resolved.name}" + (f" ({resolved.split})" if resolved.split else "")
        reasons = +Counter({"bad row": len(bad), **read.left_out})
        curated.steps.append(CurationStep(name, len(source_problems) + reasons.total(), len(source_problems), reasons))
    return problems
