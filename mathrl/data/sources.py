"""Sources of params/curate.yaml → what will be read, then the problems: local files first, the hub second."""

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.hashing import digest_path
from mathrl.core.nouns import Problem
from mathrl.core.places import main_checkout
from mathrl.core.seeding import derive_seed
from mathrl.data.generators import generate, make_generator
from mathrl.data.registry import REGISTRY, Named, benchmark, find
from mathrl.data.row_files import SUFFIXES, Row, list_files, read_rows
from mathrl.data.row_formats import BadRow, Shape, to_problem
from mathrl.params.data import FileSource, GeneratedSource, HubSource, RowSource, Source


@dataclass(frozen=True)
class Resolved:
    """What one source stands for: local files, or a hub data set, or a generator."""

    name: str
    split: str
    licence: str
    files: tuple[Path, ...] = ()
    hub: str | None = None
    subset: str | None = None
    hub_split: str | None = None
    revision: str | None = None
    shapes: tuple[Shape, ...] = ()
    limit: int | None = None
    generated: GeneratedSource | None = None

    def describe(self, *, places: bool = True) -> str:
        """One line for a dry run; the report leaves out the places, so that it is equal on any machine."""
        if self.generated:
            return f"{self.name}: generator {self.generated.generator} {dict(self.generated.counts)}"
        what = ", ".join(str(file) if places else file.name for file in self.files)
        if self.hub:
            what = (
                f"hub {self.hub}" + (f" ({self.subset})" if self.subset else "") + f", split {self.hub_split}"
            )
            what += f", revision {self.revision}" if self.revision else ""
        return f"{self.name} → {self.split}: {what}"

    def input_row(self) -> dict[str, Any]:
        """For the manifest: what was read, by digest and not by place, so that it is equal on any machine."""
        row: dict[str, Any] = {"name": self.name, "split": self.split, "licence": self.licence}
        if self.generated:
            return row | {"generator": self.generated.generator, "options": dict(self.generated.options),
                          "counts": dict(self.generated.counts)}  # fmt: skip
        if self.hub:
            return row | {"hub": self.hub, "subset": self.subset, "hub_split": self.hub_split,
                          "revision": self.revision}  # fmt: skip
        return row | {"files": {file.name: digest_path(file) for file in self.files}}


@dataclass(frozen=True, slots=True)
class Rejected:
    """A bad row and why."""

    where: str
    source: str
    reason: str


def resolve_source(source: Source, data_folder: str | None) -> Resolved:
    """Find the files, or the hub id, of a source.

    Raises:
        UserError: the file or folder is not there, or its format is unknown.
    """
    if isinstance(source, GeneratedSource):
        make_generator(source.generator, source.options)
        return Resolved(source.name, "", "made here (Apache-2.0)", generated=source)
    licence = source.licence or "not stated"
    if isinstance(source, FileSource):
        files = tuple(list_files(_absolute(source.path)))
        return Resolved(
            source.name, source.split, licence, files, shapes=(_shape(source),), limit=source.limit
        )
    named = find(source.id)
    if named is None:
        if "/" not in source.id:
            raise UserError(
                f"curate.sources: no source named {source.id!r}; known: {', '.join(REGISTRY)}, "
                "or a hub id owner/name"
            )
        return Resolved(source.name, source.split, licence, hub=source.id, subset=source.subset,
                        hub_split=source.hub_split, revision=source.revision, shapes=(_shape(source),),
                        limit=source.limit)  # fmt: skip
    resolved = resolve_named(named, source.hub_split, data_folder, revision=source.revision)
    shapes = (_shape(source),) if _says_fields(source) else resolved.shapes
    shapes = tuple(replace(shape, keep=source.keep) for shape in shapes)
    return replace(
        resolved, name=source.name, split=source.split, limit=source.limit, shapes=shapes,
        licence=source.licence or named.licence, subset=source.subset or resolved.subset,
    )  # fmt: skip


def resolve_named(
    named: Named, split: str, data_folder: str | None, *, revision: str | None = None
) -> Resolved:
    """A registry source's split: its local files when the data folder has them, else the hub."""
    ours = split if split in named.splits else next((o for o, h in named.splits.items() if h == split), None)
    if ours is None:
        raise UserError(f"{named.name} has no split {split!r}; it has: {', '.join(named.splits)}")
    folder = data_root(data_folder)
    files = _local_files(folder, named, ours) if folder else []
    base = Resolved(named.name, ours, named.licence, shapes=named.shapes)
    if files:
        return replace(base, files=tuple(files))
    return replace(base, hub=named.hub, subset=named.subset, hub_split=named.splits[ours], revision=revision)


def resolve_benchmark(name: str, data_folder: str | None) -> Resolved:
    """The evaluation split of a registry source by its name (gsm8k, math500, …)."""
    named = benchmark(name)
    assert named.evaluation
    return resolve_named(named, named.evaluation, data_folder)


