r"""Training texts that share n-grams with an evaluation text, and how much of either text they share.

By DeepSeekMath's rule (arXiv:2402.03300, section 2.1) a training text with any n-gram (10 by default) that stands in
an evaluation question or answer text is a hit; evaluation texts of 3 to n-1 grams are matched whole; shorter ones
would match by chance and are left to exact deduplication. Most such hits share boilerplate alone, so a hit has a
share, and curation drops those with a large one: `coverage` is the part of the training or evaluation text, whichever
is larger, that lies in shared n-grams; `words` counts distinct grams without their order.

A bare answer of fewer than n grams is a text only when three of them are words: matched whole, \frac{1}{2} or
1, 2, 3 would drop thousands of questions. `grams.py` says what a gram is.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mathrl.core.types import Problem
from mathrl.data.decisions import Pair, Verdict, text_key
from mathrl.data.grams import grams
from mathrl.data.shingles import CHUNK, Hashes, windows

SHORTEST = 3
SHOWN = 2000  # characters of either text in a report
RANK: dict[Verdict | None, int] = {"drop": 2, None: 1, "keep": 0}  # the hit of the highest rank speaks for a text


@dataclass(frozen=True, slots=True)
class Hit:
    """One training text and the evaluation text that it shares the most with.

    Example:
        Hit(train_id="dapo/00012", eval_id="math/test/00734", part="question", ngram="what is the sum of",
            whole=False, share=0.91, ngrams_shared=14, train_text="What is …", eval_text="Find …",
            others=("math500/…",), decision="keep")

    `share` is the part of a text that is shared (0 to 1, see EvaluationIndex); `ngrams_shared` counts the
    shared n-grams; `others` are further evaluation texts hit (at most 20). A person's `decision` on the two texts
    overrules the share.
    """

    train_id: str
    eval_id: str
    part: str
    ngram: str
    whole: bool
    share: float
    ngrams_shared: int
    train_text: str
    eval_text: str
    others: tuple[str, ...] = ()
    decision: Verdict | None = None

    def dropped(self, min_share: float) -> bool:
        """Whether the training text goes: by a person's decision, else by its share."""
        return self.decision == "drop" or (self.decision is None and self.share >= min_share)

    def to_row(self, min_share: float = 0.0) -> dict[str, Any]:
        """One line of a report, with the keys that `mathrl decide` needs; long texts are cut."""
        row = {**asdict(self), "share": round(self.share, 4), "others": list(self.others)}
        keys = {"train_key": text_key(self.train_text), "eval_key": text_key(self.eval_text)}
        cut = {name: row[name][:SHOWN] for name in ("train_text", "eval_text")}
        return {**row, **cut, **keys, "dropped": self.dropped(min_share)}


