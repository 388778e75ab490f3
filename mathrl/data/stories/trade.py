"""Money: shopping, selling, wages, prices in percent."""

from mathrl.data.stories.structure import Structure

TRADE = (
    Structure(
        "change", "money",
        "{name} buys {a} {thing} at {b} dollars each and pays with a {c}-dollar note. How many dollars does {they} get "
        "back?",
        {"a": (3, 12), "b": (2, 12), "c": (50, 100, 50)},
        lambda w, a, b, c: w.sub(c, w.mul(a, b)),
        "{They} waits in line for {z} minutes.", (3, 15),
        {"thing": ("notebooks", "light bulbs", "flower pots", "paintbrushes")},
    ),
    Structure(
        "tickets", "money",
        "A family buys {a} adult tickets at {b} dollars and {c} child tickets at {d} dollars. How many dollars do the "
        "tickets cost altogether?",
        {"a": (2, 5), "b": (11, 30), "c": (2, 6), "d": (4, 10)},
        lambda w, a, b, c, d: w.add(w.mul(a, b), w.mul(c, d)),
        "The show lasts {z} minutes.", (60, 150, 5),
    ),
    Structure(
        "sale", "money",
        "A {thing} costs {a} dollars. In the summer sale its price is cut by {b} percent. What does it cost then, in "
        "dollars?",
        {"a": (40, 400, 10), "b": (10, 60, 5)},
        lambda w, a, b: w.sub(a, w.div(w.mul(a, b), 100)),
        "The shop is open {z} hours a day.", (8, 12),
        {"thing": ("jacket", "tent", "suitcase", "bookshelf")},
    ),
    Structure(
        "saving", "money",
        "{name} wants to buy a {thing} for {a} dollars. {They} has already saved {b} dollars and puts aside {c} "
        "dollars every week. In how many weeks will {they} have enough?",
        {"a": (120, 900, 10), "b": (20, 100, 5), "c": (10, 40, 5)},
        lambda w, a, b, c: w.div(w.sub(a, b), c),
        "The shop is {z} minutes away by bus.", (5, 30),
        {"thing": ("bicycle", "guitar", "camera", "telescope")},
    ),
    Structure(
        "stall", "money",
        "{name} buys {a} {thing} for {b} dollars each and sells all of them for {c} dollars each. {They} pays {d} "
        "dollars for the stall. What is {their} profit in dollars?",
        {"a": (20, 80), "b": (2, 10), "c": (6, 20), "d": (15, 60, 5)},
        lambda w, a, b, c, d: w.sub(w.mul(a, w.sub(c, b)), d),
        "The market opens {z} days a month.", (2, 8),
        {"thing": ("scarves", "lamps", "wooden toys", "baskets")},
        fits=lambda a, b, c, d: c - b > 1,
    ),
    Structure(
        "bill", "money",
        "{a} friends share a restaurant bill equally. The food costs {b} dollars and the drinks {c} dollars. How many "
        "dollars does each of them pay?",
        {"a": (3, 8), "b": (60, 200), "c": (18, 70)},
        lambda w, a, b, c: w.div(w.add(b, c), a),
        "They have known each other for {z} years.",
    ),
    Structure(
        "batteries", "money",
        "Batteries come in packs of {a}, and a pack costs {b} dollars. How many dollars do {c} batteries cost?",
        {"a": (4, 12, 2), "b": (3, 11), "c": (16, 96, 4)},
        lambda w, a, b, c: w.mul(w.div(c, a), b),
        "They keep for {z} years.", (3, 10),
        fits=lambda a, b, c: c > a,
    ),
    Structure(
        "household", "money",
        "{name} earns {a} dollars a month. {They} pays {b} dollars for rent and spends {c} dollars on everything "
        "else. How many dollars can {they} save in a year?",
        {"a": (1800, 4200, 50), "b": (600, 1400, 50), "c": (500, 1300, 50)},
        lambda w, a, b, c: w.mul(w.sub(w.sub(a, b), c), 12),
        "{Their} flat has {z} square metres.", (30, 80),
    ),
    Structure(
        "museum", "money",
        "A school takes {a} pupils and {b} teachers to a museum. A pupil pays {c} dollars and a teacher {d} dollars, "
        "and the group gets {e} dollars off. How many dollars does the visit cost?",
        {"a": (18, 60), "b": (2, 6), "c": (4, 9), "d": (10, 18), "e": (10, 50, 5)},
        lambda w, a, b, c, d, e: w.sub(w.add(w.mul(a, c), w.mul(b, d)), e),
        "The bus ride takes {z} minutes.", (20, 90, 5),
    ),
    Structure(
        "bake_sale", "money",
        "A class sells {a} cakes at {b} dollars and {c} cups of juice at {d} dollars. The ingredients cost {e} "
        "dollars. What is left is shared equally between {f} charities. How many dollars does each charity get?",
        {"a": (10, 40), "b": (6, 15), "c": (20, 90), "d": (2, 3), "e": (20, 80, 5), "f": (2, 5)},
        lambda w, a, b, c, d, e, f: w.div(w.sub(w.add(w.mul(a, b), w.mul(c, d)), e), f),
        "There are {z} pupils in the class.", (18, 31),
    ),
    Structure(
        "two_shops", "money",
        "One shop sells pens in packs of {a} for {b} dollars, another in packs of {c} for {d} dollars. {name} needs "
        "{e} pens. How many dollars does {they} save by buying them all in the second shop?",
        {"a": (4, 6), "b": (6, 12), "c": (8, 12), "d": (9, 15), "e": (24, 120, 12)},
        lambda w, a, b, c, d, e: w.sub(w.mul(w.div(e, a), b), w.mul(w.div(e, c), d)),
        "The shops are {z} metres apart.", (50, 400, 50),
    ),
    Structure(
        "nuts", "money",
        "A grocer mixes {a} kilograms of hazelnuts at {b} dollars a kilogram with {c} kilograms of almonds at {d} "
        "dollars a kilogram. What is a kilogram of the mixture worth, in dollars?",
        {"a": (2, 20), "b": (6, 14), "c": (2, 20), "d": (8, 20)},
        lambda w, a, b, c, d: w.div(w.add(w.mul(a, b), w.mul(c, d)), w.add(a, c)),
        "He fills it into bags of {z} grams.", (100, 500, 50),
        fits=lambda a, b, c, d: b != d,
    ),
    Structure(
        "courier", "money",
        "A courier delivers {a} parcels every morning and {b} every afternoon and is paid {c} dollars for each. She "
        "spends {d} dollars a day on petrol. How many dollars does she have left after {e} days?",
        {"a": (10, 40), "b": (10, 40), "c": (2, 4), "d": (15, 30), "e": (4, 22)},
        lambda w, a, b, c, d, e: w.mul(w.sub(w.mul(w.add(a, b), c), d), e),
        "Her van can carry {z} parcels.", (60, 150, 10),
    ),
    Structure(
        "raise", "money",
        "{name} earns {a} dollars a month and gets a raise of {b} percent. How many dollars more is that in a year?",
        {"a": (1500, 4800, 100), "b": (2, 12)},
        lambda w, a, b: w.mul(w.div(w.mul(a, b), 100), 12),
        "{They} has worked there for {z} years.",
    ),
    Structure(
        "concert_hall", "money",
        "Of the {a} people at a concert, {b} percent are students, who get in free. Everybody else pays {c} dollars. "
        "How many dollars does the concert take in?",
        {"a": (100, 900, 20), "b": (5, 45, 5), "c": (8, 30)},
        lambda w, a, b, c: w.mul(w.sub(a, w.div(w.mul(a, b), 100)), c),
        "The band plays {z} songs.", (9, 25),
    ),
    Structure(
        "price_each", "money",
        "{name} pays {a} dollars for {b} identical {thing}. How many dollars does one of them cost?",
        {"a": (12, 180), "b": (3, 15)},
        lambda w, a, b: w.div(a, b),
        "{They} carries them home in {z} bags.", (2, 3),
        {"thing": ("plates", "chairs", "towels", "mugs")},
    ),
)  # fmt: skip
