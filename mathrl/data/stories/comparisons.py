"""Comparisons, sharing, parts of a whole, and what changes over time."""

from mathrl.data.stories.structure import Structure, Work

THINGS = {"thing": ("stickers", "marbles", "stamps", "shells", "postcards", "badges")}

COMPARISONS = (
    Structure(
        "more_than", "comparisons",
        "{name} has {a} {thing}, which is {b} more than {friend} has. How many {thing} does {friend} have?",
        {"a": (25, 90), "b": (3, 20)},
        lambda w, a, b: w.sub(a, b),
        "{friend} started collecting {z} years ago.", (2, 6), THINGS,
    ),
    Structure(
        "times_as_many", "comparisons",
        "{name} has {a} {thing}, and {friend} has {b} times as many. How many {thing} do they have together?",
        {"a": (6, 40), "b": (2, 7)},
        lambda w, a, b: w.add(a, w.mul(a, b)),
        "They met {z} years ago.", (2, 6), THINGS,
    ),
    Structure(
        "apples", "comparisons",
        "{name} picks {a} kilograms of apples, and {friend} picks {b} kilograms less. How many kilograms do the two "
        "of them pick?",
        {"a": (20, 80), "b": (3, 15)},
        lambda w, a, b: w.add(a, w.sub(a, b)),
        "The orchard has {z} trees.", (20, 90),
    ),
    Structure(
        "oak", "comparisons",
        "The oak in the park is {a} years old, and the lime tree next to it is {b}. How many years older is the oak?",
        {"a": (90, 240), "b": (20, 85)},
        lambda w, a, b: w.sub(a, b),
        "They stand {z} metres apart.",
    ),
    Structure(
        "grandmother", "comparisons",
        "{name} is {a} years old, and {their} grandmother is {b} times as old. How old will the grandmother be in {c} "
        "years?",
        {"a": (7, 15), "b": (5, 8), "c": (2, 12)},
        lambda w, a, b, c: w.add(w.mul(a, b), c),
        "They live {z} kilometres apart.",
        fits=lambda a, b, c: 54 <= a * b <= 90,
    ),
    Structure(
        "sum_and_difference", "comparisons",
        "{name} and {friend} have {a} {thing} together. {name} has {b} more than {friend}. How many {thing} does "
        "{friend} have?",
        {"a": (30, 120), "b": (4, 26)},
        lambda w, a, b: w.div(w.sub(a, b), 2),
        "They keep them in {z} boxes.", (2, 6), THINGS,
    ),
    Structure(
        "three_collectors", "comparisons",
        "{name} has {a} {thing}. {friend} has twice as many, and {other} has {b} more than {friend}. How many "
        "{thing} do the three of them have?",
        {"a": (10, 45), "b": (3, 20)},
        lambda w, a, b: _three(w, a, b),
        "{They} has collected them for {z} years.", (2, 9), THINGS,
    ),
    Structure(
        "points", "comparisons",
        "{name} scored {a} points in a game, {b} times as many as {friend}. How many points did the two of them score?",
        {"a": (24, 120), "b": (2, 6)},
        lambda w, a, b: w.add(a, w.div(a, b)),
        "The game took {z} minutes.", (20, 90),
    ),
    Structure(
        "ratio", "comparisons",
        "{name} and {friend} divide {a} {thing} in the ratio {b} to {c}. How many does {name} get?",
        {"a": (24, 150), "b": (2, 7), "c": (2, 7)},
        lambda w, a, b, c: w.mul(w.div(a, w.add(b, c)), b),
        "It takes them {z} minutes.", (3, 15), THINGS,
        fits=lambda a, b, c: b != c,
    ),
    Structure(
        "towers", "comparisons",
        "A clock tower is {a} metres high. The church beside it is {b} metres lower, and the town hall is {c} metres "
        "higher than the church. How many metres high is the town hall?",
        {"a": (45, 90), "b": (8, 25), "c": (3, 7)},
        lambda w, a, b, c: w.add(w.sub(a, b), c),
        "It can be seen from {z} kilometres away.", (5, 20),
    ),
    Structure(
        "twice_as_old", "comparisons",
        "{name} is {a} years old, and {their} father is {b}. In how many years will {their} father be exactly twice "
        "as old as {name}?",
        {"a": (5, 18), "b": (28, 50)},
        lambda w, a, b: w.sub(b, w.mul(a, 2)),
        "The family has lived in the same house for {z} years.", (2, 4),
        fits=lambda a, b: b - a >= 20,
    ),
    Structure(
        "sharing", "sharing",
        "{name} shares {a} {thing} equally among {b} children. How many does each child get?",
        {"a": (24, 144), "b": (3, 12)},
        lambda w, a, b: w.div(a, b),
        "The youngest child is {z} years old.", (3, 6), THINGS,
    ),
    Structure(
        "left_over", "sharing",
        "{a} eggs are packed into cartons of {b} until no carton can be filled any more. How many eggs are left over?",
        {"a": (50, 300), "b": (6, 18, 2)},
        lambda w, a, b: w.sub(a, w.mul(b, a // b)),
        "The hens lay {z} eggs a day.", (31, 49),
        fits=lambda a, b: a % b > 0,
    ),
    Structure(
        "theatre", "sharing",
        "A theatre has {a} rows of {b} seats. Tonight {c} seats are taken. How many seats are free?",
        {"a": (12, 30), "b": (14, 32), "c": (80, 400)},
        lambda w, a, b, c: w.sub(w.mul(a, b), c),
        "The play has {z} acts.", (2, 5),
    ),
    Structure(
        "greenhouse", "sharing",
        "A gardener has {a} rows of {b} tomato plants. Each plant bears {c} tomatoes, and {d} tomatoes fit into a "
        "crate. How many crates does he fill?",
        {"a": (4, 15), "b": (6, 20), "c": (8, 24), "d": (24, 60, 4)},
        lambda w, a, b, c, d: w.div(w.mul(w.mul(a, b), c), d),
        "He waters them {z} times a week.", (2, 6),
    ),
    Structure(
        "library", "change",
        "A library has {a} shelves with {b} books each. In spring {c} books are lent out; in summer {d} of them come "
        "back, and {e} new books are bought. How many books does the library hold then?",
        {"a": (12, 40), "b": (25, 60), "c": (60, 200), "d": (20, 55), "e": (10, 80)},
        lambda w, a, b, c, d, e: w.add(w.add(w.sub(w.mul(a, b), c), d), e),
        "It is open {z} hours a week.", (20, 50),
    ),
    Structure(
        "bus_stops", "change",
        "A bus sets out with {a} passengers. At the first stop {b} get off and {c} get on, and at the second stop "
        "{d} get off and {e} get on. How many passengers are on the bus then?",
        {"a": (18, 45), "b": (3, 15), "c": (2, 12), "d": (3, 12), "e": (2, 12)},
        lambda w, a, b, c, d, e: w.add(w.sub(w.add(w.sub(a, b), c), d), e),
        "The driver has worked for {z} years.",
    ),
    Structure(
        "temperature", "change",
        "At sunrise it was {a} degrees. By noon it was {b} degrees warmer, and by the evening the temperature had "
        "dropped by {c} degrees. How many degrees was it in the evening?",
        {"a": (4, 16), "b": (5, 15), "c": (3, 12)},
        lambda w, a, b, c: w.sub(w.add(a, b), c),
        "The wind was blowing at {z} km/h.", (8, 40),
    ),
    Structure(
        "cyclists", "percent",
        "{b} percent of the {a} pupils of a school come by bicycle. How many pupils is that?",
        {"a": (120, 900, 20), "b": (5, 75, 5)},
        lambda w, a, b: w.div(w.mul(a, b), 100),
        "The school has {z} classrooms.", (12, 40),
    ),
    Structure(
        "a_third", "percent",
        "{name} has {a} {thing}. {They} gives a third of them to {friend} and {b} to {other}. How many {thing} does "
        "{they} have left?",
        {"a": (24, 120, 3), "b": (4, 15)},
        lambda w, a, b: w.sub(w.sub(a, w.div(a, 3)), b),
        "{They} keeps them in {z} boxes.", (2, 5), THINGS,
    ),
    Structure(
        "lamps", "percent",
        "A shop has {a} lamps in stock. In the first week it sells {b} percent of them, and in the second week half "
        "of those that remain. How many lamps are left?",
        {"a": (40, 400, 20), "b": (10, 75, 5)},
        lambda w, a, b: w.div(w.sub(a, w.div(w.mul(a, b), 100)), 2),
        "It has {z} employees.", (3, 12),
    ),
    Structure(
        "average_run", "percent",
        "{name} ran {a}, {b} and {c} kilometres on three days. How many kilometres must {they} run on the fourth day "
        "for an average of {d} kilometres a day?",
        {"a": (4, 16), "b": (4, 16), "c": (4, 16), "d": (6, 16)},
        lambda w, a, b, c, d: w.sub(w.mul(d, 4), w.add(w.add(a, b), c)),
        "{Their} shoes are {z} months old.",
        fits=lambda a, b, c, d: len({a, b, c}) == 3 and 3 <= 4 * d - a - b - c <= 25,
    ),
    Structure(
        "test_average", "percent",
        "In three tests {name} got {a}, {b} and {c} points. What is {their} average?",
        {"a": (40, 100), "b": (40, 100), "c": (40, 100)},
        lambda w, a, b, c: w.div(w.add(w.add(a, b), c), 3),
        "Each test took {z} minutes.", (25, 45, 5),
        fits=lambda a, b, c: len({a, b, c}) == 3,
    ),
    Structure(
        "orchard", "percent",
        "An orchard has {a} rows of {b} trees. {c} percent of the trees are pear trees, and the others are apple "
        "trees. Each apple tree yields {d} kilograms. How many kilograms of apples does the orchard yield?",
        {"a": (5, 20), "b": (10, 30, 5), "c": (10, 60, 10), "d": (20, 60)},
        lambda w, a, b, c, d: _apples(w, a, b, c, d),
        "It lies {z} kilometres outside the town.", (2, 15),
    ),
)  # fmt: skip


def _three(w: Work, a: int, b: int) -> int:
    second = w.mul(a, 2)
    third = w.add(second, b)
    return w.add(w.add(a, second), third)


def _apples(w: Work, a: int, b: int, c: int, d: int) -> int:
    trees = w.mul(a, b)
    return w.mul(w.sub(trees, w.div(w.mul(trees, c), 100)), d)
