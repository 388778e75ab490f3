"""The sentences of word problems. {n} and {m} are the event's numbers; more, less, times, share, groups and
groups_less are what an event does: + n, - n, * m, / m, + n * m, - n * m."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Scene:
    """One kind of quantity."""

    name: str
    starts: tuple[str, ...]
    events: Mapping[str, tuple[str, ...]]
    questions: tuple[str, ...]


_WOMEN = "Amira Beatriz Chen Dana Elif Fatou Grace Hana Ines Julia Keiko Lena Maria Noor Olga Priya".split()
_MEN = "Ahmed Boris Carlos David Emeka Felix Goran Hugo Ivan Jamal Kenji Luca Mateo Nils Omar Pavel".split()
NAMES = (*((name, "she") for name in _WOMEN), *((name, "he") for name in _MEN))
FRIENDS = tuple("Rosa Sami Tariq Uma Viktor Wei Yusuf Zoe Alma Bruno".split())
THINGS = tuple(
    (
        "marbles stickers apples pencils books shells coins buttons cards stamps beads cookies tomatoes bricks "
        "candles plants postcards ribbons walnuts eggs"
    ).split()
)

SCENES = (
    Scene(
        "things",
        ("{name} has {n} {thing}.", "{name} starts the week with {n} {thing}.",
         "On Monday {name} counts {n} {thing}.", "There are {n} {thing} in {name}'s box."),
        {
            "more": ("{They} finds {n} more {thing}.", "{friend} gives {name} {n} {thing}.",
                     "Then {they} buys {n} {thing}."),
            "less": ("{They} gives {n} {thing} to {friend}.", "{n} of the {thing} get lost.",
                     "{They} sells {n} {thing}."),
            "times": ("A year later {they} has {m} times as many {thing}.",
                      "By the summer the number of {thing} has become {m} times as large."),
            "share": ("{They} puts the {thing} into {m} equal boxes and keeps one of the boxes.",
                      "{They} splits the {thing} evenly among {m} people and keeps one part."),
            "groups": ("{They} buys {n} packs of {m} {thing} each.", "{n} friends bring {m} {thing} each."),
            "groups_less": ("{They} gives {n} {thing} to each of {m} neighbours.",
                            "{They} fills {m} bags with {n} {thing} each and sells the bags."),
        },
        ("How many {thing} does {name} have now?", "How many {thing} are there in the end?",
         "Find the number of {thing} that {name} has at the end."),
    ),
    Scene(
        "money",
        ("{name} has {n} dollars.",
         "{name}'s savings are {n} dollars.",
         "{name} opens a stall with {n} dollars."),
        {
            "more": ("{They} earns {n} dollars by helping {friend}.", "An aunt sends {n} dollars."),
            "less": ("{They} spends {n} dollars on lunch.", "{They} lends {friend} {n} dollars."),
            "times": ("After a good month {they} has {m} times as much money.",),
            "share": ("{They} divides the money equally between {m} jars and takes one jar along.",),
            "groups": ("{They} sells {n} {thing} at {m} dollars each.",
                       "{They} works {n} hours for {m} dollars an hour."),
            "groups_less": ("{They} buys {n} tickets at {m} dollars each.",
                            "For {n} weeks {they} pays {m} dollars a week for the bus."),
        },
        ("How many dollars does {name} have now?", "How much money, in dollars, is left for {name}?"),
    ),
    Scene(
        "distance",
        ("{name} has a hike of {n} kilometres planned.", "A cycling route of {name}'s is {n} km long."),
        {
            "more": ("A detour adds {n} kilometres.", "{friend} asks for {n} km more."),
            "less": ("A new bridge makes it {n} km shorter.", "{They} leaves out {n} kilometres."),
            "times": ("{They} decides on a tour {m} times as long.",),
            "share": ("{They} divides it into {m} equal stages and goes one of them.",),
            "groups": ("{They} adds {n} loops of {m} km each.",),
            "groups_less": ("{They} takes the train for {n} sections of {m} km each.",),
        },
        ("How many kilometres does {name} go?", "How long is {name}'s way now, in kilometres?"),
    ),
    Scene(
        "water",
        ("{name} pours {n} litres of water into a tank.",
         "A barrel in {name}'s garden holds {n} litres of water."),
        {
            "more": ("Rain adds {n} litres.", "{friend} pours in {n} litres."),
            "less": ("{n} litres leak out.", "{They} waters the plants with {n} litres."),
            "times": ("A pump makes it {m} times as much.",),
            "share": ("{They} spreads it evenly over {m} cans and takes one can.",),
            "groups": ("{They} fills in {n} buckets of {m} litres each.",),
            "groups_less": ("{They} takes out {n} cans of {m} litres each.",),
        },
        ("How many litres of water are there now?",
         "How much water, in litres, does {name} have in the end?"),
    ),
    Scene(
        "flour",
        ("{name}'s bakery has {n} kilograms of flour.", "{name} begins with {n} kg of flour."),
        {
            "more": ("A delivery brings {n} kg.", "{They} buys {n} kilograms more."),
            "less": ("{n} kg go into bread.", "{friend} borrows {n} kilograms."),
            "times": ("By the holidays the stock is {m} times as large.",),
            "share": ("{They} divides it equally among {m} ovens and looks at one of them.",),
            "groups": ("{n} sacks of {m} kg each arrive.",),
            "groups_less": ("{They} bakes {n} cakes with {m} kg each.",),
        },
        ("How many kilograms of flour are there now?", "How much flour is it in the end, in kilograms?"),
    ),
    Scene(
        "minutes",
        ("{name} wants to practise for {n} minutes.", "{name}'s film is {n} minutes long."),
        {
            "more": ("It gets {n} minutes longer.", "{friend} adds {n} minutes."),
            "less": ("{They} cuts {n} minutes.",),
            "times": ("{They} decides on {m} times that time.",),
            "share": ("{They} divides the time into {m} equal parts and keeps one part.",),
            "groups": ("{They} adds {n} parts of {m} minutes each.",),
            "groups_less": ("{They} takes out {n} parts of {m} minutes each.",),
        },
        ("How many minutes is it now?", "How long is it in the end, in minutes?"),
    ),
)  # fmt: skip
