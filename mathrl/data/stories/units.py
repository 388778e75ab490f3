"""Units of length, mass, volume, time and money, and measures of rooms and gardens."""

from mathrl.data.stories.structure import Structure, Work

UNITS = (
    Structure(
        "eggs", "units",
        "A farm shop sells eggs in boxes of a dozen. How many eggs are in {a} boxes?",
        {"a": (3, 25)},
        lambda w, a: w.mul(a, 12),
        "A box costs {z} dollars.", (3, 6),
    ),
    Structure(
        "ribbon", "units",
        "{name} cuts a ribbon of {a} metres into pieces of {b} centimetres. How many pieces are there?",
        {"a": (2, 18), "b": (10, 80, 5)},
        lambda w, a, b: w.div(w.mul(a, 100), b),
        "The ribbon is {z} millimetres wide.", (5, 25),
    ),
    Structure(
        "loaves", "units",
        "A loaf needs {b} grams of flour. How many loaves can be baked from a sack of {a} kilograms?",
        {"a": (5, 50), "b": (250, 800, 50)},
        lambda w, a, b: w.div(w.mul(a, 1000), b),
        "It stays in the oven for {z} minutes.", (35, 60),
    ),
    Structure(
        "film", "units",
        "A film lasts {a} hours and {b} minutes. How long is the film in minutes?",
        {"a": (2, 4), "b": (5, 55)},
        lambda w, a, b: w.add(w.mul(a, 60), b),
        "A ticket costs {z} dollars.", (8, 16),
    ),
    Structure(
        "runners", "units",
        "After a race {a} runners drink {b} bottles of water each. A bottle holds {c} millilitres. How many litres do "
        "they drink?",
        {"a": (10, 90, 2), "b": (2, 4), "c": (250, 750, 50)},
        lambda w, a, b, c: w.div(w.mul(w.mul(a, b), c), 1000),
        "The fastest of them needed {z} minutes.", (31, 58),
    ),
    Structure(
        "laps", "units",
        "One lap around the park is {a} metres. {name} runs {b} laps a day. How many kilometres does {they} run in {c} "
        "days?",
        {"a": (400, 1500, 50), "b": (2, 8), "c": (5, 30)},
        lambda w, a, b, c: w.div(w.mul(w.mul(a, b), c), 1000),
        "There are {z} benches along the way.",
    ),
    Structure(
        "piggy_bank", "units",
        "{name} empties a piggy bank and finds {a} coins of 20 cents and {b} coins of 50 cents. How many cents are "
        "they worth?",
        {"a": (4, 40), "b": (3, 30)},
        lambda w, a, b: w.add(w.mul(a, 20), w.mul(b, 50)),
        "{They} has had the piggy bank for {z} years.", (2, 8),
    ),
    Structure(
        "lorry", "units",
        "A lorry may carry {a} tonnes. It is loaded with {b} sacks of {c} kilograms each. How many more kilograms "
        "may it take?",
        {"a": (2, 12), "b": (20, 120), "c": (20, 60, 5)},
        lambda w, a, b, c: w.sub(w.mul(a, 1000), w.mul(b, c)),
        "Its driver has {z} kilometres to go.", (50, 400),
    ),
    Structure(
        "stamping", "units",
        "A machine stamps one coin every {a} seconds. How many coins does it stamp in {b} minutes?",
        {"a": (2, 15), "b": (3, 40)},
        lambda w, a, b: w.div(w.mul(b, 60), a),
        "A coin weighs {z} grams.", (4, 9),
    ),
    Structure(
        "piano", "units",
        "{name} practises the piano for {a} minutes every day. How many hours does {they} practise in {b} weeks?",
        {"a": (20, 90, 5), "b": (2, 12)},
        lambda w, a, b: w.div(w.mul(a, w.mul(b, 7)), 60),
        "{Their} teacher lives {z} streets away.", (2, 9),
    ),
    Structure(
        "medicine", "units",
        "A bottle contains {a} millilitres of cough syrup. A patient takes {b} millilitres {c} times a day. For how "
        "many days does the bottle last?",
        {"a": (100, 500, 10), "b": (5, 20, 5), "c": (3, 4)},
        lambda w, a, b, c: w.div(a, w.mul(b, c)),
        "It must be kept below {z} degrees.", (8, 25),
    ),
    Structure(
        "tiles", "measures",
        "A kitchen floor is {a} metres long and {b} metres wide. A square metre takes {c} tiles. How many tiles are "
        "needed?",
        {"a": (3, 9), "b": (2, 6), "c": (4, 25)},
        lambda w, a, b, c: w.mul(w.mul(a, b), c),
        "A tile weighs {z} grams.", (200, 900, 50),
        fits=lambda a, b, c: a > b,
    ),
    Structure(
        "fence", "measures",
        "A rectangular garden is {a} metres long and {b} metres wide. A fence goes all the way around it and costs {c} "
        "dollars a metre. How many dollars does the fence cost?",
        {"a": (12, 60), "b": (6, 40), "c": (8, 35)},
        lambda w, a, b, c: w.mul(w.mul(2, w.add(a, b)), c),
        "{z} fruit trees grow in it.",
        fits=lambda a, b, c: a > b,
    ),
    Structure(
        "lawn", "measures",
        "A lawn is {a} metres by {b} metres. In the middle there is a flower bed of {c} metres by {d} metres. How many "
        "square metres of grass are there to mow?",
        {"a": (12, 50), "b": (8, 30), "c": (2, 7), "d": (2, 6)},
        lambda w, a, b, c, d: w.sub(w.mul(a, b), w.mul(c, d)),
        "The mower is {z} years old.",
        fits=lambda a, b, c, d: a > b and c > d,
    ),
    Structure(
        "paint", "measures",
        "A wall is {a} metres long and {b} metres high. It has {c} windows of {d} square metres each, which are not "
        "painted. A tin of paint is enough for {e} square metres. How many tins does the wall take?",
        {"a": (8, 30), "b": (3, 6), "c": (2, 6), "d": (2, 4), "e": (4, 12)},
        lambda w, a, b, c, d, e: w.div(w.sub(w.mul(a, b), w.mul(c, d)), e),
        "The house was built {z} years ago.",
    ),
    Structure(
        "fish_tank", "measures",
        "A fish tank is {a} centimetres long and {b} centimetres wide. How many litres of water are in it when it is "
        "filled to a depth of {c} centimetres?",
        {"a": (40, 120, 10), "b": (20, 60, 5), "c": (20, 50, 5)},
        lambda w, a, b, c: w.div(w.mul(w.mul(a, b), c), 1000),
        "It will be home to {z} fish.",
    ),
    Structure(
        "avenue", "measures",
        "Trees are planted along one side of a road, one every {b} metres, with a tree at both ends. The road is {a} "
        "metres long. How many trees are there?",
        {"a": (100, 900, 10), "b": (4, 15)},
        lambda w, a, b: w.add(w.div(a, b), 1),
        "They will grow {z} metres tall.", (9, 25),
    ),
    Structure(
        "evening_film", "time",
        "A concert starts at {a}:{b} and ends at {c}:{d}. How many minutes does it last?",
        {"a": (17, 20), "b": (10, 25, 5), "c": (19, 23), "d": (30, 55, 5)},
        lambda w, a, b, c, d: w.add(w.mul(w.sub(c, a), 60), w.sub(d, b)),
        "{z} musicians are on the stage.", (12, 80),
        fits=lambda a, b, c, d: 2 <= c - a <= 4,
    ),
    Structure(
        "homework", "time",
        "{name} spends {a} minutes a day on mathematics, twice as long on history, and {b} minutes less on English "
        "than on history. How many minutes of homework does {they} do in {c} days?",
        {"a": (15, 40, 5), "b": (5, 25, 5), "c": (3, 6)},
        lambda w, a, b, c: _homework(w, a, b, c),
        "There are {z} pupils in {their} class.", (18, 31),
    ),
    Structure(
        "ferry", "time",
        "A ferry crosses a bay in {a} minutes and waits {b} minutes before it goes back. How many minutes pass between "
        "its first departure and the end of its {c}th crossing?",
        {"a": (12, 50), "b": (5, 20), "c": (4, 9)},
        lambda w, a, b, c: w.add(w.mul(c, a), w.mul(w.sub(c, 1), b)),
        "It has room for {z} cars.", (8, 40),
    ),
)  # fmt: skip


def _homework(w: Work, a: int, b: int, c: int) -> int:
    history = w.mul(a, 2)
    return w.mul(w.add(w.add(a, history), w.sub(history, b)), c)
