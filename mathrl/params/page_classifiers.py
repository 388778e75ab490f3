"""The classifiers of the pages flow."""

from typing import Annotated, Literal

from pydantic import Field

from mathrl.params.section import Section


class LinearClassifier(Section):
    """Logistic regression on hashed n-grams (scikit-learn), trained in each round."""

    type: Literal["linear"] = "linear"
    ngram: int = Field(2, ge=1, le=3, description="Longest n-gram that the classifier uses, in words.")
    epochs: int = Field(20, ge=1, description="Training epochs of the classifier.")


class FastTextClassifier(Section):
    """A trained fastText model, as in datatrove's filter; there is one round, since no round trains it."""

    type: Literal["fasttext"]
    model: str = Field(description="Model file of fastText (.bin or .ftz), of a source that you trust.")
    label: str = Field("math", description="The model's label for mathematics, without the prefix __label__.")


PageClassifier = Annotated[LinearClassifier | FastTextClassifier, Field(discriminator="type")]