class EvaluationIndex:
    """The n-grams of evaluation texts.

    `share` says what the share of a hit is: coverage (the grams of a text that lie in shared n-grams over all its
    grams, for the text where this is more) or words (the shared distinct grams, wherever they stand, over those of the
    text with fewer). `decisions` are a person's (decisions.py): a pair to keep does not hide another hit of the text.
    """

    def __init__(
        self,
        ngram: int,
        share: Literal["coverage", "words"] = "coverage",
        decisions: Mapping[Pair, Verdict] | None = None,
    ) -> None:
        self.ngram, self.share, self.decisions = ngram, share, decisions or {}
        self.raw: list[str] = []
        self._hashes: dict[int, Hashes] = {}  # of the indexed windows, sorted, by size; made when first needed
        self.texts: list[tuple[str, str, tuple[int, ...]]] = []  # id, part, grams
        self.too_short: list[str] = []
        self._vocabulary: dict[str, int] = {}
        self._where: dict[tuple[int, ...], list[int]] = defaultdict(list)
        self._whole_lengths: set[int] = set()

    def add(self, id: str, part: str, text: str) -> None:
        """Index one evaluation text; a text of fewer than 3 grams is only listed in `too_short`."""
        ids = [self._vocabulary.setdefault(gram, len(self._vocabulary)) for gram in grams(text)]
        if len(ids) < SHORTEST:
            self.too_short.append(f"{id} ({part})")
            return
        self._hashes.clear()
        size = min(self.ngram, len(ids))
        if size < self.ngram:
            self._whole_lengths.add(size)
        self.texts.append((id, part, tuple(ids)))
        self.raw.append(text)
        for window in {tuple(ids[i : i + size]) for i in range(len(ids) - size + 1)}:
            self._where[window].append(len(self.texts) - 1)

    def add_problem(self, problem: Problem) -> None:
        """Index its question, its worked solution and those of its answers that are texts, each separately."""
        self.add(problem.id, "question", problem.question)
        if problem.solution:
            self.add(problem.id, "solution", problem.solution)
        for answer in problem.answers:
            answer_grams = grams(answer)
            words = sum(gram[0].isalpha() and (len(gram) > 1 or not gram.isascii()) for gram in answer_grams)
            if len(answer_grams) >= self.ngram or words >= SHORTEST:
                self.add(problem.id, "answer", answer)

    def may_hit(self, texts: Sequence[Sequence[str]]) -> npt.NDArray[np.bool_]:
        """For the grams of each text, whether an indexed window stands in it; of the others `look_up` finds nothing.

        The windows of thousands of texts are compared at once, by their hashes.
        """
        if not self._hashes:
            self._hashes = self._indexed_hashes()
        known = self._vocabulary
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        ids = (known.get(word, -1) + 1 for words in texts for word in words)
        hit = np.zeros(len(texts), dtype=bool)
        for size, values, rows in windows(np.fromiter(ids, np.uint64, int(lengths.sum())), lengths, self.ngram):
            if size in self._hashes:
                indexed = self._hashes[size]
                place = np.minimum(np.searchsorted(indexed, values), len(indexed) - 1)
                hit[rows[indexed[place] == values]] = True
        return hit

    def _indexed_hashes(self) -> dict[int, Hashes]:
        lengths = np.fromiter((len(ids) for _, _, ids in self.texts), np.int64, len(self.texts))
        ids = np.fromiter((id + 1 for _, _, text in self.texts for id in text), np.uint64, int(lengths.sum()))
        hashes = {}
        for size, values, rows in windows(ids, lengths, self.ngram):
            wanted = values if size == self.ngram else values[lengths[rows] == size]
            if len(wanted):
                hashes[size] = np.unique(wanted)
        return hashes

    def look_up(
        self, train_id: str, text: str, skip: frozenset[str] = frozenset(), words: Sequence[str] | None = None
    ) -> Hit | None:
        """The strongest hit of a training text, or None; evaluation ids in `skip` do not count.

        `words` are the grams of the text, if they are known.
        """
        words = words or grams(text)
        ids = [self._vocabulary.get(word, -1) for word in words]
        shared: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for start, stop in _runs(ids):
            for size in (self.ngram, *sorted(self._whole_lengths)):
                for i in range(start, stop - size + 1):
                    for text_index in self._where.get(tuple(ids[i : i + size]), ()):
                        if self.texts[text_index][0] not in skip:
                            shared[text_index].append((i, size))
        if not shared:
            return None
        share = self._coverage if self.share == "coverage" else self._common_words
        shares = {text: share(ids, len(set(words)), text, windows) for text, windows in shared.items()}
        decided = self._decided(text, shared)
        best = max(shared, key=lambda t: (RANK[decided.get(t)], shares[t], len(shared[t]), -t))
        first, size = shared[best][0]
        others = [self.texts[t][0] for t in sorted(shared, key=lambda t: -shares[t]) if t != best]
        id, part, _ = self.texts[best]
        return Hit(
            train_id=train_id,
            eval_id=id,
            part=part,
            ngram=" ".join(words[first : first + size]),
            whole=size < self.ngram,
            share=shares[best],
            ngrams_shared=len({tuple(ids[i : i + s]) for i, s in shared[best]}),
            train_text=text,
            eval_text=self.raw[best],
            decision=decided.get(best),
            others=tuple(dict.fromkeys(o for o in others if o != id))[:20],
        )

    def _decided(self, text: str, shared: Iterable[int]) -> dict[int, Verdict]:
        """The decisions on this training text, by number of the evaluation text."""
        if not self.decisions:
            return {}
        key = text_key(text)
        pairs = {number: (key, text_key(self.raw[number])) for number in shared}
        return {number: self.decisions[pair] for number, pair in pairs.items() if pair in self.decisions}

    def _coverage(self, ids: Sequence[int], _: int, text: int, windows: Sequence[tuple[int, int]]) -> float:
        of_training = len({place for i, size in windows for place in range(i, i + size)}) / len(ids)
        grams_of_text = self.texts[text][2]
        size = min(self.ngram, len(grams_of_text))
        shared = {tuple(ids[i : i + size]) for i, _ in windows}
        starts = (i for i in range(len(grams_of_text) - size + 1) if grams_of_text[i : i + size] in shared)
        of_text = len({place for i in starts for place in range(i, i + size)}) / len(grams_of_text)
        return max(of_training, of_text)

    def _common_words(self, ids: Sequence[int], distinct: int, text: int, _: Sequence[tuple[int, int]]) -> float:
        grams_of_text = set(self.texts[text][2])
        return len(grams_of_text.intersection(ids)) / min(distinct, len(grams_of_text))


def _runs(ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Runs of at least three grams that all occur in the evaluation texts."""
    start = 0
    for index, id in enumerate((*ids, -1)):
        if id < 0:
            if index - start >= SHORTEST:
                yield start, index
            start = index + 1


def trained_texts(problem: Problem) -> Iterator[str]:
    """The texts that training shows the model: the question and, in the sft split, the worked solution."""
    yield problem.question
    if problem.split == "sft" and problem.solution:
        yield problem.solution


def find_hits(
    problems: Iterable[Problem],
    index: EvaluationIndex,
    *,
    min_share: float = 0.0,
    skips: Mapping[str, frozenset[str]] | None = None,
) -> Iterator[tuple[Problem, Hit | None]]:
    """Each problem with its strongest hit, if its share is at least `min_share`.

    Evaluation ids in `skips` of the problem's source do not count. Grams are computed once, a chunk of rows at a time.
    """
    waiting = iter(problems)
    while chunk := list(islice(waiting, CHUNK)):
        texts = [(number, text) for number, problem in enumerate(chunk) for text in trained_texts(problem)]
        words = [grams(text) for _, text in texts]
        hits: dict[int, list[Hit]] = defaultdict(list)
        for at in np.flatnonzero(index.may_hit(words)).tolist():
            number, text = texts[at]
            skip = (skips or {}).get(chunk[number].source, frozenset())
            hit = index.look_up(chunk[number].id, text, skip, words[at])
            if hit is not None and hit.share >= min_share:
                hits[number].append(hit)
        for number, problem in enumerate(chunk):
            yield problem, max(hits[number], key=lambda hit: (RANK[hit.decision], hit.share), default=None)
