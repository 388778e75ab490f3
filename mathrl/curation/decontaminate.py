r"""Training texts that share n-grams with an evaluation text, and how much of either text they share.

By DeepSeekMath's rule (arXiv:2402.03300, section 2.1) a training text with any n-gram (10 by default) that stands in
an evaluation question or answer text is a hit; evaluation texts of 3 to n-1 grams are matched whole; shorter ones
would match by chance and are left to exact deduplication. Most such hits share boilerplate alone, so a hit has a
share, and curation drops those with a large one: `coverage` is the part of the training or evaluation text, whichever
is larger, that lies in shared n-grams; `words` counts distinct grams without their order.

An embedding pass by choice comes after the n-grams: it finds questions in other words, by the cosine of static
embeddings (model2vec). These do not tell numbers and operators apart well, so the threshold is high and a person can
overrule it (decisions.py).

A bare answer of fewer than n grams is a text only when three of them are words: matched whole, \frac{1}{2} or
1, 2, 3 would drop thousands of questions. `grams.py` says what a gram is.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mathrl.core.errors import UserError
from mathrl.core.paths import main_checkout
from mathrl.core.types import Problem
from mathrl.curation.decisions import RANK, Hit, Pair, Verdict, decisions_of, text_key
from mathrl.curation.token_windows import CHUNK, Pairs, Rows, Skipped, TokenHashes, WindowIndex, hash_tokens
from mathrl.data.grams import compared_grams, grams
from mathrl.data.grams import numbers as numbers_of
from mathrl.params.data import Decontaminate, Embedding

SHORTEST = 3
OTHERS = 20  # further evaluation ids that a hit lists
PARTS = ("model.safetensors", "tokenizer.json", "config.json")
Floats = npt.NDArray[np.float32]


def model_folder(name: str) -> Path | None:
    """The folder that names a model, None for a hub id; a relative path starts at the top of the checkout.

    Raises:
        UserError: the folder lacks a file of model2vec's format.
    """
    folder = Path(name) if Path(name).is_absolute() else main_checkout() / name
    if not folder.is_dir():
        if name.startswith((".", "/", "~")) or name.count("/") != 1:
            raise UserError(
                f"the embedding model {name} is neither a folder nor a hub id; write the folder of a "
                "model2vec model, or its hub id such as minishlab/potion-base-8M"
            )
        return None
    missing = [part for part in PARTS if not (folder / part).is_file()]
    if missing:
        raise UserError(f"{folder}: no {' and no '.join(missing)}; name a folder in model2vec's format")
    return folder


class SimilarQuestions:
    """Embedded evaluation questions, by the numbers that `add` gets.

    Cosines are rounded to 4 digits. On another processor a rounding of the last digit may differ.
    """

    def __init__(self, params: Embedding) -> None:
        self.params = params
        self.numbers: list[int] = []
        self._texts: list[str] = []
        model_folder(params.model)

    def __getstate__(self) -> dict[str, Any]:
        """Each process loads the model itself; the questions' embeddings travel."""
        self._questions  # noqa: B018 -- computed once, before the processes start
        return {name: value for name, value in self.__dict__.items() if name != "_model"}

    def add(self, number: int, text: str) -> None:
        self.numbers.append(number)
        self._texts.append(text)
        self.__dict__.pop("_questions", None)

    def cosines(self, texts: Sequence[str]) -> Floats:
        """The cosine of each text with each question: (texts, questions)."""
        cosines: Floats = np.round(self._embed(texts) @ self._questions.T, 4)
        return cosines

    def _embed(self, texts: Sequence[str]) -> Floats:
        rows = np.asarray(self._model.encode(list(texts), use_multiprocessing=False), dtype=np.float32)
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        unit: Floats = rows / np.where(lengths == 0, 1, lengths)  # a text without a known token is like nothing
        return unit

    @cached_property
    def _questions(self) -> Floats:
        return self._embed(self._texts)

    @cached_property
    def _model(self) -> Any:
        try:
            from model2vec import StaticModel  # an extra
        except ModuleNotFoundError as error:
            raise UserError(
                f"decontamination by embeddings needs {error.name}: pip install -c constraints.txt 'mathrl[embedding]'"
            ) from None
        folder = model_folder(self.params.model)
        try:
            return StaticModel.from_pretrained(folder or self.params.model, force_download=False)
        except Exception as error:  # of the hub's client, safetensors or tokenizers
            raise UserError(
                f"{self.params.model}: cannot be loaded as a model2vec model ({error}); name the folder of such a model"
            ) from None


