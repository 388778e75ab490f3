r"""Nothing in an answer is dropped: another token in the place of one makes an equal pair unequal.

A token is replaced by others of its kind (a number by numbers, a name by names, a word by words, a command by commands
of its class). The stated equivalences, where a pair may stay equal, are below; everything else is a mistake.
"""

import random
import re
from collections.abc import Iterator
from itertools import islice

from mathrl.grading import compare
from mathrl.grading.lexer import tokenize
from mathrl.grading.syntax import ParseError
from tests.grading.pairs import pairs
from tests.grading.test_pairs import EQUAL

CLASSES = [
    ["3", "7", "12", "0.25"],
    ["x", "y", "n", "A", "q"],
    ["+", "-"],
    ["=", "<", ">", r"\le", r"\ge", r"\ne", r"\approx", r"\equiv", r"\in", r"\subset", r"\mid", r"\to", r"\implies"],
    [r"\sin", r"\cos", r"\tan", r"\ln", r"\exp", r"\arctan", r"\sqrt"],
    [r"\cup", r"\cap", r"\setminus"],
    [r"\lfloor", r"\lceil"],
    [r"\alpha", r"\beta", r"\theta", r"\pi", r"\nabla"],
    [r"\mathbb{Z}", r"\mathbb{N}", r"\mathbb{R}", r"\mathbb{Q}"],
    [r"\land", r"\lor"],
    [r"\cdot", r"\times"],
]
WORDS = ["odd", "even", "north", "less", "wrong", "squared", "negative", "apples", "kg", "euros", "not", "per"]
# Tokens that may stand for one another, with the rule of docs/explanation/grading.md that says so.
EQUIVALENT = [
    {r"\cdot", r"\times"},  # one product of numbers
    {"+", "-"},  # -0, and both roots of plus-minus
    {"=", r"\approx"},  # "\approx 42" claims 42
    {"=", r"\equiv"},
]


def replaced(text: str, rng: random.Random) -> Iterator[tuple[str, str, str]]:
    """The text with one token replaced, the token and what replaces it."""
    position = 0
    try:
        tokens = tokenize(text)[:-1]
    except ParseError:
        return
    for token in tokens:
        spelled = f"\\{token.value}" if token.kind == "cmd" else token.value
        at = text.find(spelled, position)
        if at < 0 or (at and text[at - 1] == "\\" and token.kind != "cmd"):
            continue
        position = at + len(spelled)
        options: list[str] = next((kind for kind in CLASSES if spelled in kind), [])
        if not options:
            options = {"num": CLASSES[0], "name": CLASSES[1], "text": WORDS}.get(token.kind, [])
        if others := [option for option in options if option != spelled]:
            other = rng.choice(others)
            space = " " if other[-1].isalpha() and text[position : position + 1].isalpha() else ""
            yield text[:at] + other + space + text[position:], spelled, other


# Texts in which a token may change while the meaning stays, with the reason.
SAME_MEANING = re.compile(
    r"[({]*\(?[A-C]\)|\\text\{B\. "  # the content of an option does not count
    r"|^\\angle A|^[a-zA-Z](?:\^\{-1\})?[(_]\w\)? ?=|\\overline\{AB\}"  # names of functions and variables
    r"|\\(?:text|operatorname)\{(?:span|max|mean|radius|Quot|rank|The radius)"  # all of a space; nouns
    r"|.*\)\+[ts]\("  # parameters
    r"|.*\(-1\)\^\{k-1\}|f\(x\)是"  # an odd number less, names of functions
    r"|.*\\pi"  # names of integers beside pi; periods of a cosine
    r"|.*\\\\\[1ex\]"  # the space between rows
    r"|.*\\begin\{(?:cases|array)\}"  # where cases meet or overlap with one value; columns
    r"|.*=[^=]+=|.*\\approx"  # working before the last link of a chain
    r"|.*[Cc]_|.*\b[CK]\b"  # constants of integration
    r"|.*\\(?:min|max|cap|setminus|lfloor|equiv)|.*(?:t/t|x\^0|\\frac\{0\})"  # what does not change the value
    r"|.*\\mathbb\{Z\}"  # congruent numbers
    r"|.*is an integer|n \\text\{ is|.*\\text\{ and \}"  # congruent numbers; a unit that the other side leaves out
    r"|.*\\text\{ or \}"  # a point of the ray beside it
    r"|\\exp\(0|\\binom|.*\\choose|1\\|1 h|x \\in \\\{"  # equal by chance, or a label
    r"|(?:\\text\{)?€|\\text\{(?:Even|Answer|[Tt]he answer|about|\(A)"  # noise beside a value, a unit instead
    r"|\\text\{\(a\)"  # values in the order of their parts, with a label left out
    r"|.*is any real number|.*\\text\{(?:all odd|Yes, for)|.*\\color|.*\\begin\{aligned\}"  # names; a remark; a colour
    r"|.*(?:ways|times|arrangements|个|a\.m\.|\.0|North|degrees|\\textbf)"  # noise, capitals, spellings of one number
)


def changes(text: str, rng: random.Random) -> list[tuple[str, str]]:
    """The text with other tokens that is still accepted for it."""
    made = [] if SAME_MEANING.match(text) else replaced(text, rng)
    return [
        (text, changed)
        for changed, old, new in made
        if not any({old, new} <= both for both in EQUIVALENT) and compare(text, changed).equal
    ]


def test_another_token_is_another_answer() -> None:
    rng = random.Random(1)
    texts = [text for pair in EQUAL for text in pair] + [pair.answer for pair in islice(pairs(33), 150)]
    assert [change for text in dict.fromkeys(texts) for change in changes(text, rng)] == []