def data_root(data_folder: str | None) -> Path | None:
    """curate.data_folder, or $MATHRL_DATA, or none."""
    given = data_folder or os.environ.get("MATHRL_DATA")
    if not given:
        return None
    folder = _absolute(given)
    if not folder.is_dir():
        origin = "curate.data_folder" if data_folder else "MATHRL_DATA"
        raise UserError(
            f"{origin}: {folder} is no folder; name the folder that holds gsm8k_train.jsonl and the like"
        )
    return folder


def read_source(resolved: Resolved, seed: int) -> Iterator[Problem | Rejected]:
    """The problems of a source in file order (a seeded choice of `limit`), bad rows as `Rejected`.

    Raises:
        UserError: a file or the hub cannot be read, or there is no row at all.
    """
    if resolved.generated:
        made = resolved.generated
        counts = {str(split): count for split, count in made.counts.items()}
        yield from generate(made.generator, counts, made.options, seed=seed, name=made.name)
        return
    found: list[Problem | Rejected] = list(_problems(resolved, seed))
    good = [index for index, item in enumerate(found) if isinstance(item, Problem)]
    if resolved.limit is not None and resolved.limit < len(good):
        rng = random.Random(derive_seed(seed, "limit", resolved.name, resolved.split))
        left_out = set(good) - set(rng.sample(good, resolved.limit))
        found = [item for index, item in enumerate(found) if index not in left_out]
    if not found:
        raise UserError(f"{resolved.describe()}: no row in it")
    yield from found


def _problems(resolved: Resolved, seed: int) -> Iterator[Problem | Rejected]:
    seen: set[str] = set()
    shape: Shape | None = None
    for row in _rows(resolved):
        if row.problem:
            yield Rejected(row.where, resolved.name, row.problem)
            continue
        if shape is None or not shape.fits(row.values):
            shape = next((s for s in resolved.shapes if s.fits(row.values)), shape or resolved.shapes[0])
        if any(row.values.get(key) not in _listed(wanted) for key, wanted in shape.keep.items()):
            continue
        try:
            problem = to_problem(
                row.values, shape, name=row.name, source=resolved.name, split=resolved.split, seed=seed
            )
        except BadRow as error:
            yield Rejected(row.where, resolved.name, str(error))
            continue
        if problem.id in seen:
            yield Rejected(row.where, resolved.name, f"id {problem.id!r} stands in an earlier row too")
            continue
        seen.add(problem.id)
        yield problem


def _rows(resolved: Resolved) -> Iterator[Row]:
    for file in resolved.files:
        yield from read_rows(file)
    if resolved.hub:
        yield from _hub_rows(resolved)


def _hub_rows(resolved: Resolved) -> Iterator[Row]:
    from datasets import load_dataset  # seconds to import, and only the hub needs it

    try:
        rows = load_dataset(
            resolved.hub, resolved.subset, split=resolved.hub_split, revision=resolved.revision
        )
    except Exception as error:  # the hub's client raises a dozen unrelated kinds
        cause = str(error).strip().split("\n")[0][:200]
        raise UserError(
            f"{resolved.name}: {resolved.hub} cannot be read from the hub ({type(error).__name__}: {cause}); "
            "put the files in a folder and name it in curate.data_folder or $MATHRL_DATA"
        ) from None
    stem = f"{resolved.subset or 'default'}-{resolved.hub_split}"
    for number, values in enumerate(rows, start=1):
        yield Row(f"{resolved.hub}, {stem}, row {number}", f"{stem}:{number}", dict(values))


def _local_files(folder: Path, named: Named, split: str) -> list[Path]:
    for stem in named.stems:
        for suffix in SUFFIXES:
            for gz in ("", ".gz"):
                file = folder / f"{stem}_{split}{suffix}{gz}"
                if file.is_file():
                    return [file]
        for inside in (folder / stem / split, folder / stem):
            matches = (
                sorted(inside.glob(f"{split}*")) if inside == folder / stem else sorted(inside.glob("*"))
            )
            files = [
                m for m in matches if m.is_file() and Path(m.name.removesuffix(".gz")).suffix in SUFFIXES
            ]
            if files:
                return files
    return []


def _absolute(path: str) -> Path:
    given = Path(path).expanduser()
    return given if given.is_absolute() else main_checkout() / given


def _says_fields(source: HubSource) -> bool:
    keys = {"format", "prompt_key", "answer_key", "solution_key", "answer_rule"}
    return bool(source.model_fields_set & keys)


def _shape(source: RowSource) -> Shape:
    return Shape(source.format, source.prompt_key, source.answer_key, source.solution_key, source.id_key,
                 source.level_key, source.subject_key, source.answer_rule, source.keep)  # fmt: skip


def _listed(wanted: Any) -> list[Any]:
    return list(wanted) if isinstance(wanted, list | tuple) else [wanted]
