"""Contamination of stored rows: a task per shard, by several processes.

The hits of a shard are written beside it, so that a killed run does not look for them again.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mathrl.core.types import Problem
from mathrl.data.decontaminate import Hit, Search, trained_texts
from mathrl.data.processes import in_order
from mathrl.data.row_shards import SPLITS
from mathrl.data.row_store import ShardRows, StoredProblems

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
                return [(number, Hit.from_row(row)) for number, row in map(json.loads, stream)]
        hits = self._search(piece)
        partial = file.with_suffix(".partial")
        partial.write_text("".join(json.dumps([number, hit.fields()]) + "\n" for number, hit in hits), encoding="utf-8")
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
