"""Rates: speed, work, flow, pay."""

from mathrl.data.stories.structure import Structure, Work

RATES = (
    Structure(
        "rolls", "rates",
        "A baker shapes {a} rolls an hour. How many rolls are ready for the oven after {b} hours?",
        {"a": (24, 96, 4), "b": (2, 9)},
        lambda w, a, b: w.mul(a, b),
        "The bakery opened {z} years ago.",
    ),
    Structure(
        "evenings", "rates",
        "{name} is reading a novel of {a} pages. If {they} reads {b} pages every evening, how many evenings will it "
        "take?",
        {"a": (120, 480, 4), "b": (8, 40)},
        lambda w, a, b: w.div(a, b),
        "The novel has {z} chapters.",
    ),
    Structure(
        "train_speed", "rates",
        "A train covers {a} kilometres in {b} hours at a steady speed. What is its speed in kilometres per hour?",
        {"a": (150, 900, 10), "b": (2, 6)},
        lambda w, a, b: w.div(a, b),
        "It has {z} carriages.", (5, 14),
        fits=lambda a, b: 60 <= a / b <= 240,
    ),
    Structure(
        "tap", "rates",
        "A tap fills a barrel of {a} litres in {b} minutes. How many litres does the tap deliver in {c} minutes?",
        {"a": (40, 240, 4), "b": (4, 20), "c": (3, 45)},
        lambda w, a, b, c: w.mul(w.div(a, b), c),
        "The barrel stands {z} metres from the house.",
        fits=lambda a, b, c: b != c,
    ),
    Structure(
        "two_printers", "rates",
        "One printer prints {a} pages a minute and another prints {b} pages a minute. How many pages do the two "
        "printers produce together in {c} minutes?",
        {"a": (12, 40), "b": (12, 40), "c": (3, 30)},
        lambda w, a, b, c: w.mul(w.add(a, b), c),
        "They share a room with {z} desks.",
        fits=lambda a, b, c: a != b,
    ),
    Structure(
        "leaking_tank", "rates",
        "A tank holds {a} litres of water. Every minute {b} litres flow in and {c} litres leak out. How many litres "
        "are in the tank after {d} minutes?",
        {"a": (20, 200, 5), "b": (9, 30), "c": (2, 8), "d": (4, 30)},
        lambda w, a, b, c, d: w.add(a, w.mul(w.sub(b, c), d)),
        "It stands on legs {z} metres high.", (2, 5),
    ),
    Structure(
        "meeting", "rates",
        "Two cyclists set out at the same time from towns {a} kilometres apart and ride towards each other. One rides "
        "at {b} km/h, the other at {c} km/h. After how many hours do they meet?",
        {"a": (60, 240, 5), "b": (14, 30), "c": (14, 30)},
        lambda w, a, b, c: w.div(a, w.add(b, c)),
        "Each of them carries {z} spare tubes.", (2, 4),
    ),
    Structure(
        "catching_up", "rates",
        "{name} sets off on foot at {a} metres per minute. {d} minutes later {friend} starts from the same place and "
        "runs after {them} at {b} metres per minute. How many minutes does {friend} need to catch up?",
        {"a": (60, 90, 5), "b": (120, 200, 5), "d": (3, 20)},
        lambda w, a, b, d: w.div(w.mul(a, d), w.sub(b, a)),
        "{Their} rucksack weighs {z} kilograms.", (3, 9),
    ),
    Structure(
        "painters", "rates",
        "{a} painters need {b} days to paint a school. How many days would {c} painters need at the same pace?",
        {"a": (3, 12), "b": (4, 20), "c": (2, 15)},
        lambda w, a, b, c: w.div(w.mul(a, b), c),
        "The school has {z} classrooms.", (9, 30),
        fits=lambda a, b, c: a != c and a * b // c > 1,
    ),
    Structure(
        "typists", "rates",
        "{name} types {a} words a minute, {friend} types {b}. How many more words than {friend} does {name} type in "
        "{c} minutes?",
        {"a": (45, 90), "b": (30, 70), "c": (5, 40)},
        lambda w, a, b, c: w.mul(w.sub(a, b), c),
        "They have worked together for {z} years.",
        fits=lambda a, b, c: a - b > 1,
    ),
    Structure(
        "overtime", "rates",
        "{name} earns {a} dollars an hour for the first {b} hours of a week and {c} dollars for every hour after that. "
        "How many dollars does {they} earn in a week of {d} hours?",
        {"a": (12, 30), "b": (35, 40), "c": (20, 45), "d": (41, 55)},
        lambda w, a, b, c, d: w.add(w.mul(a, b), w.mul(c, w.sub(d, b))),
        "{They} has {z} days of holiday a year.", (20, 30),
        fits=lambda a, b, c, d: c > a,
    ),
    Structure(
        "average_speed", "rates",
        "A coach drives for {a} hours at {b} km/h and then for {c} hours at {d} km/h. What is its average speed over "
        "the whole trip, in km/h?",
        {"a": (2, 6), "b": (50, 110, 5), "c": (2, 6), "d": (50, 110, 5)},
        lambda w, a, b, c, d: w.div(w.add(w.mul(a, b), w.mul(c, d)), w.add(a, c)),
        "It has seats for {z} passengers.", (40, 60),
        fits=lambda a, b, c, d: b != d,
    ),
    Structure(
        "petrol", "rates",
        "A car uses {a} litres of petrol per 100 kilometres. Petrol costs {b} dollars a litre. What does the petrol "
        "for a trip of {c} kilometres cost, in dollars?",
        {"a": (5, 11), "b": (2, 3), "c": (200, 1500, 100)},
        lambda w, a, b, c: w.mul(w.mul(w.div(c, 100), a), b),
        "The car is {z} years old.", (2, 15),
    ),
    Structure(
        "masons", "rates",
        "A mason lays {a} bricks an hour, and her apprentice lays {b} fewer. How many bricks do the two of them lay in "
        "{c} hours?",
        {"a": (50, 90), "b": (5, 30), "c": (3, 8)},
        lambda w, a, b, c: w.mul(w.add(a, w.sub(a, b)), c),
        "The wall will be {z} metres long.", (10, 40),
    ),
    Structure(
        "two_pumps", "rates",
        "A swimming pool holds {a} litres and already contains {b} litres. Two pumps are switched on; one delivers {c} "
        "litres a minute, the other {d}. After how many minutes is the pool full?",
        {"a": (6000, 30000, 500), "b": (500, 5000, 100), "c": (40, 120, 10), "d": (40, 120, 10)},
        lambda w, a, b, c, d: w.div(w.sub(a, b), w.add(c, d)),
        "It is {z} metres long.", (8, 25),
        fits=lambda a, b, c, d: c != d,
    ),
    Structure(
        "faulty_parts", "rates",
        "A factory runs {a} machines. Each machine makes {b} parts an hour for {c} hours a day, and {d} percent of the "
        "parts are faulty. How many good parts does the factory make in a day?",
        {"a": (3, 12), "b": (20, 120, 5), "c": (6, 16), "d": (2, 10)},
        lambda w, a, b, c, d: _without_percent(w, w.mul(w.mul(a, b), c), d),
        "It employs {z} people.", (40, 200, 5),
    ),
    Structure(
        "dairy", "rates",
        "A farmer has {a} cows, and each gives {b} litres of milk a day. The family keeps {c} litres a day and sells "
        "the rest for {d} dollars a litre. How many dollars does the milk bring in {e} days?",
        {"a": (6, 30), "b": (15, 28), "c": (3, 12), "d": (2, 3), "e": (5, 14)},
        lambda w, a, b, c, d, e: w.mul(w.mul(w.sub(w.mul(a, b), c), d), e),
        "The youngest cow is {z} months old.", (10, 30),
    ),
)  # fmt: skip


def _without_percent(w: Work, total: int, percent: int) -> int:
    return w.sub(total, w.div(w.mul(total, percent), 100))
