"""DeepSeekMath's loop for mathematical pages (arXiv:2402.03300, section 2.1), on page files.

A round trains a classifier on positives against negatives, scores all pages and collects those above a cut. Domains of
which more than 10 % was collected are promoted: their pages become positives of the next round, and pages of the other
domains its negatives. The paper's classifier is fastText; this one is similar: a linear model on hashed 1- and 2-grams
(scikit-learn), with the grams of `grams.py`, so that LaTeX and Chinese count. A trained fastText model can take its
place, for one round. Training runs here; pages are read and scored by datatrove's tasks (`corpus.py`).

Three things keep a round from poisoning the next one. The cut is calibrated (`classifier.py`), so a round collects
what looks like mathematics and not a fixed share. A page of a promoted domain that scores like the negatives does not
become a positive. The loop keeps the round with the best F1 on texts that its models did not see, and stops at a worse
one.
"""

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from mathrl.core.errors import UserError
from mathrl.core.hashing import derive_seed
from mathrl.corpus.classifier import (
    FOLDS,
    Floats,
    Inputs,
    best_cut,
    calibrate,
    fit,
    fold_numbers,
    inputs_of,
    posterior,
    stack,
)
from mathrl.corpus.corpus import Corpus, Numbers
from mathrl.curation.decisions import Hit
from mathrl.curation.decontaminate import EvaluationIndex
from mathrl.data.grams import exact_key
from mathrl.params.pages import Pages

LIKE_NEGATIVES = 0.95  # a page that scores below this quantile of the held-out negatives never becomes a positive
LEAST_LABELS = 20  # held-out pages of either label from which F1 is measured on them and not on the seeds
CHUNK = 1024  # pages that are compared with evaluation texts at a time
FEW_SEEDS = 20  # positives below which one text more or less changes F1 by several hundredths
UNSURE = 0.7  # expected precision or recall below which the classes overlap
ALL = 0.9  # share of the pages from which a collection does not select
WORSE = 0.01  # a loss of F1 of more than this, and than one held-out text of mathematics, stops the loop


@dataclass(frozen=True)
class Round:
    """The account of one round.

    `new_share` is the share of the collected pages that no earlier round had collected. `precision` and `recall` are
    those on the held-out pages, None if none is labelled; the expected ones follow from the calibrated probabilities.
    `f1` is that of the held-out pages or, with few labels, of the seeds, both classes weighted equally.
    """

    number: int
    positives: int
    negatives: int
    collected: Numbers  # pages, best first
    new_share: float
    lowest_score: float
    promoted: dict[str, int]  # domain -> pages of it that became positives
    precision: float | None
    recall: float | None
    expected_precision: float
    expected_recall: float
    f1: float


@dataclass
class CollectedPages:
    """The kept pages, best first, and the account of the rounds and of contamination."""

    rounds: list[Round]
    scores: np.ndarray  # of the best round: log-odds of being mathematics, one per page, float64 (pages,)
    held_out: frozenset[int]
    stopped: str
    f1_of: str = "seeds"  # what the rounds are compared on: seeds or pages
    margin: float = WORSE
    best: int = 0  # index of the kept round
    seeds: tuple[int, int] = (0, 0)  # positives and negatives that a person gave
    random_negatives: int = 0
    kept: list[int] = field(default_factory=list)
    hits: list[Hit] = field(default_factory=list)

    def worse(self) -> str | None:
        """What a person must know if a later round was worse than the kept one."""
        best, last = self.rounds[self.best], self.rounds[-1]
        if last.f1 >= best.f1 - self.margin:
            return None
        return (
            f"round {last.number} was worse than round {best.number} (F1 {last.f1:.3f} after {best.f1:.3f} on held-out "
            f"{self.f1_of}); round {best.number} is kept"
        )

    def doubts(self) -> list[str]:
        """Why the held-out estimate of the kept round cannot be trusted, and what to add; empty if it can."""
        best, (positives, negatives) = self.rounds[self.best], self.seeds
        total = len(self.scores)
        seen = f"{len(best.collected):,} of {total:,} pages collected, {best.positives:,} positives"
        doubts = []
        if self.f1_of == "seeds" and not negatives:
            doubts.append(
                f"{self.random_negatives:,} random pages are the only negatives, and the mathematics among them counts "
                f"as errors ({seen}); name at least 100 texts that are not mathematics in negatives.files, or "
                f"label {LEAST_LABELS} pages of either kind in label_key"
            )
        if self.f1_of == "seeds" and positives < FEW_SEEDS:
            doubts.append(
                f"F1 is measured on {positives} positives, so one of them changes it by {1 / positives:.2f}; name at "
                f"least {FEW_SEEDS} texts in positives.files, or label {LEAST_LABELS} pages of either kind in label_key"
            )
        expected = min(best.expected_precision, best.expected_recall)
        if expected < UNSURE or len(best.collected) >= ALL * total:
            doubts.append(
                "mathematical and other pages are not told apart: the calibrated probabilities expect precision "
                f"{best.expected_precision:.2f} and recall {best.expected_recall:.2f} ({seen}); add positives.files "
                "that look like the corpus's mathematics, and negatives.files that look like its other pages"
            )
        return doubts


