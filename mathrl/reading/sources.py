"""From the sources of params/curate.yaml to what is read: local files first, then the hub, or a generator.

Files outside the checkout are linked in data/inputs/<stage>, which DVC watches: it follows the links and hashes their
targets, so a plain `dvc repro` notices a file whose bytes changed. The stage that reads the files renews its links when
it starts, and `mathrl run` renews them before DVC looks, which also shows what a link cannot: a new file in a folder,
or a local file that replaces the hub.
"""

import glob
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from mathrl.core.environment import Variable
from mathrl.core.errors import UserError
from mathrl.core.paths import checkout_or_here
from mathrl.core.results import short_name
from mathrl.params.data import FileSource, HubSource, RowSource, Source
from mathrl.params.generators import GeneratedSource
from mathrl.reading.registry import REGISTRY, NamedSource, benchmark, find
from mathrl.reading.row_files import PACKED, SUFFIXES, holds_rows, kind_of, labels, list_files
from mathrl.reading.row_formats import RowShape

INPUTS = Path("data/inputs")


@dataclass(frozen=True)
class ResolvedSource:
    """What one source resolves to: local files, a hub data set or a generator.

    Without `shapes` the fields are guessed from the first rows, beside those that `fields` names.
    """

    name: str
    split: str
    licence: str
    files: tuple[Path, ...] = ()
    hub: str | None = None
    subset: str | None = None
    hub_split: str | None = None
    revision: str | None = None
    shapes: tuple[RowShape, ...] = ()
    limit: int | None = None
    generated: GeneratedSource | None = None
    fields: Mapping[str, str] = field(default_factory=dict)

    def describe(self, *, places: bool = True) -> str:
        """One line for a dry run; the report leaves out the paths, so that it is equal on every machine."""
        if self.generated:
            return f"{self.name}: generator {self.generated.generator} {dict(self.generated.counts)}"
        what = ", ".join(str(file) if places else file.name for file in self.files)
        if self.hub:
            what = f"hub {self.hub}" + (f" ({self.subset})" if self.subset else "") + f", split {self.hub_split}"
            what += f", revision {self.revision}" if self.revision else ""
        return f"{self.name} → {self.split}: {what}"

    @property
    def labels(self) -> dict[Path, str]:
        return labels(self.files)


def resolve_source(source: Source, data_folder: str | None) -> ResolvedSource:
    """Find the files, or the hub id, of a source.

    Raises:
        UserError: the file or folder does not exist, or its format is unknown.
    """
    if isinstance(source, GeneratedSource):
        return ResolvedSource(source.name, "", "made here (Apache-2.0)", generated=source)
    licence = source.licence or "not stated"
    if isinstance(source, FileSource):
        try:
            files = tuple(list_files(absolute(source.path)))
        except UserError as error:
            raise UserError(f"source {source.name} of curate.sources: {error}") from None
        return ResolvedSource(source.name, source.split, licence, files, shapes=(_shape(source),), limit=source.limit)
    named, split, revision = find(source.id), source.hub_split, source.revision
    if named is not None:
        resolved = resolve_named(named, split, data_folder, revision=revision)
    elif "/" in source.id:
        resolved = ResolvedSource(source.name, source.split, licence, hub=source.id, hub_split=split, revision=revision)
    else:
        raise UserError(
            f"curate.sources: no source named {source.id!r}; known: {', '.join(REGISTRY)}, or a hub id owner/name"
        )
    shapes = (_shape(source),) if named is None or _says_fields(source) else resolved.shapes
    by_name = source.id in REGISTRY  # aime21 is one year of its hub data set, of which the hub id means all
    return replace(
        resolved,
        name=source.name,
        split=source.split,
        limit=source.limit,
        shapes=tuple(
            replace(shape, keep={**(shape.keep if by_name else {}), **source.keep}, **_further_keys(source))
            for shape in shapes
        ),
        licence=source.licence or resolved.licence,
        subset=source.subset or resolved.subset,
    )


def resolve_named(
    named: NamedSource, split: str, data_folder: str | None, *, revision: str | None = None
) -> ResolvedSource:
    """One split of a registry source: its local files if the data folder has them, else the hub."""
    ours = split if split in named.splits else next((o for o, h in named.splits.items() if h == split), None)
    if ours is None:
        raise UserError(f"{named.name} has no split {split!r}; it has: {', '.join(named.splits)}")
    folder = data_root(data_folder)
    files = _local_files(folder, named, ours) if folder else []
    base = ResolvedSource(named.name, ours, named.licence, shapes=named.shapes)
    if files:
        return replace(base, files=tuple(files))
    return replace(base, hub=named.hub, subset=named.subset, hub_split=named.splits[ours], revision=revision)


_HUB = re.compile(r"(?P<id>[\w.-]+/[\w.-]+)(:(?P<subset>[^:/]*)(:(?P<split>[^:/]+))?)?")


