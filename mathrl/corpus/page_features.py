"""What the classifier of pages sees of a text: hashed runs of grams."""

from sklearn.feature_extraction.text import HashingVectorizer

from mathrl.data.grams import grams

BUCKETS = 2**20


def features(text: str, longest: int) -> list[str]:
    """The runs of 1 to `longest` grams of the text.

    >>> features("Let $x = 2$", 2)
    ['let', 'x', '2', 'let x', 'x 2']
    """
    words = grams(text)
    return [" ".join(words[i : i + size]) for size in range(1, longest + 1) for i in range(len(words) - size + 1)]


def vectorizer(longest: int) -> HashingVectorizer:
    """Texts to rows of `BUCKETS` hashed features, scaled to length 1."""
    return HashingVectorizer(analyzer=lambda text: features(text, longest), n_features=BUCKETS, alternate_sign=False)