@dataclass(frozen=True)
class _Seeds:
    """The seeds, and which pages the rounds may train on."""

    keys: list[int]
    inputs: Inputs
    labels: npt.NDArray[np.int64]
    random_negatives: list[int]
    seen: npt.NDArray[np.bool_]  # (pages,): neither held out nor the twin of a held-out page


@dataclass(frozen=True)
class _Scores:
    """Log-odds before calibration, by models that did not see the text."""

    trained: Floats  # (texts,)
    pages: Floats  # (pages,)


@dataclass(frozen=True)
class _Additions:
    """The pages that a round trains on beside the seeds, by number."""

    positives: list[int]
    negatives: list[int]


def collect(
    pages: Corpus, positives: Sequence[str], negatives: Sequence[str], params: Pages, seed: int
) -> CollectedPages:
    """Run the rounds, without decontamination (`clean`).

    Raises:
        UserError: there are too few seeds, or the top share of the pages is less than one page.
    """
    count = top_count(len(pages), params.top_share) if params.top_share is not None else None
    held_out = _held_out(pages, {exact_key(text) for text in (*positives, *negatives)}, params, seed)
    seeds = _seeds(pages, positives, negatives, held_out, params, seed)
    out = CollectedPages([], np.zeros(len(pages)), held_out, f"all {params.rounds} rounds are done")
    out.seeds, out.random_negatives = (len(positives), len(negatives)), len(seeds.random_negatives)
    labelled = Counter(int(pages.labels[i]) for i in held_out)
    out.f1_of = "pages" if min(labelled[1], labelled[0]) >= LEAST_LABELS else "seeds"
    out.margin = max(WORSE, 1 / (labelled[1] if out.f1_of == "pages" else len(positives)))
    added = _Additions([], seeds.random_negatives)
    before = np.zeros(len(pages), dtype=bool)
    for number in range(1, params.rounds + 1):
        scores, labels = _score(pages, seeds, added, params, number, seed)
        slope, intercept = calibrate(scores.trained, labels)
        share, probabilities = posterior(slope * scores.pages + intercept)
        log_odds = slope * scores.pages + intercept + math.log(share / (1 - share))
        chosen = np.argsort(-scores.pages, kind="stable")[: count or best_cut(probabilities)]
        promoted = promote(pages.hosts, chosen, params.domain_share)
        following = _additions(pages, seeds, scores, chosen, promoted, params, derive_seed(seed, "added", number))
        counted = np.bincount(pages.hosts[following.positives], minlength=len(pages.host_names))
        precision, recall = measure(pages.labels, chosen, held_out)
        new = int((~before[chosen]).sum()) / len(chosen)
        before[chosen] = True
        out.rounds.append(
            Round(
                number,
                int(labels.sum()),
                int((labels == 0).sum()),
                chosen,
                new,
                float(log_odds[chosen[-1]]),
                {pages.host_names[host]: int(counted[host]) for host in promoted},
                precision,
                recall,
                float(probabilities[chosen].mean()),
                float(probabilities[chosen].sum() / probabilities.sum()),
                _f1(precision, recall) if out.f1_of == "pages" else _seeds_f1(seeds, scores, chosen[-1]),
            )
        )
        if number == 1 or out.rounds[-1].f1 >= out.rounds[out.best].f1:
            out.best, out.scores = number - 1, log_odds
        if worse := out.worse():
            out.stopped = worse
            break
        if params.classifier.type == "fasttext":
            out.stopped = "no round trains the fastText model"
            break
        if new < params.stop_new_share:
            out.stopped = f"{1 - new:.1%} of round {number} had been collected before"
            break
        added = following
    out.kept = out.rounds[out.best].collected.tolist()
    return out


