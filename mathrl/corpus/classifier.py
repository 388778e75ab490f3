"""The classifier of pages by its parameters: what it sees of a text, and its training and scores.

A trained fastText model as the classifier of pages.

A page's score is the logarithm of the odds of the label for mathematics. The model gets a page as it stands, on one
line, as in datatrove's filter. fastText's loader is native code that trusts what it reads. Training is left to
fastText's own program: no package that trains has wheels for all our Pythons and gives equal bytes for equal texts.
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

from mathrl.core.errors import UserError
from mathrl.core.files import encodable, read_json, write_json
from mathrl.corpus.calibration import CHUNK, Floats, Labels, Models, cross_fit
from mathrl.corpus.page_shards import PageShard, vectorizer
from mathrl.params.pages import FastTextClassifier, PageClassifier
from mathrl.reading.sources import absolute

Lines = npt.NDArray[np.object_]
PREFIX = "__label__"
ADDED = 1e-5  # by fastText, to each probability


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


Inputs = Any  # csr_matrix (texts, BUCKETS) of the linear classifier; fasttext_classifier.Lines


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
