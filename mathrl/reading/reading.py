"""The problems of a source, with an account of what was read: rows, digests, the commit of the hub."""

import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from mathrl.core.environment import NO_HUB, ask_hub_once
from mathrl.core.errors import UserError
from mathrl.core.hashing import derive_seed, sha256_file
from mathrl.core.types import Problem
from mathrl.generators import VERSIONS, generate
from mathrl.reading.row_files import Draw, Row, read_rows
from mathrl.reading.row_formats import RowShape, to_problem
from mathrl.reading.row_values import BadRow, look_up, payload
from mathrl.reading.sniff import SAMPLE, Sniffed, sniff
from mathrl.reading.sources import ResolvedSource


@dataclass(frozen=True, slots=True)
class Rejected:
    """A bad row and the reason; `where` has the full path, `shown` only the file name ("gsm8k.jsonl, line 3")."""

    where: str
    shown: str
    source: str
    reason: str

    def to_row(self) -> dict[str, str]:
        return {"where": self.shown, "source": self.source, "reason": self.reason}


@dataclass
class Read:
    """An account of what was read of a source, filled while reading.

    `rows` counts every row per file, including bad rows and those in `left_out` (by `keep`, or above the
    `limit`); rows of the hub have the key "hub", those of a generator its name.
    """

    rows: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    commit: str | None = None
    hub_rows: Any = field(default_factory=hashlib.sha256)


def read_source(resolved: ResolvedSource, seed: int, read: Read | None = None) -> Iterator[Problem | Rejected]:
    """The problems of a source in file order (a seeded choice of `limit`), bad rows as `Rejected`.

    The account is added to `read`.

    Raises:
        UserError: a file or the hub cannot be read, or it has no row.
    """
    read = read or Read()
    if not resolved.generated and not resolved.shapes:
        resolved = replace(resolved, shapes=(guess_fields(resolved).shape,))
    if resolved.generated:
        generated = resolved.generated
        counts = {str(split): count for split, count in generated.counts.items()}
        for problem in generate(
            generated.generator, counts, generated.options.model_dump(), seed=seed, name=generated.name
        ):
            read.rows[generated.generator] += 1
            yield problem
        return
    items = _problems(resolved, seed, read) if resolved.limit is None else _draw_rows(resolved, seed, read)
    first = next(items, None)
    if first is None:
        raise UserError(f"{resolved.describe()}: no row in it")
    yield first
    yield from items


def guess_fields(resolved: ResolvedSource) -> Sniffed:
    """What the fields of the source's rows hold, from the first of them.

    Raises:
        UserError: no row, or no field that looks like a question or an answer.
    """
    rows = [row.values for row in islice(rows_of(resolved, Read()), SAMPLE) if not row.problem]
    if not rows:
        raise UserError(f"{resolved.describe()}: no row that can be read")
    try:
        return sniff(rows, resolved.fields)
    except UserError as error:
        raise UserError(f"{resolved.name}: {error}") from None


def _draw_rows(resolved: ResolvedSource, seed: int, read: Read) -> Iterator[Problem | Rejected]:
    """A seeded choice of `limit` good rows, and the bad rows that were met on the way."""
    assert resolved.limit is not None
    draw = Draw(resolved.limit, random.Random(derive_seed(seed, "limit", resolved.name, resolved.split)))
    bad, taken_rows = 0, 0
    for item in _problems(resolved, seed, read, draw):
        if isinstance(item, Rejected):
            draw.skip()
            bad += 1
            yield item
        else:
            draw.add(item)
    for problem in draw.chosen_rows():
        taken_rows += 1
        yield problem
    above = draw.rows - bad - taken_rows - read.left_out["left out by keep"]
    read.left_out.update({"above the limit": above} if above else {})


def split_rejected(items: Iterable[Problem | Rejected], remedy: str | None) -> tuple[list[Problem], list[Rejected]]:
    """The problems and the bad rows.

    Raises:
        UserError: there is a `remedy` for bad rows, and a bad row; the message names both.
    """
    rows: tuple[list[Problem], list[Rejected]] = [], []
    for item in items:
        if isinstance(item, Problem):
            rows[0].append(item)
        elif remedy:
            raise UserError(f"{item.where}: {item.reason}; {remedy}")
        else:
            rows[1].append(item)
    return rows


def input_row(resolved: ResolvedSource, read: Read) -> dict[str, Any]:
    """For the manifest: what was read, by digest and not by path, so that it is equal on every machine."""
    row: dict[str, Any] = {"name": resolved.name, "split": resolved.split, "licence": resolved.licence}
    if generated := resolved.generated:
        return row | {
            "generator": generated.generator,
            "version": VERSIONS[generated.generator],
            "options": generated.options.model_dump(mode="json"),
            "counts": dict(generated.counts),
            "rows": read.rows[generated.generator],
        }
    row |= {"limit": resolved.limit} if resolved.limit else {}
    row |= {"keep": dict(resolved.shapes[0].keep)} if resolved.shapes and resolved.shapes[0].keep else {}
    if resolved.hub:
        return row | {
            "hub": resolved.hub,
            "subset": resolved.subset,
            "hub_split": resolved.hub_split,
            "revision": resolved.revision,
            "commit": read.commit,
            "rows": read.rows["hub"],
            "sha256": read.hub_rows.hexdigest(),
        }
    files = {label: {"sha256": sha256_file(file), "rows": read.rows[label]} for file, label in resolved.labels.items()}
    return row | {"files": files}