def _seeds(
    pages: Corpus,
    positives: Sequence[str],
    negatives: Sequence[str],
    held_out: frozenset[int],
    params: Pages,
    seed: int,
) -> _Seeds:
    seen = pages.unlike({pages.key(i) for i in held_out})
    numbers = np.flatnonzero(seen)
    rng = random.Random(derive_seed(seed, "pages", "random_negatives"))
    random_pages = sorted(_sample(rng, numbers, params.random_negatives))
    if not negatives and not random_pages:
        raise UserError("params/pages.yaml: negatives.files names no file and random_negatives is 0")
    keys = [exact_key(text) for text in (*positives, *negatives)]
    distinct = {
        "positives": set(keys[: len(positives)]),
        "negatives": {*keys[len(positives) :], *map(pages.key, random_pages)},
    }
    for name, texts in distinct.items():
        if len(texts) < FOLDS:
            raise UserError(
                f"params/pages.yaml: {name}: {len(texts)} different texts; write at least {FOLDS}: each "
                f"of {FOLDS} classifiers is measured on the part that it was not trained on"
            )
    inputs = inputs_of([*positives, *negatives], params.classifier)
    labels = np.repeat([1, 0], [len(positives), len(negatives)])
    return _Seeds(keys, inputs, labels, random_pages, seen)


def _sample(rng: random.Random, numbers: Numbers, most: int) -> list[int]:
    chosen = rng.sample(range(len(numbers)), min(most, len(numbers)))
    return [int(numbers[i]) for i in chosen]


def _score(
    pages: Corpus, seeds: _Seeds, added: _Additions, params: Pages, number: int, seed: int
) -> tuple[_Scores, npt.NDArray[np.int64]]:
    """Scores of seeds, added pages (in this order) and all pages, and the labels trained on."""
    numbers = [*added.positives, *added.negatives]
    labels = np.concatenate([seeds.labels, np.repeat([1, 0], [len(added.positives), len(added.negatives)])])
    fit_seed = derive_seed(seed, "pages", number)
    folds = fold_numbers([*seeds.keys, *map(pages.key, numbers)], labels, fit_seed)
    texts = stack([seeds.inputs, pages.inputs(numbers)])
    models, trained = fit(params.classifier, texts, labels, folds, seed=fit_seed)
    scores = _Scores(trained, pages.score(models, number))
    scores.pages[numbers] = trained[len(seeds.keys) :]  # by the model that did not see the page
    return scores, labels


def _additions(
    pages: Corpus, seeds: _Seeds, scores: _Scores, chosen: Numbers, promoted: Sequence[int], params: Pages, seed: int
) -> _Additions:
    """What the next round trains on beside the seeds, never a held-out page."""
    of_negatives = scores.trained[: len(seeds.labels)][seeds.labels == 0]
    if not len(of_negatives):
        of_negatives = scores.pages[seeds.random_negatives]
    floor = np.quantile(of_negatives, LIKE_NEGATIVES)
    in_promoted = np.isin(pages.hosts, promoted)
    collected = np.zeros(len(pages), dtype=bool)
    collected[chosen] = True
    fit = np.flatnonzero(in_promoted & seeds.seen & (scores.pages >= floor) & pages.inside)
    positives = fit.tolist()
    if len(fit) > params.page_positives:
        positives = sorted(_sample(random.Random(derive_seed(seed, "positives")), fit, params.page_positives))
    others = np.flatnonzero(~in_promoted & ~collected & seeds.seen)
    fresh = _sample(random.Random(seed), others, params.page_negatives)
    kept = [i for i in seeds.random_negatives if not collected[i]]
    return _Additions(positives, sorted({*kept, *fresh} - set(positives)))


