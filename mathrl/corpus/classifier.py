"""The classifiers of pages: what they see of a text, training, calibrated scores, and where to cut.

Every text is scored by a model that was not trained on it (cross-fitting). The scores of the training texts give a
sigmoid (Platt, 1999), the scores of the pages give the share of mathematics in the corpus (Saerens, Latinne and
Decaestecker, Neural Computation 14, 2002), and the cut is the one with the highest expected F1. So a corpus with
4 % of mathematics and one with 40 % need no setting.

With a trained fastText model, a page's score is the logarithm of the odds of the label for mathematics. The model gets
a page as it stands, on one line, as in datatrove's filter. fastText's loader is native code that trusts what it reads.
Training is left to fastText's own program: no package that trains has wheels for all our Pythons and gives equal bytes
for equal texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix, vstack
from scipy.special import expit
from sklearn.linear_model import LogisticRegression, SGDClassifier

from mathrl.core.errors import UserError
from mathrl.core.files import encodable, read_json, write_json
from mathrl.core.hashing import derive_seed
from mathrl.corpus.page_files import PageShard, vectorizer
from mathrl.params.pages import FastTextClassifier, PageClassifier
from mathrl.reading.sources import absolute

FOLDS = 5
FILE = "models.npz"
CHUNK = 1024  # pages whose features are in memory at a time
Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
Lines = npt.NDArray[np.object_]
PREFIX = "__label__"
ADDED = 1e-5  # by fastText, to each probability


@dataclass(frozen=True)
class Models:
    """One linear model per fold; a page's score is the mean of theirs, in log-odds before calibration."""

    weights: Floats  # (FOLDS, features)
    intercepts: Floats  # (FOLDS,)

    def score(self, texts: csr_matrix) -> Floats:
        """The scores of texts that no model was trained on."""
        total = np.zeros(texts.shape[0])
        for weights, intercept in zip(self.weights, self.intercepts, strict=True):
            total += (texts @ weights + intercept) / FOLDS
        return total

    def score_shard(self, shard: PageShard) -> Floats:
        """The score of every page of a shard."""
        matrix = shard.features()
        parts = [self.score(matrix[at : at + CHUNK]) for at in range(0, matrix.shape[0], CHUNK)]
        return np.concatenate(parts) if parts else np.zeros(0)

    def write(self, folder: Path) -> None:
        """Write the weights of the features that some model uses."""
        used = np.flatnonzero(self.weights.any(axis=0))
        size = self.weights.shape[1]
        np.savez(folder / FILE, used=used, weights=self.weights[:, used], intercepts=self.intercepts, size=size)

    @classmethod
    def read(cls, folder: Path) -> "Models":
        with np.load(folder / FILE) as arrays:
            weights = np.zeros((len(arrays["intercepts"]), int(arrays["size"])))
            weights[:, arrays["used"]] = arrays["weights"]
            return cls(weights, arrays["intercepts"])


def fold_numbers(keys: Sequence[int], labels: Labels, seed: int) -> Labels:
    """A fold per text, balanced within each class; texts with the same key share a fold."""
    folds = np.zeros(len(keys), dtype=np.int64)
    for label in (0, 1):
        at = np.flatnonzero(labels == label)
        order = sorted({keys[i] for i in at}, key=lambda key: derive_seed(seed, "pages fold", key))
        number = {key: rank % FOLDS for rank, key in enumerate(order)}
        folds[at] = [number[keys[i]] for i in at]
    return folds


def cross_fit(trained: csr_matrix, labels: Labels, folds: Labels, *, epochs: int, seed: int) -> tuple[Models, Floats]:
    """One model per fold, trained on the other folds, and the score of each text by the model that did not see it."""
    of_trained, weights, intercepts = np.zeros(len(labels)), [], []
    for fold in range(FOLDS):
        model = SGDClassifier(
            loss="log_loss",
            alpha=1e-5,
            max_iter=epochs,
            tol=None,
            class_weight="balanced",
            random_state=derive_seed(seed, fold) % 2**32,
        )
        others = np.flatnonzero(folds != fold)
        model.fit(trained[others], labels[others])
        out = np.flatnonzero(folds == fold)
        of_trained[out] = model.decision_function(trained[out])
        weights.append(model.coef_[0])
        intercepts.append(model.intercept_[0])
    return Models(np.stack(weights), np.array(intercepts)), of_trained


