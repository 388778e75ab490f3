"""Counting: products, arrangements, choices, and arrangements with conditions."""

import math
import random
from collections import Counter

from mathrl.generators.draft import Draft
from mathrl.params.generators import CombinatoricsOptions

WORDS = (
    "BANANA PEPPER LEVEL COFFEE BALLOON COMMITTEE LETTER SUMMER KAYAK PUZZLE TOMATO POTATO CACTUS OTTER RABBIT "
    "BUTTER CHEESE NOODLE PADDLE SADDLE MUFFIN WAFFLE CARROT CHERRY BERRY APPLE GRASS GLASS HAMMER LADDER MIRROR "
    "PILLOW YELLOW WINDOW ROOSTER PARROT BEETLE NEEDLE KETTLE BOTTLE CANDLE TUNNEL VALLEY HOLLOW FOLLOW RIVER CANAL "
    "OCEAN DELTA CORAL"
).split()


class Combinatorics(CombinatoricsOptions):
    """Level 1: product rule; 2: ordered choices and pairs; 3: committees; 4: arrangements; 5: conditions, paths."""

    def draw(self, rng: random.Random, level: int) -> Draft | None:
        variants = {
            1: (self._menu, self._code),
            2: (self._medals, self._handshakes),
            3: (self._committee, self._mixed_committee),
            4: (self._letters, self._together),
            5: (self._paths, self._sweets, self._apart),
        }
        return rng.choice(variants[level])(rng)

    def _menu(self, rng: random.Random) -> Draft:
        a, b, c = (rng.randint(2, 3 + self.largest_number) for _ in range(3))
        question = (
            f"A canteen offers {a} starters, {b} main courses and {c} desserts. How many different meals of one "
            "starter, one main course and one dessert are there?"
        )
        return Draft(question, str(a * b * c), f"{a} * {b} * {c} = {a * b * c}", "product rule")

    def _code(self, rng: random.Random) -> Draft:
        symbols, length = rng.randint(3, 3 + self.largest_number), rng.randint(2, 5)
        place = rng.choice(("bicycle lock", "locker", "safe", "suitcase", "garden gate", "diary"))
        question = (
            f"The code of a {place} consists of {length} symbols, each of which is one of {symbols}. A symbol may be "
            "repeated. How many codes are possible?"
        )
        return Draft(question, str(symbols**length), f"{symbols}^{length} = {symbols**length}", "product rule")

    def _medals(self, rng: random.Random) -> Draft:
        n = rng.randint(4, 5 * self.largest_number)
        whom = rng.choice(("runners", "swimmers", "skiers", "rowers", "cyclists", "skaters"))
        ways = n * (n - 1) * (n - 2)
        question = (
            f"{n} {whom} take part in a race. In how many ways can the gold, the silver and the bronze medal be "
            "awarded?"
        )
        return Draft(question, str(ways), f"{n} * {n - 1} * {n - 2} = {ways}", "ordered choices")

    def _handshakes(self, rng: random.Random) -> Draft:
        n = rng.randint(5, 8 * self.largest_number)
        place = rng.choice(("a meeting", "a party", "a conference", "a reception", "a wedding", "a seminar"))
        pairs = n * (n - 1) // 2
        question = (
            f"At {place} of {n} people everyone shakes hands once with everyone else. How many handshakes are there?"
        )
        return Draft(question, str(pairs), f"{n} * {n - 1} / 2 = {pairs}", "pairs")

    def _committee(self, rng: random.Random) -> Draft:
        n = rng.randint(5, 2 * self.largest_number)
        k = rng.randint(2, min(5, n - 2))
        whom, what = rng.choice((("club members", "delegates"), ("pupils", "speakers"), ("players", "substitutes")))
        question = f"In how many ways can {k} {what} be chosen from {n} {whom}?"
        return Draft(question, str(math.comb(n, k)), _choice(n, k), "committees")

    def _mixed_committee(self, rng: random.Random) -> Draft:
        a, b = rng.randint(4, self.largest_number), rng.randint(4, self.largest_number)
        i, j = rng.randint(2, 3), rng.randint(1, 3)
        first, second = math.comb(a, i), math.comb(b, j)
        teachers = f"{j} of its {b} teachers" if j > 1 else f"one of its {b} teachers"
        question = (
            f"A school sends {i} of its {a} best pupils and {teachers} to a competition. In how many ways can the "
            "group be chosen?"
        )
        steps = f"{_choice(a, i)}\n{_choice(b, j)}\n{first} * {second} = {first * second}"
        return Draft(question, str(first * second), steps, "committees")

    def _letters(self, rng: random.Random) -> Draft:
        word = rng.choice(WORDS)
        if rng.random() < 0.5:
            word = "".join(rng.sample(word, rng.randint(4, min(7, len(word)))))
        ways, written = _arrangements(word)
        question = f"In how many different ways can the letters {', '.join(word)} be arranged in a row?"
        return Draft(question, str(ways), f"{written} = {ways}", "arrangements")

    def _together(self, rng: random.Random) -> Draft:
        group = rng.randint(2, 4)
        n = rng.randint(group + 2, 8)
        who, whom = rng.choice((("friends", "cousins"), ("guests", "colleagues"), ("players", "goalkeepers")))
        units, inside = math.factorial(n - group + 1), math.factorial(group)
        question = (
            f"Of {n} {who}, {group} are {whom}. They sit down in a row. In how many orders do all the {whom} sit next "
            "to each other?"
        )
        steps = (
            f"{_product(n - group + 1)} = {units}\n{_product(group)} = {inside}\n{units} * {inside} = {units * inside}"
        )
        return Draft(question, str(units * inside), steps, "arrangements")

    def _paths(self, rng: random.Random) -> Draft:
        right, up = rng.randint(3, self.largest_number), rng.randint(3, self.largest_number)
        x, y = rng.randint(1, right - 1), rng.randint(1, up - 1)
        there, on = math.comb(x + y, x), math.comb(right + up - x - y, right - x)
        question = (
            f"Moving one unit to the right or one unit up at each step, how many paths lead from (0, 0) to ({right}, "
            f"{up}) through the point ({x}, {y})?"
        )
        steps = f"{_choice(x + y, x)}\n{_choice(right + up - x - y, right - x)}\n{there} * {on} = {there * on}"
        return Draft(question, str(there * on), steps, "paths")

    def _sweets(self, rng: random.Random) -> Draft:
        children = rng.randint(3, 5)
        sweets = rng.randint(children + 2, 3 * self.largest_number)
        what = rng.choice(("sweets", "balloons", "coins", "pencils", "tokens"))
        question = (
            f"In how many ways can {sweets} identical {what} be given to {children} children so that every child gets "
            "at least one?"
        )
        return Draft(
            question, str(math.comb(sweets - 1, children - 1)), _choice(sweets - 1, children - 1), "stars and bars"
        )

    def _apart(self, rng: random.Random) -> Draft:
        boys = rng.randint(2, 5)
        girls = rng.randint(2, min(4, boys + 1, 8 - boys))
        first, places = math.factorial(boys), math.perm(boys + 1, girls)
        question = (
            f"In how many orders can {boys} boys and {girls} girls stand in a line so that no two of the girls stand "
            "next to each other?"
        )
        chosen = " * ".join(str(boys + 1 - index) for index in range(girls))
        steps = f"{_product(boys)} = {first}\n{chosen} = {places}\n{first} * {places} = {first * places}"
        return Draft(question, str(first * places), steps, "arrangements")


def _product(n: int) -> str:
    return " * ".join(str(factor) for factor in range(n, 1, -1)) or "1"


def _choice(n: int, k: int) -> str:
    """The equation of a binomial coefficient.

    >>> _choice(5, 2), _choice(5, 4)
    ('5 * 4 / (2 * 1) = 10', '5 / 1 = 5')
    """
    k = min(k, n - k)
    above = " * ".join(str(n - index) for index in range(k))
    below = " * ".join(str(k - index) for index in range(k))
    return f"{above} / {f'({below})' if k > 1 else below} = {math.comb(n, k)}"


def _arrangements(word: str) -> tuple[int, str]:
    repeated = [count for count in Counter(word).values() if count > 1]
    ways = math.factorial(len(word)) // math.prod(math.factorial(count) for count in repeated)
    above = _product(len(word))
    return ways, " / ".join([above, *(f"({_product(count)})" for count in repeated)])