def _f1(precision: float | None, recall: float | None) -> float:
    return 2 * precision * recall / (precision + recall) if precision and recall else 0.0


def _seeds_f1(seeds: _Seeds, scores: _Scores, last: int) -> float:
    """F1 of a cut at the page `last` on the seeds, scored by models that did not see them; equal class weights."""
    cut = scores.pages[last]
    passed = scores.trained[: len(seeds.labels)] >= cut
    recall = passed[seeds.labels == 1].mean()
    others = passed[seeds.labels == 0]
    if not len(others):
        others = scores.pages[seeds.random_negatives] >= cut
    return float(2 * recall / (1 + recall + others.mean()))


def top_count(pages: int, share: float) -> int:
    """The number of pages in the top share, rounded down: 29 of 100 at 0.29.

    Raises:
        UserError: the number is 0.
    """
    count = math.floor(Fraction(str(share)) * pages)
    if count == 0:
        raise UserError(f"params/pages.yaml: top_share {share:g} of {pages} pages is none; write a larger one")
    return count


def promote(hosts: npt.NDArray[np.int32], collected: Numbers, share: float) -> list[int]:
    """Hosts of which more than `share` of the pages was collected, by number; exactly `share` is not enough.

    >>> promote(np.repeat([0, 1], [10, 9]), np.array([0, 10]), 0.1)  # 1 of 10, 1 of 9
    [1]
    """
    sizes, taken = np.bincount(hosts), np.bincount(hosts[collected])
    least = Fraction(str(share))
    return [int(host) for host in np.flatnonzero(taken) if Fraction(int(taken[host]), int(sizes[host])) > least]


def measure(
    labels: npt.NDArray[np.int8], collected: Numbers, held_out: frozenset[int]
) -> tuple[float | None, float | None]:
    """Precision and recall of the collection on the held-out pages: labels against being collected."""
    measured = np.zeros(len(labels), dtype=bool)
    measured[list(held_out)] = True
    taken = collected[measured[collected]]
    positives, right = int((labels[measured] == 1).sum()), int((labels[taken] == 1).sum())
    return (right / len(taken) if len(taken) else None), (right / positives if positives else None)


def clean(collected: CollectedPages, pages: Corpus, index: EvaluationIndex, min_share: float) -> None:
    """Remove the pages that share an n-gram with an evaluation text from `kept`, and list them in `hits`."""
    kept: list[int] = []
    for start in range(0, len(collected.kept), CHUNK):
        numbers = collected.kept[start : start + CHUNK]
        asked = [(page.where, page.text, frozenset[str]()) for page in map(pages.__getitem__, numbers)]
        hits = index.hits(asked)
        collected.hits += [hit for hit in hits if hit and hit.share >= min_share]
        kept += [i for i, hit in zip(numbers, hits, strict=True) if hit is None or hit.share < min_share]
    collected.kept = kept


def domains(collected: CollectedPages, pages: Corpus) -> dict[str, dict[str, Any]]:
    """For every domain: its pages, the numbers collected per round and kept, and the rounds that promoted it."""

    def count(numbers: Numbers | list[int]) -> list[int]:
        at = np.asarray(numbers, dtype=np.int64)
        return [int(n) for n in np.bincount(pages.hosts[at], minlength=len(pages.host_names))]

    sizes, kept = np.bincount(pages.hosts, minlength=len(pages.host_names)).tolist(), count(collected.kept)
    taken = [count(r.collected) for r in collected.rounds]
    return {
        host: {
            "pages": sizes[code],
            "collected": [of_round[code] for of_round in taken],
            "kept": kept[code],
            "promoted_in_rounds": [r.number for r in collected.rounds if host in r.promoted],
            "pages_made_positives": max(r.promoted.get(host, 0) for r in collected.rounds),
        }
        for code, host in enumerate(pages.host_names)
    }


def _held_out(pages: Corpus, trained: set[int], params: Pages, seed: int) -> frozenset[int]:
    """Labelled pages for measuring only: chosen by text, so that twins stay together; never a seed text."""
    keys = ((int(i), pages.key(int(i))) for i in np.flatnonzero(pages.labels >= 0))
    most = params.held_out_share * 2**63
    return frozenset(i for i, key in keys if key not in trained and derive_seed(seed, "held out", key) < most)
