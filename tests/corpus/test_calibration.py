"""Calibration of the pages classifier: the share of mathematics, the cut, scores of texts that no model saw."""

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from mathrl.corpus.classifier import FOLDS, Models, best_cut, calibrate, cross_fit, fold_numbers, posterior


@pytest.mark.parametrize("share", [0.02, 0.2, 0.7])
def test_the_share_of_a_corpus_is_found_from_balanced_seeds(share: float) -> None:
    rng = np.random.default_rng(0)

    def scores(mathematics: np.ndarray) -> np.ndarray:
        # Normal with means 2 and -2: the true log-odds are 4 times the score.
        return rng.normal(np.where(mathematics, 2.0, -2.0))

    seeds = np.repeat([1, 0], 500)
    slope, intercept = calibrate(scores(seeds == 1), seeds)
    assert slope == pytest.approx(4, rel=0.25) and intercept == pytest.approx(0, abs=0.6)
    pages = rng.random(20_000) < share
    log_odds = slope * scores(pages) + intercept
    found, probabilities = posterior(log_odds)
    assert found == pytest.approx(share, rel=0.2)
    right = np.cumsum(pages[np.argsort(-log_odds)])
    f1 = 2 * right / (np.arange(1, len(pages) + 1) + pages.sum())
    assert f1[best_cut(probabilities) - 1] > f1.max() - 0.04  # Platt smooths the sigmoid


def test_the_cut_has_the_highest_expected_f1() -> None:
    probabilities = np.array([0.2, 0.9, 0.6, 0.05])
    # Expected F1 of the best 1, 2, 3, 4: 1.8/2.75, 3/3.75, 3.4/4.75, 3.5/5.75.
    assert best_cut(probabilities) == 2


def test_twins_share_a_fold_and_classes_are_balanced() -> None:
    keys = [*range(100), *range(50)]
    labels = np.repeat([1, 0, 1], [50, 50, 50])
    folds = fold_numbers(keys, labels, seed=0)
    assert list(folds[:50]) == list(folds[100:])
    assert [int(((folds == f) & (labels == 0)).sum()) for f in range(FOLDS)] == [10] * FOLDS
    assert list(folds) != list(fold_numbers(keys, labels, seed=1))


def test_no_text_is_scored_by_a_model_that_saw_it(tmp_path: Path) -> None:
    texts = csr_matrix(np.eye(200))  # a word of its own each: nothing can be learned, only remembered
    labels = np.arange(200) % 2
    models, trained = cross_fit(texts, labels, fold_numbers(range(200), labels, 0), epochs=5, seed=0)
    assert np.abs(trained[labels == 1].mean() - trained[labels == 0].mean()) < 0.5
    models.write(tmp_path)
    pages = Models.read(tmp_path).score(texts)
    assert pages.tolist() == models.score(texts).tolist()
    assert pages[labels == 1].mean() - pages[labels == 0].mean() > 2  # those did see it
