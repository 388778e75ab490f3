"""The classifier of pages by its parameters: what it sees of a text, and its training and scores."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, vstack

from mathrl.corpus.calibration import Floats, Labels, Models, cross_fit
from mathrl.corpus.fasttext_classifier import FastTextModel, check_model, lines
from mathrl.corpus.page_features import vectorizer
from mathrl.params.pages import FastTextClassifier, PageClassifier

Inputs = Any  # csr_matrix (texts, BUCKETS) of the linear classifier; fasttext_classifier.Lines


def inputs_of(texts: Sequence[str], classifier: PageClassifier) -> Inputs:
    """What the classifier sees of the texts."""
    if isinstance(classifier, FastTextClassifier):
        return lines(texts)
    return vectorizer(classifier.ngram).transform(texts)


def stacked(parts: Sequence[Inputs]) -> Inputs:
    return vstack(parts, format="csr") if isinstance(parts[0], csr_matrix) else np.concatenate(parts)


def fit(
    classifier: PageClassifier, texts: Inputs, labels: Labels, folds: Labels, *, seed: int
) -> tuple[Models | FastTextModel, Floats]:
    """One model per fold, and the score of each text by the model that did not see it; fastText's model is given."""
    if isinstance(classifier, FastTextClassifier):
        model = FastTextModel(check_model(classifier), classifier.label)
        return model, model.score(texts)
    return cross_fit(texts, labels, folds, epochs=classifier.epochs, seed=seed)


def read_models(folder: Path) -> Models | FastTextModel:
    """The models that were written to the folder."""
    return FastTextModel.read(folder) if (folder / "fasttext.json").exists() else Models.read(folder)
