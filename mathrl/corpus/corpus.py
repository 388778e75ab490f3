"""A corpus on disk: the steps of datatrove's tasks that make its shards, and one record per page in memory."""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.dedup.minhash import (
    MinhashConfig,
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.utils.hashing import HashConfig
from datatrove.utils.text import TextNormConfig
from datatrove.utils.word_tokenizers import WordTokenizer
from scipy.sparse import csr_matrix, vstack

from mathrl.core.errors import UserError
from mathrl.core.files import write_json
from mathrl.corpus.classifier import FastTextModel, Floats, Inputs, Models, inputs_of, read_models
from mathrl.corpus.page_files import BUCKETS, Page, PageShard, is_archive, page_of, page_of_line, rows_of, vectorizer
from mathrl.corpus.run_tasks import run_tasks
from mathrl.data.grams import exact_key, grams
from mathrl.params.pages import NearPages, Pages
from mathrl.reading.row_files import labels

Numbers = npt.NDArray[np.int64]


class Corpus:
    """The pages of some files, numbered in the files' order, without near-duplicates if `params.near` is set.

    `folder` is kept between runs with the same parameters and files: what was complete is not repeated. In memory are
    34 bytes per page; texts and features stay on disk.

    Raises:
        UserError: a file or row cannot be read, or there is no page.
    """

    def __init__(self, files: Sequence[Path], params: Pages, folder: Path) -> None:
        self._params, self._folder, self._tasks = params, folder, len(files)
        self._pages = folder / "pages"
        self._pages.mkdir(parents=True, exist_ok=True)
        named = labels(files)
        reading = [ReadPages(list(files), [named[file] for file in files], params), StorePages(self._pages)]
        digest = DigestPages(self._pages, params)
        if params.near is None:
            self._run("read", [*reading, digest])
        else:
            self._run("read", [*reading, signatures(folder / "signatures", params.near)])
            self._cluster(params.near)
            clean = MinhashDedupFilter(str(folder / "clusters"))
            self._run("digest", [StoredPages(self._pages), clean, digest])
        self._shards = [PageShard(self._pages, number) for number in range(self._tasks)]
        self._load()
        if not len(self):
            raise UserError(f"{', '.join(params.files)}: no page in it")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> Page:
        shard = int(np.searchsorted(self._first, number, side="right")) - 1
        return self._shards[shard].page(int(self._at[number]))

    def key(self, number: int) -> int:
        """`exact_key` of the page's text."""
        return int(self._keys["high"][number]) << 64 | int(self._keys["low"][number])

    def unlike(self, keys: set[int]) -> npt.NDArray[np.bool_]:
        """Per page, whether no key of the set is its key (compared in 64 of 128 bits)."""
        low = np.array([key & (2**64 - 1) for key in keys], dtype=np.uint64)
        return ~np.isin(self._keys["low"], low)

    def inputs(self, numbers: Sequence[int]) -> Inputs:
        """What the classifier sees of some pages, in their order."""
        classifier = self._params.classifier
        if classifier.type == "linear":
            return self.features(numbers)
        return inputs_of([self[number].text for number in numbers], classifier)

    def features(self, numbers: Sequence[int]) -> csr_matrix:
        """The features of some pages, in their order."""
        wanted = np.asarray(numbers, dtype=np.int64)
        order = np.argsort(wanted, kind="stable")
        parts = [csr_matrix((0, BUCKETS))]
        cuts = np.searchsorted(wanted[order], [*self._first, len(self)])
        for shard, first, start, end in zip(self._shards, self._first, cuts, cuts[1:], strict=False):
            if end > start:
                parts.append(shard.features()[wanted[order[start:end]] - first])
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        return vstack(parts, format="csr")[place]

    def score(self, models: Models | FastTextModel, round_number: int) -> Floats:
        """The score of every page, by one task per shard."""
        folder = self._folder / f"scores-{round_number}"
        folder.mkdir(exist_ok=True)
        models.write(folder)
        self._run(f"score-{round_number}", [ScorePages(self._pages, folder)])
        return np.concatenate([np.load(folder / f"{number:05d}.npy") for number in range(self._tasks)])

    def _cluster(self, near: NearPages) -> None:
        folder, config = self._folder, minhash(near)
        pairs, clusters = folder / "pairs", folder / "clusters"
        find = MinhashDedupBuckets(str(folder / "signatures"), str(pairs), config=config)
        self._run("buckets", [find], near.buckets)
        if not (folder / "tasks" / "clusters" / "completions" / "00000").exists():
            shutil.rmtree(clusters, ignore_errors=True)
        self._run("clusters", [MinhashDedupCluster(str(pairs), str(clusters), config)], 1)
        clusters.mkdir(exist_ok=True)

    def _run(self, name: str, steps: Sequence[PipelineStep], tasks: int | None = None) -> None:
        run_tasks(steps, tasks or self._tasks, self._params.executor, self._folder / "tasks" / name)

    def _load(self) -> None:
        of_shards = [shard.numbers() for shard in self._shards]
        self._first = np.cumsum([0, *map(len, of_shards)])[:-1]
        numbers = np.concatenate(of_shards)
        self.labels: npt.NDArray[np.int8] = numbers["label"].copy()  # 1 mathematics, 0 other, -1 unlabelled
        self.inside: npt.NDArray[np.bool_] = numbers["inside"].copy()  # under a path of `path_prefixes`
        self._keys = {"high": numbers["key_high"].copy(), "low": numbers["key_low"].copy()}
        self._at = numbers["at"].copy()
        names = [shard.host_names() for shard in self._shards]
        self.host_names = sorted({host for of_shard in names for host in of_shard})
        of_name = {host: number for number, host in enumerate(self.host_names)}
        codes = [np.array([of_name[host] for host in of_shard], dtype=np.int32) for of_shard in names]
        hosts = [code[array["host"]] for code, array in zip(codes, of_shards, strict=True)]
        self.hosts: npt.NDArray[np.int32] = np.concatenate(hosts)  # numbers of `host_names`
        self.stored = sum(self._lines(shard) for shard in self._shards) if self._params.near else len(self)

    @staticmethod
    def _lines(shard: PageShard) -> int:
        with shard.lines.open("rb") as stream:
            return sum(1 for _ in stream)


CHUNK = 1024  # pages whose features are in memory at a time
EXTRACTION_SECONDS = 60.0  # of one page: long, so that a busy machine drops no page that an idle one keeps
Documents = Iterable[Document]


class ReadPages(PipelineStep):  # type: ignore[misc]
    """The pages of one file; those of web archives by datatrove's reader, HTML without its boilerplate."""

    type, name = "READER", "pages"

    def __init__(self, files: list[Path], labels: list[str], params: Pages) -> None:
        super().__init__()
        self.files, self.labels, self.params = files, labels, params

    def run(self, data: None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        file, label = self.files[rank], self.labels[rank]
        if is_archive(file):
            for document in _archive(file):
                row = {"text": document.text, "url": document.metadata["url"], "date": document.metadata["date"]}
                where = f"{label}, record {document.id}"
                keys = {"text_key": "text", "url_key": "url", "label_key": None}
                yield _document(page_of(row, where, where, self.params.model_copy(update=keys)))
            return
        for where, shown, row in rows_of(file, label):
            yield _document(page_of(row, where, shown, self.params))


def _archive(file: Path) -> Documents:
    from datatrove.pipeline.extractors import Trafilatura  # with WarcReader, of the extra warc
    from datatrove.pipeline.readers import WarcReader

    documents: Documents = WarcReader(str(file.parent)).read_file(file.name)
    if ".wet" in file.suffixes[-2:]:  # text already
        return documents
    # Its own deduplication depends on the pages before: off, so that a page has one text.
    extracted: Documents = Trafilatura(timeout=EXTRACTION_SECONDS, deduplicate=False).run(documents)
    return extracted


def _document(page: Page) -> Document:
    return Document(text=page.text, id=page.where, metadata={"page": page})


class StorePages(PipelineStep):  # type: ignore[misc]
    """Writes the pages of a task to its shard, one line each, and hands them on with the place of their line."""

    type, name = "WRITER", "pages"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def run(self, data: Documents, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        with PageShard(self.folder, rank).lines.open("wb") as stream:
            for document in data:
                document.metadata["at"] = stream.tell()
                stream.write(document.metadata["page"].to_line().encode())
                yield document


class StoredPages(PipelineStep):  # type: ignore[misc]
    """The pages that `StorePages` wrote."""

    type, name = "READER", "stored pages"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def run(self, data: None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        at = 0
        with PageShard(self.folder, rank).lines.open("rb") as stream:
            for line in stream:
                document = _document(page_of_line(line))
                document.metadata["at"] = at
                at += len(line)
                yield document


class Grams(WordTokenizer):  # type: ignore[misc]
    """The grams of `grams.py` as words of datatrove's MinHash, so that LaTeX and Chinese count."""

    def word_tokenize(self, text: str) -> list[str]:
        return grams(text)

    def sent_tokenize(self, text: str) -> list[str]:
        return [text]

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        return [(0, len(text))]


def minhash(near: NearPages) -> MinhashConfig:
    """datatrove's settings; grams are normalised already, and numbers stay."""
    as_they_are = TextNormConfig(False, False, False, False, False)
    # Not its default, xxhash: it hands text to xxhash, whose version 4 takes bytes alone.
    sha1 = HashConfig(hash_fc="sha1")
    return MinhashConfig(near.ngram, near.buckets, near.hashes_per_bucket, norm_config=as_they_are, hash_config=sha1)


def signatures(folder: Path, near: NearPages) -> MinhashDedupSignature:
    """The first step of datatrove's MinHash, on grams."""
    return MinhashDedupSignature(str(folder), minhash(near), language=Grams())


class DigestPages(PipelineStep):  # type: ignore[misc]
    """Writes what the rounds ask of the pages: features, keys, hosts, labels and the place of the line."""

    type, name = "WRITER", "digests"

    def __init__(self, folder: Path, params: Pages) -> None:
        super().__init__()
        self.folder, self.params = folder, params

    def run(self, data: Documents, rank: int = 0, world_size: int = 1) -> None:
        shard, numbers, hosts = PageShard(self.folder, rank), list[tuple[Any, ...]](), dict[str, int]()
        sizes = [np.zeros(1, dtype=np.int64)]
        classifier = self.params.classifier
        vectors = vectorizer(classifier.ngram) if classifier.type == "linear" else None
        with shard.indices.open("wb") as indices, shard.values.open("wb") as values:
            for chunk in _chunks(data):
                for document in chunk:
                    page: Page = document.metadata["page"]
                    prefixes = self.params.path_prefixes.get(page.host, ("",))
                    label = -1 if page.label is None else int(page.label)
                    key = exact_key(page.text)
                    host = hosts.setdefault(page.host, len(hosts))
                    inside = page.path.startswith(tuple(prefixes))
                    numbers.append((key >> 64, key & (2**64 - 1), host, label, inside, document.metadata["at"]))
                if vectors is None:  # fastText reads the stored lines
                    sizes.append(np.zeros(len(chunk), np.int64))
                    continue
                matrix = vectors.transform([document.text for document in chunk])
                matrix.indices.astype(np.int32).tofile(indices)
                matrix.data.tofile(values)
                sizes.append(np.diff(matrix.indptr).astype(np.int64))
        shard.write(numbers, np.cumsum(np.concatenate(sizes)))
        write_json(shard.hosts, list(hosts))


def _chunks(data: Documents) -> Iterator[list[Document]]:
    chunk: list[Document] = []
    for document in data:
        chunk.append(document)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


class ScorePages(PipelineStep):  # type: ignore[misc]
    """Writes the mean score of the models in the folder `scores` for each page of a task's shard."""

    type, name = "WRITER", "scores"

    def __init__(self, folder: Path, scores: Path) -> None:
        super().__init__()
        self.folder, self.scores = folder, scores

    def run(self, data: None, rank: int = 0, world_size: int = 1) -> None:
        scores = read_models(self.scores).score_shard(PageShard(self.folder, rank))
        partial = self.scores / f"{rank:05d}.partial"
        with partial.open("wb") as stream:
            np.save(stream, scores)
        partial.replace(self.scores / f"{rank:05d}.npy")