class EvaluationIndex:
    """The n-grams of evaluation texts.

    `share` says what the share of a hit is: coverage (the grams of a text that lie in shared n-grams over all its
    grams, for the text where this is more) or words (the shared distinct grams, wherever they stand, over those of the
    text with fewer). `decisions` are a person's (decisions.py): a pair to keep does not hide another hit of the text.
    `similar` adds a second pass, over texts that have no hit, or one that `min_share` would not drop. A hit of a share
    below `others_from` does not list the other texts that it hits.
    """

    def __init__(
        self,
        ngram: int,
        share: Literal["coverage", "words"] = "coverage",
        decisions: Mapping[Pair, Verdict] | None = None,
        similar: SimilarQuestions | None = None,
        min_share: float = 0.0,
        others_from: float = 0.0,
    ) -> None:
        self.ngram, self.share, self.decisions = ngram, share, decisions or {}
        self.similar, self.min_share, self.others_from = similar, min_share, others_from
        self.texts: list[tuple[str, str]] = []  # id, part
        self.raw: list[str] = []
        self.too_short: list[str] = []
        self._grams: list[Rows] = []  # of each text
        self._known = TokenHashes()  # of the grams

    def add(self, id: str, part: str, text: str) -> None:
        """Index one evaluation text; a text of fewer than 3 grams is only listed in `too_short`."""
        hashed = hash_tokens([compared_grams(text)], self._known)
        if len(hashed.flat) < SHORTEST:
            self.too_short.append(f"{id} ({part})")
            return
        self.__dict__.pop("_windows", None)
        self.__dict__.pop("_decisions_by_text", None)
        self.__dict__.pop("_numbers", None)
        if self.similar and part == "question":
            self.similar.add(len(self.texts), text)
        self.texts.append((id, part))
        self.raw.append(text)
        self._grams.append(hashed)

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

    @cached_property
    def _windows(self) -> WindowIndex:
        return WindowIndex(Rows.join(self._grams), self.ngram)

    def may_hit(self, texts: Rows) -> npt.NDArray[np.bool_]:
        """For the hashes of the grams of each text, whether it may have a hit: an indexed window stands in it.

        Embeddings know nothing of windows: with them, any text may.
        """
        return self._windows.contains(texts) if self.similar is None else np.ones(len(texts.starts) - 1, bool)

    def hits(self, texts: Sequence[tuple[str, str, frozenset[str]]]) -> list[Hit | None]:
        """The strongest hit of each training text, given with its id and the evaluation ids that do not count."""
        words = [compared_grams(text) for _, text, _ in texts]
        hashed = hash_tokens(words, TokenHashes(self._known))
        strongest: list[Hit | None] = [None] * len(texts)
        for pairs in self._windows.pairs(hashed, self._skipped_texts([skip for _, _, skip in texts])):
            shares = self._coverage(pairs, hashed) if self.share == "coverage" else self._common_words(pairs, hashed)
            starts = np.flatnonzero(np.diff(pairs.rows, prepend=-1))
            for start, end in zip(starts, np.append(starts[1:], len(pairs.rows)), strict=True):
                row = int(pairs.rows[start])
                strongest[row] = self._hit(texts[row][0], texts[row][1], words[row], pairs, range(start, end), shares)
        if self.similar and self.similar.numbers:
            rest = [row for row, hit in enumerate(strongest) if hit is None or not hit.is_dropped(self.min_share)]
            for row, similar in zip(rest, self._semantic_hits([texts[row] for row in rest]), strict=True):
                strongest[row] = max(
                    filter(None, [strongest[row], similar]), key=lambda hit: hit.strength, default=None
                )
        return strongest

    def _semantic_hits(self, texts: Sequence[tuple[str, str, frozenset[str]]]) -> Iterator[Hit | None]:
        """The most similar evaluation question of each text, if it is similar enough or a person decided on it."""
        assert self.similar is not None
        numbers = np.array(self.similar.numbers)
        for start in range(0, len(texts), CHUNK):
            chunk = texts[start : start + CHUNK]
            for (train_id, text, skip), cosines in zip(chunk, self.similar.cosines([t[1] for t in chunk]), strict=True):
                judged = self._decisions_by_text.get(text_key(text), {}) if self._decisions_by_text else {}
                enough = cosines >= self.similar.params.min_similarity
                at = np.flatnonzero(enough | np.isin(numbers, list(judged)) if judged else enough)
                near = [(int(numbers[i]), float(cosines[i])) for i in at if self.texts[numbers[i]][0] not in skip]
                if near and self.similar.params.same_numbers:
                    text_numbers = numbers_of(grams(text))
                    near = [pair for pair in near if pair[0] in judged or self._numbers[pair[0]] == text_numbers]
                if not near:
                    yield None
                    continue
                number, cosine = max(near, key=lambda pair: (RANK[judged.get(pair[0])], pair[1], -pair[0]))
                id, part = self.texts[number]
                others = tuple(dict.fromkeys(self.texts[n][0] for n, _ in near if n != number))[:OTHERS]
                yield Hit(
                    train_id, id, part, "", False, cosine, 0, text, self.raw[number], others, judged.get(number), True
                )

    @cached_property
    def _numbers(self) -> dict[int, tuple[str, ...]]:
        """The numbers in each evaluation question."""
        listed = self.similar.numbers if self.similar else ()
        return {number: numbers_of(grams(self.raw[number])) for number in listed}

    @cached_property
    def _decisions_by_text(self) -> dict[str, dict[int, Verdict]]:
        """The decisions on each training text, by number of the evaluation question."""
        of_key: dict[str, list[int]] = {}
        for number in self.similar.numbers if self.similar else ():
            of_key.setdefault(text_key(self.raw[number]), []).append(number)
        judged: dict[str, dict[int, Verdict]] = {}
        for (train_key, eval_key), verdict in self.decisions.items():
            judged.setdefault(train_key, {}).update(dict.fromkeys(of_key.get(eval_key, ()), verdict))
        return judged

    def _skipped_texts(self, skips: Sequence[frozenset[str]]) -> Skipped | None:
        """Which evaluation text does not count for which row; None if all do."""
        if not any(skips):
            return None
        numbers = {skip: number for number, skip in enumerate(dict.fromkeys(skips))}
        masks = np.array([[id in skip for id, _ in self.texts] for skip in numbers], bool)
        return Skipped(masks, np.array([numbers[skip] for skip in skips]))

    def _hit(
        self, train_id: str, text: str, words: Sequence[str], pairs: Pairs, at: range, shares: npt.NDArray[np.float64]
    ) -> Hit:
        """The strongest of the pairs `at`, which are those of one training text."""
        starts = pairs.starts[at.start : at.stop + 1]
        numbers, of_text = pairs.texts[at.start : at.stop].tolist(), shares[at.start : at.stop].tolist()
        counts, first = (starts[1:] - starts[:-1]).tolist(), pairs.places[starts[:-1]].tolist()
        decided = self._decisions_on(text, numbers)
        ranks = [RANK[decided.get(number)] for number in numbers] if decided else [0] * len(numbers)
        best = max(zip(ranks, of_text, counts, range(0, -len(numbers), -1), strict=True))[-1] * -1
        number = numbers[best]
        listed = of_text[best] >= self.others_from or decided.get(number) == "drop"
        id, part = self.texts[number]
        size = int(self._windows.sizes[number])
        places = pairs.places[starts[best] : starts[best + 1]].tolist()
        return Hit(
            train_id=train_id,
            eval_id=id,
            part=part,
            ngram=" ".join(words[first[best] : first[best] + size]),
            whole=size < self.ngram,
            share=of_text[best],
            ngrams_shared=len({tuple(words[i : i + size]) for i in places}),
            train_text=text,
            eval_text=self.raw[number],
            decision=decided.get(number),
            others=self._others(words, numbers, of_text, first, best) if listed else (),
        )

    def _others(
        self, words: Sequence[str], numbers: list[int], shares: list[float], first: list[int], best: int
    ) -> tuple[str, ...]:
        """At most OTHERS further evaluation ids by falling share; equal shares in the order of the training text."""
        if len(numbers) == 1:
            return ()
        unknown = 0
        runs = np.array([unknown := unknown + (word not in self._known) for word in words])  # of indexed grams alone
        sizes, places = self._windows.sizes[numbers], np.array(first)
        order = np.lexsort((np.array(numbers), places, sizes, sizes < self.ngram, runs[places], -np.array(shares)))
        listed = {self.texts[numbers[best]][0]: None}
        for i in order.tolist():
            listed[self.texts[numbers[i]][0]] = None
            if len(listed) > OTHERS:
                break
        return tuple(listed)[1:]

    def _decisions_on(self, text: str, numbers: Iterable[int]) -> dict[int, Verdict]:
        """The decisions on this training text, by number of the evaluation text."""
        if not self.decisions:
            return {}
        key = text_key(text)
        pairs = {number: (key, text_key(self.raw[number])) for number in numbers}
        return {number: self.decisions[pair] for number, pair in pairs.items() if pair in self.decisions}

    def _coverage(self, pairs: Pairs, hashed: Rows) -> npt.NDArray[np.float64]:
        of_training = pairs.of_row / np.diff(hashed.starts)[pairs.rows]
        return np.asarray(np.maximum(of_training, pairs.of_text / self._windows.lengths[pairs.texts]))

    def _common_words(self, pairs: Pairs, hashed: Rows) -> npt.NDArray[np.float64]:
        rows = {row: set(hashed.row(row).tolist()) for row in np.unique(pairs.rows).tolist()}
        texts = {text: set(self._grams[text].flat.tolist()) for text in np.unique(pairs.texts).tolist()}
        both = ((rows[row], texts[text]) for row, text in zip(pairs.rows.tolist(), pairs.texts.tolist(), strict=True))
        return np.array([len(row & text) / min(len(row), len(text)) for row, text in both])


