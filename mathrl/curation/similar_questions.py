"""Questions that mean the same as an evaluation question, by the cosine of static embeddings (model2vec).

This is the second pass of decontamination: it finds questions in other words, which share no n-gram. Embeddings do not
tell numbers and operators apart well, so the threshold is high and a person can overrule it (decisions.py).
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mathrl.core.errors import UserError
from mathrl.core.paths import main_checkout
from mathrl.params.data import Embedding

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
