"""DeepSeekMath's loop for mathematical pages (arXiv:2402.03300, section 2.1), on page files.

A round trains a classifier on positives against negatives, scores all pages and collects those above a cut. Domains of
which more than 10 % was collected are promoted: their pages become positives of the next round, and pages of the other
domains its negatives. The paper's classifier is fastText; this one is similar: a linear model on hashed 1- and 2-grams
(scikit-learn), with the grams of `grams.py`, so that LaTeX and Chinese count.

Three things keep a round from poisoning the next one. The cut is calibrated (`calibration.py`), so a round collects
what looks like mathematics and not a fixed share. A page of a promoted domain that scores like the negatives does not
become a positive. The loop keeps the round with the best F1 on texts that its models did not see, and stops at a worse
one.
"""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix, vstack
from sklearn.feature_extraction.text import HashingVectorizer

from mathrl.core.errors import UserError
from mathrl.core.seeding import derive_seed
from mathrl.data.corpus.calibration import FOLDS, Scores, best_cut, calibrate, cross_fit, fold_numbers, posterior
from mathrl.data.corpus.page_files import Page
from mathrl.data.decontaminate import EvaluationIndex, Hit
from mathrl.data.grams import exact_key, grams
from mathrl.params.pages import Pages

BUCKETS = 2**20
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
    collected: tuple[int, ...]  # page numbers, best first
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
class _Corpus:
    """The pages and seeds as the rounds need them."""

    pages: Sequence[Page]
    hosts: npt.NDArray[np.str_]
    keys: list[int]
    features: csr_matrix  # (pages, BUCKETS)
    seed_keys: list[int]
    seed_features: csr_matrix  # (seeds, BUCKETS)
    seed_labels: npt.NDArray[np.int64]
    random_negatives: list[int]
    unseen: frozenset[int]  # keys of held-out pages


@dataclass(frozen=True)
class _Additions:
    """The pages that a round trains on beside the seeds, by number."""

    positives: list[int]
    negatives: list[int]


def collect(
    pages: Sequence[Page], positives: Sequence[str], negatives: Sequence[str], params: Pages, seed: int
) -> CollectedPages:
    """Run the rounds, without decontamination (`clean`).

    Raises:
        UserError: there are too few seeds, or the top share of the pages is less than one page.
    """
    count = top_count(len(pages), params.top_share) if params.top_share is not None else None
    keys = [exact_key(page.text) for page in pages]
    held_out = _held_out(pages, keys, {exact_key(text) for text in (*positives, *negatives)}, params, seed)
    corpus = _corpus(pages, keys, positives, negatives, held_out, params, seed)
    out = CollectedPages([], np.zeros(len(pages)), held_out, f"all {params.rounds} rounds are done")
    out.seeds, out.random_negatives = (len(positives), len(negatives)), len(corpus.random_negatives)
    labelled = Counter(bool(pages[i].label) for i in held_out)
    out.f1_of = "pages" if min(labelled[True], labelled[False]) >= LEAST_LABELS else "seeds"
    out.margin = max(WORSE, 1 / (labelled[True] if out.f1_of == "pages" else len(positives)))
    added = _Additions([], corpus.random_negatives)
    collected_before: set[int] = set()
    for number in range(1, params.rounds + 1):
        scores, labels = _score(corpus, added, params, derive_seed(seed, "pages", number))
        slope, intercept = calibrate(scores.trained, labels)
        share, probabilities = posterior(slope * scores.pages + intercept)
        log_odds = slope * scores.pages + intercept + math.log(share / (1 - share))
        chosen = np.argsort(-scores.pages, kind="stable")[: count or best_cut(probabilities)]
        promoted = promote([page.host for page in pages], chosen.tolist(), params.domain_share)
        following = _additions(corpus, added, scores, chosen, promoted, params, derive_seed(seed, "added", number))
        counted = Counter(pages[i].host for i in following.positives)
        precision, recall = measure(pages, chosen.tolist(), held_out)
        new = len(set(chosen.tolist()) - collected_before) / len(chosen)
        collected_before |= set(chosen.tolist())
        out.rounds.append(
            Round(
                number,
                int(labels.sum()),
                int((labels == 0).sum()),
                tuple(chosen.tolist()),
                new,
                float(log_odds[chosen[-1]]),
                {host: counted[host] for host in promoted},
                precision,
                recall,
                float(probabilities[chosen].mean()),
                float(probabilities[chosen].sum() / probabilities.sum()),
                _f1(precision, recall) if out.f1_of == "pages" else _seeds_f1(corpus, scores, chosen[-1]),
            )
        )
        if number == 1 or out.rounds[-1].f1 >= out.rounds[out.best].f1:
            out.best, out.scores = number - 1, log_odds
        if worse := out.worse():
            out.stopped = worse
            break
        if new < params.stop_new_share:
            out.stopped = f"{1 - new:.1%} of round {number} had been collected before"
            break
        added = following
    out.kept = list(out.rounds[out.best].collected)
    return out


