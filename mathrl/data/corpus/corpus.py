"""A corpus on disk: its shards, made by datatrove's tasks, and one record per page in memory."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.dedup.minhash import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter
from scipy.sparse import csr_matrix, vstack

from mathrl.core.errors import UserError
from mathrl.data.corpus.calibration import Floats, Models
from mathrl.data.corpus.classifier import Inputs, inputs_of
from mathrl.data.corpus.fasttext_classifier import FastTextModel
from mathrl.data.corpus.page_features import BUCKETS
from mathrl.data.corpus.page_files import Page
from mathrl.data.corpus.page_shards import PageShard
from mathrl.data.corpus.run_tasks import run_tasks
from mathrl.data.corpus.steps import DigestPages, ReadPages, ScorePages, StoredPages, StorePages, minhash, signatures
from mathrl.data.row_files import labels
from mathrl.params.pages import NearPages, Pages

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