def evaluation_index(params: Decontaminate, others_from: float = 0.0) -> EvaluationIndex:
    """An index by the parameters, without texts.

    Raises:
        UserError: the decisions cannot be read, or the embedding model's folder is wrong.
    """
    similar = SimilarQuestions(params.embedding) if params.embedding else None
    return EvaluationIndex(params.ngram, params.share, decisions_of(params), similar, params.min_share, others_from)


def trained_texts(problem: Problem) -> Iterator[str]:
    """The texts that training shows the model: the question and, in the sft split, the worked solution."""
    yield problem.question
    if problem.split == "sft" and problem.solution:
        yield problem.solution


@dataclass(frozen=True)
class Search:
    """What training texts are compared with; evaluation ids in `skips` of a problem's source do not count."""

    index: EvaluationIndex
    skips: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def strongest(self, rows: Sequence[tuple[Problem, Sequence[str]]]) -> list[Hit | None]:
        """The strongest hit of each problem, which is given with its texts."""
        asked = [(p.id, text, self.skips.get(p.source, frozenset())) for p, texts in rows for text in texts]
        hits = iter(self.index.hits(asked))
        hits_of_problems = ([hit for hit in islice(hits, len(texts)) if hit] for _, texts in rows)
        return [max(of_row, key=lambda hit: hit.strength, default=None) for of_row in hits_of_problems]


def find_hits(
    problems: Iterable[Problem], index: EvaluationIndex, *, skips: Mapping[str, frozenset[str]] | None = None
) -> Iterator[tuple[Problem, Hit | None]]:
    """Each problem with its strongest hit; evaluation ids in `skips` of the problem's source do not count."""
    search, waiting = Search(index, skips or {}), iter(problems)
    while chunk := list(islice(waiting, CHUNK)):
        yield from zip(chunk, search.strongest([(p, list(trained_texts(p))) for p in chunk]), strict=True)
