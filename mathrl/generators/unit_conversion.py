"""Conversions between units of length, mass, volume and time, and areas, volumes and rates in several units; exact."""

import random
from fractions import Fraction

from mathrl.generators.arithmetic import decimal
from mathrl.generators.draft import Draft
from mathrl.params.generators import UnitConversionOptions

# (larger unit, smaller unit, smaller ones in a larger one)
METRIC = (
    ("kilometres", "metres", 1000), ("metres", "centimetres", 100), ("metres", "millimetres", 1000),
    ("centimetres", "millimetres", 10), ("kilograms", "grams", 1000), ("tonnes", "kilograms", 1000),
    ("grams", "milligrams", 1000), ("litres", "millilitres", 1000), ("litres", "centilitres", 100),
    ("hectolitres", "litres", 100),
)  # fmt: skip
MIXED = (
    ("hours", "minutes", 60), ("minutes", "seconds", 60), ("days", "hours", 24), ("weeks", "days", 7),
    ("metres", "centimetres", 100), ("kilograms", "grams", 1000), ("kilometres", "metres", 1000),
    ("feet", "inches", 12), ("pounds", "ounces", 16), ("yards", "feet", 3),
)  # fmt: skip


class UnitConversion(UnitConversionOptions):
    """Level 1: to a smaller unit; 2: to a larger one; 3: mixed units; 4: areas, volumes; 5: rates."""

    def draw(self, rng: random.Random, level: int) -> Draft | None:
        return (self._smaller, self._larger, self._mixed, self._powers, self._rate)[level - 1](rng)

    def _smaller(self, rng: random.Random) -> Draft:
        large, small, factor = rng.choice(METRIC)
        value = rng.randint(2, self.largest_number)
        ask = rng.choice(("Convert {value} {large} to {small}.", "How many {small} are there in {value} {large}?"))
        question = ask.format(value=value, large=large, small=small)
        return Draft(question, str(value * factor), f"{value} * {factor} = {value * factor}", "metric units")

    def _larger(self, rng: random.Random) -> Draft:
        large, small, factor = rng.choice(METRIC)
        value = rng.randint(2, 20 * self.largest_number)
        result = decimal(Fraction(value, factor))
        ask = rng.choice(("Convert {value} {small} to {large}.", "How many {large} are there in {value} {small}?"))
        question = ask.format(value=value, large=large, small=small)
        return Draft(question, result, f"{value} / {factor} = {result}", "metric units")

    def _mixed(self, rng: random.Random) -> Draft:
        large, small, factor = rng.choice(MIXED)
        whole, rest = rng.randint(2, self.largest_number // 4 + 2), rng.randint(2, factor - 1)
        total = whole * factor + rest
        steps = f"{whole} * {factor} = {whole * factor}\n{whole * factor} + {rest} = {total}"
        if rng.random() < 0.5:
            question = f"How many {small} are there in {whole} {large} and {rest} {small}?"
            return Draft(question, str(total), steps, "mixed units")
        back = f"{total} - {rest} = {whole * factor}\n{whole * factor} / {factor} = {whole}"
        question = f"How many full {large} are there in {total} {small}?"
        return Draft(question, str(whole), back, "mixed units")

    def _powers(self, rng: random.Random) -> Draft:
        return rng.choice((self._area, self._tank, self._field))(rng)

    def _area(self, rng: random.Random) -> Draft:
        thing = rng.choice(("board", "plank", "banner", "shelf", "strip of carpet"))
        long, wide = rng.randint(2, 2 + self.largest_number // 20), rng.randint(11, 99)
        question = (
            f"A {thing} is {long} metres long and {wide} centimetres wide. What is its area in square centimetres?"
        )
        steps = f"{long} * 100 = {100 * long}\n{100 * long} * {wide} = {100 * long * wide}"
        return Draft(question, str(100 * long * wide), steps, "areas and volumes")

    def _tank(self, rng: random.Random) -> Draft:
        thing = rng.choice(("tank", "crate", "trough", "chest", "container"))
        longest = 3 + self.largest_number // 15
        a, b, c = (10 * rng.randint(3, longest) for _ in range(3))
        cubic = a * b * c
        question = f"A {thing} measures {a} by {b} by {c} centimetres on the inside. What is its volume in litres?"
        steps = f"{a} * {b} * {c} = {cubic}\n{cubic} / 1000 = {cubic // 1000}"
        return Draft(question, str(cubic // 1000), steps, "areas and volumes")

    def _field(self, rng: random.Random) -> Draft:
        thing = rng.choice(("field", "meadow", "park", "forest", "airfield"))
        long, wide = 10 * rng.randint(12, 12 + self.largest_number), 10 * rng.randint(12, 12 + self.largest_number)
        area, result = long * wide, decimal(Fraction(long * wide, 10_000))
        question = f"A rectangular {thing} is {long} metres long and {wide} metres wide. What is its area in hectares?"
        return Draft(question, result, f"{long} * {wide} = {area}\n{area} / 10000 = {result}", "areas and volumes")

    def _rate(self, rng: random.Random) -> Draft:
        value = rng.randint(2, self.largest_number)
        return rng.choice((self._metres, self._kilometres, self._flow, self._mass))(rng, value)

    def _metres(self, rng: random.Random, value: int) -> Draft:
        """`value` is twice the speed in metres per second."""
        seconds = rng.randint(3, 59)
        speed, per_second = decimal(Fraction(value * 18, 10)), decimal(Fraction(value, 2))
        result = decimal(Fraction(value * seconds, 2))
        question = (
            f"{_mover(rng, value // 2)} travels at {speed} kilometres per hour. How many metres does it travel in "
            f"{seconds} seconds?"
        )
        steps = f"{speed} * 1000 = {value * 1800}\n{value * 1800} / 3600 = {per_second}"
        steps += f"\n{per_second} * {seconds} = {result}"
        return Draft(question, result, steps, "speed")

    def _kilometres(self, rng: random.Random, value: int) -> Draft:
        minutes = rng.randint(3, 59)
        seconds, metres = 60 * minutes, 60 * minutes * value
        result = decimal(Fraction(metres, 1000))
        question = (
            f"{_mover(rng, value)} travels at {value} metres per second. How many kilometres does it travel in "
            f"{minutes} minutes?"
        )
        steps = f"{minutes} * 60 = {seconds}\n{value} * {seconds} = {metres}\n{metres} / 1000 = {result}"
        return Draft(question, result, steps, "speed")

    def _flow(self, rng: random.Random, value: int) -> Draft:
        hours = rng.randint(2, 23)
        minutes, litres = 60 * hours, 60 * hours * value
        result = decimal(Fraction(litres, 1000))
        what = rng.choice(("pipe", "pump", "spring", "fountain"))
        question = (
            f"A {what} delivers {value} litres of water per minute. How many cubic metres does it deliver in {hours} "
            "hours?"
        )
        steps = f"{hours} * 60 = {minutes}\n{value} * {minutes} = {litres}\n{litres} / 1000 = {result}"
        return Draft(question, result, steps, "flow")

    def _mass(self, rng: random.Random, value: int) -> Draft:
        """`value` is 20 times the density in grams per cubic centimetre."""
        density, volume = decimal(Fraction(value, 20)), 20 * rng.randint(3, 99)
        grams, result = value * volume // 20, decimal(Fraction(value * volume, 20_000))
        light, stone, metal = ("a liquid", "a powder"), ("a rock", "a ceramic"), ("a metal", "an alloy")
        what = rng.choice(light if value < 30 else stone if value < 100 else metal)
        question = (
            f"A cubic centimetre of {what} weighs {density} grams. How many kilograms do {volume} cubic centimetres of "
            "it weigh?"
        )
        return Draft(question, result, f"{density} * {volume} = {grams}\n{grams} / 1000 = {result}", "density")


def _mover(rng: random.Random, metres_per_second: int) -> str:
    """Something that may move at this speed."""
    if metres_per_second < 12:
        return rng.choice(("A cyclist", "A ship", "A horse"))
    if metres_per_second < 60:
        return rng.choice(("A car", "A train", "A falcon"))
    if metres_per_second < 300:
        return rng.choice(("A plane", "A jet", "An airliner"))
    return rng.choice(("A rocket", "A spacecraft", "A satellite"))