def _corpus(
    pages: Sequence[Page], keys: list[int], positives: Sequence[str], negatives: Sequence[str],
    held_out: frozenset[int], params: Pages, seed: int,
) -> _Corpus:  # fmt: skip
    unseen = frozenset(keys[i] for i in held_out)  # a twin of a held-out page is not trained on either
    numbers = [i for i, key in enumerate(keys) if key not in unseen]
    rng = random.Random(derive_seed(seed, "pages", "random_negatives"))
    random_pages = sorted(rng.sample(numbers, min(params.random_negatives, len(numbers))))
    if not negatives and not random_pages:
        raise UserError("params/pages.yaml: negatives.files names no file and random_negatives is 0")
    seed_keys = [exact_key(text) for text in (*positives, *negatives)]
    distinct = {
        "positives": set(seed_keys[: len(positives)]),
        "negatives": {*seed_keys[len(positives) :], *(keys[i] for i in random_pages)},
    }
    for name, texts in distinct.items():
        if len(texts) < FOLDS:
            raise UserError(
                f"params/pages.yaml: {name}: {len(texts)} different texts; write at least {FOLDS}: each "
                f"of {FOLDS} classifiers is measured on the part that it was not trained on"
            )
    vectorizer = HashingVectorizer(
        analyzer=lambda text: features(text, params.ngram), n_features=BUCKETS, alternate_sign=False
    )
    return _Corpus(
        pages,
        np.array([page.host for page in pages]),
        keys,
        vectorizer.transform(page.text for page in pages),
        seed_keys,
        vectorizer.transform([*positives, *negatives]),
        np.repeat([1, 0], [len(positives), len(negatives)]),
        random_pages,
        unseen,
    )


def _score(corpus: _Corpus, added: _Additions, params: Pages, seed: int) -> tuple[Scores, npt.NDArray[np.int64]]:
    """Scores of seeds, added pages (in this order) and all pages, and the labels trained on."""
    numbers = [*added.positives, *added.negatives]
    labels = np.concatenate([corpus.seed_labels, np.repeat([1, 0], [len(added.positives), len(added.negatives)])])
    folds = fold_numbers([*corpus.seed_keys, *(corpus.keys[i] for i in numbers)], labels, seed)
    trained = vstack([corpus.seed_features, corpus.features[numbers]], format="csr")
    scores = cross_fit(trained, labels, folds, corpus.features, epochs=params.epochs, seed=seed)
    scores.pages[numbers] = scores.trained[len(corpus.seed_keys) :]  # by the model that did not see the page
    return scores, labels


def _additions(
    corpus: _Corpus, added: _Additions, scores: Scores, chosen: npt.NDArray[np.intp], promoted: Sequence[str],
    params: Pages, seed: int,
) -> _Additions:  # fmt: skip
    """What the next round trains on beside the seeds, never a held-out page."""
    of_negatives = scores.trained[: len(corpus.seed_labels)][corpus.seed_labels == 0]
    if not len(of_negatives):
        of_negatives = scores.pages[corpus.random_negatives]
    floor = np.quantile(of_negatives, LIKE_NEGATIVES)
    in_promoted = np.isin(corpus.hosts, promoted)
    collected = np.zeros(len(corpus.keys), dtype=bool)
    collected[chosen] = True
    seen = np.array([key not in corpus.unseen for key in corpus.keys])
    positives = [
        int(i)
        for i in np.flatnonzero(in_promoted & seen & (scores.pages >= floor))
        if corpus.pages[i].path.startswith(params.path_prefixes.get(corpus.pages[i].host, ""))
    ]
    others = np.flatnonzero(~in_promoted & ~collected & seen).tolist()
    fresh = random.Random(seed).sample(others, min(params.page_negatives, len(others)))
    kept = [i for i in corpus.random_negatives if not collected[i]]
    return _Additions(positives, sorted({*kept, *fresh} - set(positives)))