def resolve_benchmark(
    name: str, data_folder: str | None, named_fields: Mapping[str, str] | None = None
) -> ResolvedSource:
    """A benchmark: a registry name (its evaluation split), files, or owner/name:config:split of the hub.

    Args:
        named_fields: The fields of its rows that are not to be guessed, as {"answer_key": "gold"}.

    Raises:
        UserError: no such name, no such file, or a format that is not read.
    """
    path = absolute(name)
    match = _HUB.fullmatch(name)
    if name not in REGISTRY and (kind_of(path) or path.exists() or (glob.has_magic(name) and not match)):
        files = tuple(list_files(path))
        return ResolvedSource(short_name(name), "test", "not stated", files, fields=dict(named_fields or {}))
    if not match:
        named = benchmark(name)
        assert named.evaluation
        return resolve_named(named, named.evaluation, data_folder)
    id, subset, split = match["id"], match["subset"] or None, match["split"] or "test"
    known = next((each for each in REGISTRY.values() if each.hub == id and each.subset == subset), None)
    if known and split in known.splits.values() and not named_fields:
        return resolve_named(known, split, data_folder)
    source = ResolvedSource(short_name(name), "test", "not stated", hub=id, subset=subset, hub_split=split)
    return replace(source, fields=dict(named_fields or {}))


def resolve_evaluation(names: Iterable[str], files: Iterable[str], data_folder: str | None) -> list[ResolvedSource]:
    """The evaluation sets of decontamination: benchmarks by name, and files with question, answer and solution.

    Raises:
        UserError: a set or a file that does not exist.
    """
    further = (FileSource(name=f, path=f, split="test", solution_key="solution", id_key="id") for f in files)
    benchmarks = [resolve_benchmark(name, data_folder) for name in names]
    return benchmarks + [resolve_source(source, data_folder) for source in further]


def data_root(data_folder: str | None) -> Path | None:
    """curate.data_folder, or $MATHRL_DATA, or none."""
    path = data_folder or Variable.DATA.get()
    if not path:
        return None
    folder = absolute(path)
    if not folder.is_dir():
        origin = "curate.data_folder" if data_folder else Variable.DATA
        raise UserError(f"{origin}: {folder} is not a folder; name the one with files such as gsm8k_train.jsonl")
    return folder


def _local_files(folder: Path, named: NamedSource, split: str) -> list[Path]:
    for stem in named.stems:
        for suffix in SUFFIXES:
            for packed in ("", *PACKED):
                file = folder / f"{stem}_{split}{suffix}{packed}"
                if file.is_file() and kind_of(file):
                    return [file]
        for inside in (folder / stem / split, folder / stem):
            matches = sorted(inside.glob(f"{split}*")) if inside == folder / stem else sorted(inside.glob("*"))
            files = [match for match in matches if holds_rows(match, folder)]
            if files:
                return files
    return []


def absolute(path: str) -> Path:
    """The path as the user wrote it; a relative one starts at the top of the checkout."""
    written = Path(path).expanduser()
    return written if written.is_absolute() else checkout_or_here() / written


def _says_fields(source: HubSource) -> bool:
    """Whether the source names fields; a default that is written out, as in the params/ of a run, does not count."""
    keys = ("format", "prompt_key", "answer_key", "solution_key", "answer_rule")
    return any(getattr(source, key) != HubSource.model_fields[key].default for key in keys)


def _further_keys(source: HubSource) -> dict[str, str]:
    """The keys beside prompt, answer and solution that the source names: they go over those of the registry."""
    keys = ("id_key", "level_key", "subject_key", "pass_rate_key")
    return {key: value for key in keys if (value := getattr(source, key)) is not None}


def _shape(source: RowSource) -> RowShape:
    return RowShape(**{field.name: getattr(source, field.name) for field in fields(RowShape)})


def of_sources(sources: Iterable[ResolvedSource]) -> dict[str, Path]:
    """The local files of the sources, by the names of their links.

    Example:
        {"gsm8k-rl/gsm8k_train.jsonl.gz": Path("/data/gsm8k_train.jsonl.gz")}
    """
    links: dict[str, Path] = {}
    for source in sources:
        folder = re.sub(r"[^\w.-]+", "_", f"{source.name}-{source.split}").strip("_.")
        while any(links.get(f"{folder}/{label}", file) != file for file, label in source.labels.items()):
            folder += "_"  # "a/b" and "a:b" are two sources
        links |= {f"{folder}/{label}": file for file, label in source.labels.items()}
    return links


def of_pages(files: Mapping[str, Iterable[Path]], evaluation: Iterable[ResolvedSource]) -> dict[str, Path]:
    """The page files by parameter, and the local files of the evaluation sets, by the names of their links."""
    links = {f"{name}/{label}": file for name, paths in files.items() for file, label in labels(paths).items()}
    return links | of_sources(evaluation)


def link(stage: str, files: Mapping[str, Path]) -> None:
    """Make data/inputs/<stage> hold a link to each of these files and no others.

    Several processes may do so at once, for the same files.
    """
    folder = INPUTS / stage
    folder.mkdir(parents=True, exist_ok=True)
    targets = {folder / name: file.absolute() for name, file in files.items()}
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_symlink() and (path not in targets or path.readlink() != targets[path]):
            path.unlink(missing_ok=True)
        elif path.is_dir() and not any(path.iterdir()):
            with suppress(OSError):
                path.rmdir()
    for path, file in targets.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            path.symlink_to(file)
