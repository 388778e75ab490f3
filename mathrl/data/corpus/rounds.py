"""DeepSeekMath's loop for mathematical pages (arXiv:2402.03300, section 2.1), on page files.

A round trains a classifier on positives against negatives, ranks all pages and collects the top share. Of a
domain of which more than 10 % was collected, the pages not collected become positives of the next round. The
paper's classifier is fastText, which is no longer maintained; this one is similar: a linear model on hashed
1- and 2-grams (scikit-learn), with the grams of `grams.py`, so that LaTeX and Chinese count.
"""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from scipy.sparse import vstack
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import SGDClassifier

from mathrl.core.errors import UserError
from mathrl.core.seeding import derive_seed
from mathrl.data.corpus.page_files import Page
from mathrl.data.decontaminate import EvaluationIndex, Hit
from mathrl.data.grams import exact_key, grams
from mathrl.params.pages import Pages

BUCKETS = 2**20


@dataclass(frozen=True)
class Round:
    """The account of one round. `precision` and `recall` are those on the held-out pages, None if none is labelled.

    `new_share` is the share of the collected pages that no earlier round had collected.
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


@dataclass
class CollectedPages:
    """The kept pages, best first, and the account of the rounds and of contamination."""

    rounds: list[Round]
    scores: np.ndarray  # of the last round: log-odds of being mathematics, one per page, float64 (pages,)
    held_out: frozenset[int]
    stopped: str
    kept: list[int] = field(default_factory=list)
    hits: list[Hit] = field(default_factory=list)


def collect(
    pages: Sequence[Page], positives: Sequence[str], negatives: Sequence[str], params: Pages, seed: int
) -> CollectedPages:
    """Run the rounds, without decontamination (`clean`).

    Raises:
        UserError: there are no negatives, or the top share of the pages is less than one page.
    """
    count = top_count(len(pages), params.top_share)
    keys = [exact_key(page.text) for page in pages]
    held_out = _held_out(pages, keys, {exact_key(text) for text in (*positives, *negatives)}, params, seed)
    unseen = {keys[i] for i in held_out}  # a twin of a held-out page is not trained on either
    numbers = [i for i, key in enumerate(keys) if key not in unseen]
    rng = random.Random(derive_seed(seed, "pages", "random_negatives"))
    random_pages = sorted(rng.sample(numbers, min(params.random_negatives, len(numbers))))
    if not negatives and not random_pages:
        raise UserError("params/pages.yaml: negatives.files names no file and random_negatives is 0")
    vectorizer = HashingVectorizer(
        analyzer=lambda text: features(text, params.ngram), n_features=BUCKETS, alternate_sign=False
    )
    of_pages, *of_seeds = (
        vectorizer.transform(texts) for texts in ([p.text for p in pages], positives, negatives) if texts
    )
    added: set[int] = set()
    collected_before: set[int] = set()
    collected = CollectedPages([], np.zeros(len(pages)), held_out, f"all {params.rounds} rounds are done")
    for number in range(1, params.rounds + 1):
        promoted_pages, random_negatives = sorted(added), [i for i in random_pages if i not in added]
        labels = [1] * len(positives) + [0] * len(negatives) + [1] * len(promoted_pages) + [0] * len(random_negatives)
        model = SGDClassifier(
            loss="log_loss",
            alpha=1e-5,
            max_iter=params.epochs,
            tol=None,
            class_weight="balanced",
            random_state=derive_seed(seed, "pages", number) % 2**32,
        )
        model.fit(vstack([*of_seeds, of_pages[promoted_pages], of_pages[random_negatives]], format="csr"), labels)
        collected.scores = model.decision_function(of_pages)
        best = np.argsort(-collected.scores, kind="stable")[:count]
        chosen = tuple(int(i) for i in best)
        new = len(set(chosen) - collected_before) / count
        collected_before |= set(chosen)
        promoted = promote([page.host for page in pages], chosen, params.domain_share)
        fresh = [
            i
            for i, page in enumerate(pages)
            if page.host in promoted
            and i not in set(chosen) | added
            and keys[i] not in unseen
            and page.path.startswith(params.path_prefixes.get(page.host, ""))
        ]
        counted = Counter(pages[i].host for i in fresh)
        collected.rounds.append(
            Round(
                number,
                labels.count(1),
                labels.count(0),
                chosen,
                new,
                float(collected.scores[chosen[-1]]),
                {host: counted[host] for host in promoted},
                *measure(pages, chosen, held_out),
            )
        )
        added.update(fresh)
        if new < params.stop_new_share:
            collected.stopped = f"{1 - new:.1%} of round {number} had been collected before"
            break
    collected.kept = list(collected.rounds[-1].collected)
    return collected


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
    kept = []
    for i in collected.kept:
        hit = index.look_up(pages[i].where, pages[i].text)
        if hit is None or hit.share < min_share:
            kept.append(i)
        else:
            collected.hits.append(hit)
    collected.kept = kept


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
            "pages_made_positives": sum(r.promoted.get(host, 0) for r in collected.rounds),
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
