"""How the grader reads an accepted answer: as mathematics, as an option's letter, as words, or not at all."""

from typing import Literal

from mathrl.grading.normalize import canonical, merge_thousands
from mathrl.grading.parser import parse
from mathrl.grading.words import number_in_words, option, plain_words

Reading = Literal["mathematics", "option", "words", "not parsed"]
MOST_WORDS = 4  # of an answer that a model can be expected to repeat


def reading(answer: str) -> Reading:
    r"""How the grader reads an accepted answer.

    Mathematics is compared by value. An option's letter and a few words are compared as such. What is not parsed counts
    as right only where a response repeats it character by character, or the symbolic engine can read it.

    >>> reading("\\frac{1}{2}"), reading("(B)"), reading("no solution"), reading("see the figure on the left side")
    ('mathematics', 'option', 'words', 'not parsed')
    """
    text = canonical(answer[:20000])
    if not text:
        return "not parsed"
    letter = option(answer)
    if letter is not None and letter in "ABCDEFGHIJ":
        return "option"
    words = plain_words(answer)
    if words is not None and len(words) > 1:
        is_number = number_in_words(words) is not None
        return "mathematics" if is_number else "words" if len(words.split()) <= MOST_WORDS else "not parsed"
    return "not parsed" if parse(merge_thousands(text, commas=True)) is None else "mathematics"
