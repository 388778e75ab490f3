r"""What words beside a value mean: units with dimension and scale, nouns of what is counted, noise, and the rest.

Every word has one of these meanings, and none is dropped. A unit or noun that stands on one side alone is forgiven, two
that contradict one another are unequal; words that are in no list must stand on both sides, in the same order.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from mathrl.grading.syntax import Node, ParseError, is_expression, kinds, num, symbols, with_base
from mathrl.grading.unit_sizes import SPELLINGS, unit_entry
from mathrl.grading.words import number_in_words


class Meaning(NamedTuple):
    r"""What a text says: Meaning("m s^-1", Fraction(5, 18), frozenset(), ("north",)) for "km/h north".

    `dimension`: the base units with their exponents, "" where no unit is named. `size`: of the unit, in base units.
    `names`: what is counted or measured. `rest`: the words of no list, in order.
    """

    dimension: str
    size: Fraction
    names: frozenset[str]
    rest: tuple[str, ...]


# Words that name the count itself, or say only that this is the value.
NOISE = frozenset(
    (
        "is are was be the a an of in to for that this it its so thus therefore hence about approximately approx "
        "exactly roughly around equal equals answer final value result only just total altogether overall he she "
        "they there we you has have had will can way ways number numbers integer integers value values "
        "solution solutions possibility possibilities outcome outcomes arrangement arrangements combination "
        "combinations permutation permutations root roots real each every cent as 个 只 answers correct required "
        "还剩 还 剩 剩下 共 一共 总共 有 是 答 答案 约 大约 等于 为 "
        "desired possible distinct different times respectively get gets gives such unique any text"
    ).split()
)
# What is counted or measured; singular, as `_singular` makes it.
_COUNTED = frozenset(
    (
        "domain range people person student page apple box egg cookie slice book card marble orange banana pack pencil "
        "bag toy car "
        "bird tree cup boy girl child kid man woman letter guest flower customer friend sandwich glass question rose "
        "candy goal sheep class loaf fruit game pen balloon hole row shell star plant ball window chair seashell "
        "chocolate cow group player stick teacher pizza animal movie potato bar meal cat cupcake bee gift seat wheel "
        "petal stripe puppy baby coin candle bug batch sock corn goat lemon tomato shoe step medium adult tooth "
        "bandage family bill email dog package elf fry vote packet spot story report pet ticket insect crate "
        "bed trip skein picture jelly painting serving instruction stitch line shirt pupil message color carrot "
        "tablespoon teaspoon signature spool meatball chicken face copy sheet cake item truck gun word tube song "
        "passenger crayon order newspaper screw kitten cage penguin app grain case dumpling lion bolt jewel article "
        "roll spoon pineapple block tadpole spider crab peach barrel call medal member tub table test tray sapphire "
        "fairy lap button dish match bead sunflower toothpick telephone flashlight beaker download yogurt video "
        "vehicle notebook ant penny nickel dime quarter senior eraser onion lollipop helicopter pig blueberry cherry "
        "log worker branch "
        "basket patient apartment magazine novel container brownie duck sausage watermelon client sentence pillow "
        "hamster rodent stamp classmate pomegranate recipe plate marshmallow bike snowball kernel train team coach "
        "raspberry melon vine snail muffin snack playlist bottle mirror phone photo portrait cloud plum puzzle device "
        "rabbit hen horse fish point calorie degree game piece hand leg inning night bus employee pair kilometer grape "
        "side edge vertex vertice face triangle square rectangle circle diagonal digit term factor divisor prime "
        "route path handshake committee subset function pear bead "
        "clip sticker seed pill leaf floor doll tile episode strawberry room mark pie donut lego hat turtle jellybean "
        "carton frog soda wall jar bushel gumball brick bracelet follower tire nut scoop snake daisy earring cap nail "
        "ear pepper necklace bone feather house towel text marker token dress mango problem guppy visitor chip parent "
        "decoration firework tin alligator bear chapter jump sweater vegetable cracker pot envelope basketball plank "
        "oyster burger sweet season rat pup biscuit vampire bulb eye mushroom tulip duckling toddler ring lesson "
        "pancake twig crow participant flight bouquet doughnut widget bucket cricket bundle worm pamphlet stair knife "
        "pastry mask troll coat matchstick ride ad pants firecracker lizard pigeon clove hike gnome acorn berry "
        "country street rock paw pin rung tool bunny flavor whale carriage zombie building hamburger elephant bale "
        "individual flyer visit poster monkey omelet straw attendee skirt claw shark coconut treat artwork giraffe "
        "seedling album builder paper tissue site "
        "am pm o'clock clockwise counterclockwise anticlockwise "
        "元 岁 人 名 本 页 棵 支 件 辆 头 条 张 种 次 块 位 天 人次 分 "
    ).split()
)
_MEASURED = frozenset(
    (
        "length width height area volume perimeter radius diameter circumference distance speed velocity acceleration "
        "weight mass age price cost income salary amount probability ratio average mean median mode range angle "
        "temperature pressure force energy power rate long wide tall high deep thick old sum difference product "
        "maximum minimum least greatest smallest largest max min first second third red green blue yellow white black "
        "brown purple pink small large big little new whole full goose mouse die quotient remainder standard deviation "
        "variance rank nullity dimension determinant trace slope intercept numerator denominator centre center period "
        "amplitude frequency radius convergence "
    ).split()
)
_NOUNS = _COUNTED | _MEASURED
_IRREGULAR = {"men": "man", "women": "woman", "children": "child", "people": "person", "feet": "foot", "teeth": "tooth"}
_IRREGULAR |= {"leaves": "leaf", "knives": "knife", "mangoes": "mango"}
_IRREGULAR |= {"geese": "goose", "mice": "mouse", "dice": "die", "vertices": "vertex", "loaves": "loaf"}
UNIT_WORDS = (
    frozenset([*SPELLINGS, "per", "pct", "deg", "sq", *_MEASURED])
    | _COUNTED
    | frozenset(word + "s" for word in _COUNTED)
)
SINGLE_LETTER_UNITS = frozenset("msghLlNJWVKACTFH")
PERCENT_WORDS = frozenset(["percent", "percentage", "pct", "per cent", "%"])
DEGREE_WORDS = frozenset(["degree", "degrees", "deg", "°"])
# Words behind a number that make another number of it.
NUMBER_WORDS = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
NUMBER_WORDS |= {"dozens": 12}
FRACTION_WORDS = {"tenth": 10, "hundredth": 100, "thousandth": 1000, "millionth": 10**6}
FRACTION_WORDS |= {f"{word}s": size for word, size in FRACTION_WORDS.items()}

_PIECE = re.compile(r"\^?\{?-?\d+\}?|[^\W\d_]+(?:['’.][^\W\d_]+)*\.?|[$€£¥¢%°Ω]|[/*]|\S")
_IGNORED = frozenset(".,;:()[]{}~*\"'`-\\$_")
_MEASURES = frozenset("个只本张条名位块棵件辆支")
_ALSO_NOISE = frozenset(["a", "in", "as", "second"])
_ALIASES = {"max": "maximum"}
_POWERS = {"square": 2, "squared": 2, "sq": 2, "cubic": 3, "cubed": 3}


def _singular(word: str) -> str:
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if word.endswith("ies") and len(word) > 4:
        return word[:-1] if word[:-1] in _COUNTED else word[:-3] + "y"  # cookies, cherries
    if word.endswith(("ches", "shes", "sses", "xes", "toes")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") and len(word) > 3 else word


_WINDS = {"N": "north", "S": "south", "E": "east", "W": "west"}
_COMPASS = re.compile(r"\b([NSEW])\.? of ([NSEW])\b")


@lru_cache(maxsize=8192)
def meaning(text: str) -> Meaning:
    """What the words beside a value say.

    >>> meaning("cm^2").size, meaning("km/h").dimension, meaning("the apples").names, meaning("km north").rest
    (Fraction(1, 10000), 'm s^-1', frozenset({'apple'}), ('north',))
    """
    text = _COMPASS.sub(lambda m: f"{_WINDS[m[1]]} of {_WINDS[m[2]]}", text)
    pieces: list[str] = _PIECE.findall(re.sub(r"\\(?:cdot|times)|·", "*", text).replace("\\", " "))
    exponents: dict[str, int] = {}
    size, names, rest = Fraction(1), set[str](), list[str]()
    below, power, i = 1, 1, 0
    while i < len(pieces):
        piece = pieces[i].rstrip(".") or pieces[i]
        i += 1
        word = piece.replace(".", "").lower()
        if word in ("/", "per") and i < len(pieces):
            below = -1
            continue
        if word in _POWERS and i < len(pieces) and _is_unit(pieces[i]):
            power = _POWERS[word]
            continue
        entry = unit_entry(piece) or unit_entry(word)
        following = pieces[i] if i < len(pieces) else ""
        if word in _ALSO_NOISE and (following.isalpha() or (word not in ("in", "second") and len(pieces) > 1)):
            entry = entry if word == "second" and (below < 0 or following in _POWERS) else None
        if entry is not None:
            if i < len(pieces) and (mark := re.fullmatch(r"\^?\{?(-?\d)\}?", pieces[i])):
                power *= int(mark[1])
                i += 1
            elif i < len(pieces) and pieces[i].lower() in ("squared", "cubed"):
                power *= _POWERS[pieces[i].lower()]
                i += 1
            size *= entry[0] ** (power * below)
            for base in entry[1].split():
                name, _, exponent = base.partition("^")
                exponents[name] = exponents.get(name, 0) + int(exponent or 1) * power * below
        elif word != _singular(word) and _singular(word) in _COUNTED and _singular(following.lower()) in _COUNTED:
            rest.append(word)  # "marbles apples" is a choice of two, "chocolate cookies" is one
        elif {word, _singular(word)} & _NOUNS:
            names.add(_ALIASES.get(word, word if word in _MEASURED else _singular(word)))
        elif piece[0] in _MEASURES and len(piece) > 1:  # 个苹果
            names.add(piece[1:])
        elif word in NOISE or piece in _IGNORED:
            pass
        else:
            rest.append(word)
        power = 1
    dimension = " ".join(f"{name}^{n}" if n != 1 else name for name, n in sorted(exponents.items()) if n)
    return Meaning(dimension, size, frozenset(names), tuple(rest))


def _is_unit(piece: str) -> bool:
    return unit_entry(piece.rstrip(".")) is not None


def is_unit(node: Node) -> bool:
    """Whether a word alone names a unit."""
    return node.kind == "text" and bool(meaning(node.args[0]).dimension)


def compatible(left: Meaning, right: Meaning) -> str:
    """Why two texts contradict one another, or "". A unit or noun that one side leaves out does not.

    >>> compatible(meaning("apples"), meaning("pears")), compatible(meaning("cm"), meaning(""))
    ('other words: apple / pear', '')
    """
    if left.rest != right.rest:
        return f"other words: {_words(left.rest)} / {_words(right.rest)}"
    if not (left.names <= right.names or right.names <= left.names):
        return f"other words: {_words(sorted(left.names))} / {_words(sorted(right.names))}"
    for one, other in ((left, right), (right, left)):
        if one.dimension and not one.names and not other.dimension and other.names - _MEASURED:
            return f"other words: {one.dimension} / {_words(sorted(other.names))}"
    if not _same_dimension(left.dimension, right.dimension):
        return f"other units: {left.dimension} / {right.dimension}"
    return ""


# Pairs of base units that one spelling may stand for.
_SPELLED_ALIKE = set(map(frozenset, (("¥", "yuan"), ("¥", "yen"), ("pound sterling", "kg"), ("A s", "celsius"))))


def _same_dimension(left: str, right: str) -> bool:
    if left == right or not left or not right or frozenset((left, right)) in _SPELLED_ALIKE:
        return True
    generic = [dimension.replace("unit", "m") for dimension in (left, right)]
    return "unit" in left + right and generic[0] == generic[1]


def _words(words: tuple[str, ...] | list[str]) -> str:
    return " ".join(words) or "none"


_HEDGE = re.compile(r"\b(?:or|not|possibly|maybe|perhaps|either|otherwise|else)\b")
_ROOT = re.compile(r"(?:is |it is )?(?:the )?(?:(square|cube) )?roots? of|(?:the )?(square|cube) roots?")
_POWER_OF = re.compile(r"(?:is |it is )?(?:the )?(square|cube) of")
_BASE = re.compile(r"(?:in\s+)?\(?(?:in\s+)?base[\s-]+(\w+)\)?|\(?(?:in\s+)?(binary|octal|hexadecimal)\)?")
_BASES = {"binary": 2, "octal": 8, "hexadecimal": 16}


def qualify(node: Node, text: str, letters: bool = False, front: bool = False) -> Node:
    r"""A value with words behind it, or in `front`. `letters`: a short run such as "yd", which may be a product.

    >>> qualify(num(5), "squared").kind, qualify(num(5), "percent").kind, qualify(num(5), "dozen eggs").args[1]
    ('pow', 'percent', 'eggs')
    """
    if node.kind == "unit":
        # With a comma, words in front of a value say nothing of the unit behind it: "squared 4 kg".
        return qualify(node.args[0], f"{text}, {node.args[1]}" if front else f"{node.args[1]} {text}")
    head = text.strip().lower().rstrip(".")
    if _HEDGE.search(head):
        raise ParseError("a second thought behind the answer")
    first, _, rest = head.partition(" ")
    if root := _ROOT.fullmatch(head):
        if not front:
            raise ParseError("a root of something else")
        return Node("root", (node, num(3 if root[1] == "cube" else 2)))
    if front and (power := _POWER_OF.fullmatch(head)):
        return Node("pow", (node, num(3 if power[1] == "cube" else 2)))
    if front and head == "min":  # no minutes
        return Node("unit", (node, "minimum", letters))
    if head == "diag" and node.kind == "tuple":
        size = range(len(node.args[2]))
        rows = tuple(tuple(node.args[2][i] if i == k else num(0) for k in size) for i in size)
        return Node("matrix", (rows,))
    if head in PERCENT_WORDS:
        return Node("percent", (node,))
    if first in DEGREE_WORDS and rest in ("celsius", "fahrenheit", "c", "f"):
        return Node("unit", (node, "celsius" if rest[0] == "c" else "fahrenheit", False))
    if first in DEGREE_WORDS:
        return qualify(Node("degree", (node,)), text.strip()[len(first) :]) if rest else Node("degree", (node,))
    based = _BASE.fullmatch(head)
    if based and node.kind == "num":
        word = based[1] or based[2]
        base = int(word) if word.isdigit() else _BASES.get(word) or number_in_words(word)
        if base is None:
            raise ParseError("an unknown base")
        return with_base(node, base)
    if first in NUMBER_WORDS or first in FRACTION_WORDS:
        factor = Fraction(NUMBER_WORDS.get(first, 1), FRACTION_WORDS.get(first, 1))
        return _rest_of(Node("mul", ((node, num(factor)),)), text, first)
    if first in ("squared", "cubed"):
        return _rest_of(Node("pow", (node, num(2 if first == "squared" else 3))), text, first)
    if first == "factorial":
        return _rest_of(Node("fact", (node,)), text, first)
    return Node("unit", (node, text.strip(), letters))


def add_quantities(large: Node, small: Node) -> Node:
    """3 feet 6 inches as one quantity, where both are of one dimension and the second unit is the smaller."""
    if small.kind != "unit":
        raise ParseError("two numbers side by side")
    above, below = meaning(large.args[1]), meaning(small.args[1])
    if (
        not above.dimension
        or above.dimension != below.dimension
        or above.size <= below.size
        or above.rest
        or below.rest
    ):
        raise ParseError("two quantities side by side")
    part = Node("mul", ((small.args[0], num(below.size / above.size)),))
    return Node("unit", (Node("add", ((large.args[0], part),)), large.args[1], False))


def unit_of_sum(terms: list[Node]) -> Node:
    """The sum of the terms; the unit behind the last of several numbers is that of the whole: 4 + 4\\sqrt3 feet."""
    *others, last = terms
    closed = last.kind == "unit" and not any(symbols(term) or "unit" in kinds(term) for term in others)
    if closed and not symbols(last) and meaning(last.args[1]).dimension and all(map(is_expression, others)):
        return Node("unit", (Node("add", ((*others, last.args[0]),)), *last.args[1:]))
    return Node("add", (tuple(terms),))


def _rest_of(node: Node, text: str, first: str) -> Node:
    rest = text.strip()[len(first) :].strip()
    return qualify(node, rest) if rest else node
