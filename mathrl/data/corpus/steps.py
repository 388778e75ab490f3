"""Steps of the corpus loop as datatrove pipeline steps: read, store, near-duplicates, digest, score.

A task is one file of pages, and its rank is the file's number. So a page's number, the cluster that a near-duplicate
belongs to and all that is written are the same with any number of workers, on one machine and on many.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupSignature
from datatrove.utils.hashing import HashConfig
from datatrove.utils.text import TextNormConfig
from datatrove.utils.word_tokenizers import WordTokenizer

from mathrl.core.files import write_json
from mathrl.data.corpus.classifier import read_models
from mathrl.data.corpus.page_features import vectorizer
from mathrl.data.corpus.page_files import Page, is_archive, page_of, page_of_line, rows_of
from mathrl.data.corpus.page_shards import PageShard
from mathrl.data.grams import exact_key, grams
from mathrl.params.pages import NearPages, Pages

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