def calibrate(scores: Floats, labels: Labels) -> tuple[float, float]:
    """Slope and intercept of the log-odds at equal class weights, by Platt's sigmoid with his smoothed targets."""
    counts = np.array([(labels == 0).sum(), (labels == 1).sum()])
    target = np.where(labels == 1, (counts[1] + 1) / (counts[1] + 2), 1 / (counts[0] + 2))
    weight = 1 / counts[labels]
    scale = float(scores.std()) or 1.0
    column = (scores / scale)[:, None]
    # Each text once per class, weighted by its target: the logistic loss with soft targets.
    sigmoid = LogisticRegression(C=np.inf).fit(
        np.concatenate([column, column]),
        np.repeat([1, 0], len(labels)),
        sample_weight=np.concatenate([weight * target, weight * (1 - target)]) * len(labels),
    )
    return float(sigmoid.coef_[0, 0]) / scale, float(sigmoid.intercept_[0])


def posterior(log_odds: Floats) -> tuple[float, Floats]:
    """The share of mathematics in the corpus and each page's probability, by expectation maximisation.

    `log_odds` are those at equal class weights.
    """
    least = 1 / (10 * len(log_odds))
    share = 0.5
    for _ in range(500):
        probabilities = expit(log_odds + np.log(share / (1 - share)))
        before, share = share, float(np.clip(probabilities.mean(), least, 1 - least))
        if abs(share - before) < 1e-7:
            break
    return share, probabilities


def best_cut(probabilities: Floats) -> int:
    """The number of best pages with the highest expected F1.

    >>> best_cut(np.array([0.99, 0.9, 0.6, 0.1, 0.01]))
    3
    """
    ranked = np.sort(probabilities)[::-1]
    expected = 2 * np.cumsum(ranked) / (np.arange(1, len(ranked) + 1) + ranked.sum())
    return int(expected.argmax()) + 1


def lines(texts: Sequence[str]) -> Lines:
    """The texts as fastText reads them, one line each."""
    return np.array([encodable(" ".join(text.split())) for text in texts], object)


def check_model(classifier: FastTextClassifier) -> Path:
    """The model's file.

    Raises:
        UserError: fastText cannot be imported, the file is none of its classifiers, or the model lacks the label (which
            shows with the first text of a known word).
    """
    file = absolute(classifier.model)
    FastTextModel(file, classifier.label).score(lines([""]))
    return file


@dataclass(frozen=True)
class FastTextModel:
    """A model in a file, loaded when it is first asked, and its label for mathematics.

    Raises:
        UserError: as `check_model`.
    """

    file: Path
    label: str

    def write(self, folder: Path) -> None:
        write_json(folder / "fasttext.json", {"file": str(self.file), "label": self.label})

    @classmethod
    def read(cls, folder: Path) -> "FastTextModel":
        written = read_json(folder / "fasttext.json")
        return cls(Path(written["file"]), written["label"])

    @cached_property
    def _model(self) -> Any:
        try:
            import fasttext  # of the extra fasttext
        except ModuleNotFoundError:
            raise UserError(
                "pages.classifier is fasttext, but fasttext-predict cannot be found: "
                "pip install -c constraints.txt 'mathrl[fasttext]'"
            ) from None
        try:
            return fasttext.load_model(str(self.file))
        except ValueError as error:
            raise UserError(f"pages.classifier.model: {error}; name a model that fastText saved") from None

    def score(self, texts: Lines) -> Floats:
        """Log-odds of mathematics, before calibration; a text without a word that the model knows has the lowest."""
        right = np.fromiter(map(self._probability, texts), np.float64, len(texts))
        probabilities = np.clip(right - ADDED, ADDED, 1 - ADDED)
        return np.asarray(np.log(probabilities / (1 - probabilities)))

    def _probability(self, text: str) -> float:
        model = self._model
        try:
            labels, probabilities = model.predict(text, k=-1)
        except ValueError as error:  # word vectors without labels
            raise UserError(f"pages.classifier.model: {self.file}: {error}; name a supervised model") from None
        of_label = {label.removeprefix(PREFIX): value for label, value in zip(labels, probabilities, strict=True)}
        if of_label and self.label not in of_label:
            has = ", ".join(sorted(of_label))
            raise UserError(f"pages.classifier.label: {self.file} has no label {self.label!r}; it has {has}")
        return float(of_label.get(self.label, 0.0))

    def score_shard(self, shard: PageShard) -> Floats:
        """The score of every page of a shard."""
        at = iter(shard.numbers()["at"].tolist())
        chunks = iter(lambda: [shard.page(start).text for start in islice(at, CHUNK)], [])
        return np.concatenate([np.zeros(0), *(self.score(lines(chunk)) for chunk in chunks)])


Inputs = Any  # csr_matrix (texts, BUCKETS) of the linear classifier; Lines of fastText's


def inputs_of(texts: Sequence[str], classifier: PageClassifier) -> Inputs:
    """What the classifier sees of the texts."""
    if isinstance(classifier, FastTextClassifier):
        return lines(texts)
    return vectorizer(classifier.ngram).transform(texts)


def stack(parts: Sequence[Inputs]) -> Inputs:
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