@dataclass
class Reader:
    """Makes problems of a source's rows, whatever their order; `shape` is the first that fitted a row."""

    resolved: ResolvedSource
    seed: int
    shape: RowShape | None = None

    def fit(self, row: Row) -> RowShape:
        """The first shape that fits the row; where none does, the first that fitted an earlier row."""
        shapes = self.resolved.shapes
        fitting = next((shape for shape in shapes if shape.fits(row.values)), None)
        self.shape = self.shape or fitting
        return fitting or self.shape or shapes[0]

    def problem(self, row: Row) -> Problem | Rejected | None:
        """The row's problem, why it has none, or None for a row that `keep` leaves out."""
        name = self.resolved.name
        if row.problem:
            return Rejected(row.where, row.shown, name, row.problem)
        shape = self.fit(row)
        if any(not _is_accepted(look_up(row.values, key), accepted) for key, accepted in shape.keep.items()):
            return None
        try:
            split = self.resolved.split
            return to_problem(row.values, shape, name=row.name, source=name, split=split, seed=self.seed)
        except BadRow as error:
            reason = str(error)
        except RecursionError:
            reason = "a field is nested too deeply"
        return Rejected(row.where, row.shown, name, reason)


def reject_repeated(id: str, where: str, shown: str, source: str) -> Rejected:
    """A row with the id of an earlier row of its source."""
    return Rejected(where, shown, source, f"id {id!r} occurs in an earlier row too")


def _problems(
    resolved: ResolvedSource, seed: int, read: Read, draw: Draw | None = None
) -> Iterator[Problem | Rejected]:
    seen: set[str] = set()
    reader = Reader(resolved, seed)
    for row in rows_of(resolved, read, draw.wants_more if draw else None):
        problem = reader.problem(row)
        if problem is None:
            read.left_out["left out by keep"] += 1
            if draw:
                draw.skip()
            continue
        if isinstance(problem, Problem) and problem.id in seen:
            problem = reject_repeated(problem.id, row.where, row.shown, resolved.name)
        elif isinstance(problem, Problem):
            seen.add(problem.id)
        yield problem


def rows_of(resolved: ResolvedSource, read: Read, wanted: Callable[[], bool] | None = None) -> Iterator[Row]:
    """The rows of the source's files or hub data set, counted in `read`."""
    for file, label in resolved.labels.items():

        def is_counted(label: str = label) -> bool:
            read.rows[label] += 1
            return wanted is None or wanted()

        yield from read_rows(file, label, is_counted)
    if resolved.hub:
        yield from _hub_rows(resolved, read, wanted)


def _hub_rows(resolved: ResolvedSource, read: Read, wanted: Callable[[], bool] | None) -> Iterator[Row]:
    asked = Path(str(resolved.hub)).exists() or ask_hub_once()
    import datasets  # seconds to import, and only the hub needs it

    try:
        builder = datasets.load_dataset_builder(str(resolved.hub), resolved.subset, revision=resolved.revision)
        builder.download_and_prepare()
        rows = builder.as_dataset(split=resolved.hub_split)
    except Exception as error:  # the hub's client raises a dozen unrelated kinds
        cause = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
        raise UserError(
            f"{resolved.name}: {resolved.hub} cannot be read from the hub "
            f"({cause if asked else NO_HUB}); "
            "put the files in a folder and name it in curate.data_folder or $MATHRL_DATA"
        ) from None
    # The commit that the client resolved and reads; for a folder it is a shorter digest.
    read.commit = builder.hash if re.fullmatch("[0-9a-f]{40}", builder.hash or "") else None
    stem = f"{resolved.subset or 'default'}-{resolved.hub_split}"
    for number, values in enumerate(rows, start=1):
        read.rows["hub"] += 1
        read.hub_rows.update(json.dumps(values, sort_keys=True, default=payload).encode() + b"\n")
        if wanted and not wanted():
            continue
        place = f"{resolved.hub}, {stem}, row {number}"
        yield Row(place, f"{stem}:{number}", dict(values), shown=place)


def _is_accepted(value: Any, accepted: Any) -> bool:
    """Whether a value of a row is the accepted one or one of several; in a CSV file 2023 is a text."""
    values = list(accepted) if isinstance(accepted, list | tuple) else [accepted]
    return value in values or (isinstance(value, str) and value in map(str, values))