def _f1(precision: float | None, recall: float | None) -> float:
    return 2 * precision * recall / (precision + recall) if precision and recall else 0.0


def _seeds_f1(corpus: _Corpus, scores: Scores, last: int) -> float:
    """F1 of a cut at the page `last` on the seeds, scored by models that did not see them; equal class weights."""
    cut = scores.pages[last]
    passed = scores.trained[: len(corpus.seed_labels)] >= cut
    recall = passed[corpus.seed_labels == 1].mean()
    others = passed[corpus.seed_labels == 0]
    if not len(others):
        others = scores.pages[corpus.random_negatives] >= cut
    return float(2 * recall / (1 + recall + others.mean()))


def features(text: str, longest: int) -> list[str]:
    """The runs of 1 to `longest` grams of the text.

    >>> features("Let $x = 2$", 2)
    ['let', 'x', '2', 'let x', 'x 2']
    """
    words = grams(text)
    return [" ".join(words[i : i + size]) for size in range(1, longest + 1) for i in range(len(words) - size + 1)]


def top_count(pages: int, share: float) -> int:
    """The number of pages in the top share, rounded down: 29 of 100 at 0.29.

    Raises:
        UserError: the number is 0.
    """
    count = math.floor(Fraction(str(share)) * pages)
    if count == 0:
        raise UserError(f"params/pages.yaml: top_share {share:g} of {pages} pages is none; write a larger one")
    return count


def promote(hosts: Sequence[str], collected: Sequence[int], share: float) -> list[str]:
    """Domains of which more than `share` of the pages was collected, sorted; exactly `share` is not enough.

    >>> promote(["a"] * 10 + ["b"] * 9, [0, 10], 0.1)  # 1 of 10, 1 of 9
    ['b']
    """
    sizes, taken = Counter(hosts), Counter(hosts[i] for i in collected)
    return sorted(host for host in taken if Fraction(taken[host], sizes[host]) > Fraction(str(share)))


def measure(
    pages: Sequence[Page], collected: Sequence[int], held_out: frozenset[int]
) -> tuple[float | None, float | None]:
    """Precision and recall of the collection on the held-out pages: labels against being collected."""
    taken = [i for i in collected if i in held_out]
    positives = sum(bool(pages[i].label) for i in held_out)
    right = sum(bool(pages[i].label) for i in taken)
    return (right / len(taken) if taken else None), (right / positives if positives else None)


def clean(collected: CollectedPages, pages: Sequence[Page], index: EvaluationIndex, min_share: float) -> None:
    """Remove the pages that share an n-gram with an evaluation text from `kept`, and list them in `hits`."""
    asked = [(pages[i].where, pages[i].text, frozenset[str]()) for i in collected.kept]
    hits = [hit for start in range(0, len(asked), CHUNK) for hit in index.hits(asked[start : start + CHUNK])]
    collected.hits += [hit for hit in hits if hit and hit.share >= min_share]
    clean_pages = (hit is None or hit.share < min_share for hit in hits)
    collected.kept = [i for i, is_clean in zip(collected.kept, clean_pages, strict=True) if is_clean]


def domains(collected: CollectedPages, pages: Sequence[Page]) -> dict[str, dict[str, Any]]:
    """For every domain: its pages, the numbers collected per round and kept, and the rounds that promoted it."""
    sizes, kept = Counter(p.host for p in pages), Counter(pages[i].host for i in collected.kept)
    taken: dict[str, list[int]] = defaultdict(list)
    for round_account in collected.rounds:
        counted = Counter(pages[i].host for i in round_account.collected)
        for host in sizes:
            taken[host].append(counted[host])
    return {
        host: {
            "pages": sizes[host],
            "collected": taken[host],
            "kept": kept[host],
            "promoted_in_rounds": [r.number for r in collected.rounds if host in r.promoted],
            "pages_made_positives": max(r.promoted.get(host, 0) for r in collected.rounds),
        }
        for host in sorted(sizes)
    }


def _held_out(
    pages: Sequence[Page], keys: Sequence[int], trained: set[int], params: Pages, seed: int
) -> frozenset[int]:
    """Labelled pages for measuring only: chosen by text, so that twins stay together; never a seed text."""
    return frozenset(
        i
        for i, (page, key) in enumerate(zip(pages, keys, strict=True))
        if page.label is not None
        and key not in trained
        and derive_seed(seed, "held out", key) < params.held_out_share * 2**63
    )
