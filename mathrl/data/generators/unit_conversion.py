"""Conversions between units of length, mass, volume, time, area, speed and density, all exact."""

import random
from fractions import Fraction

from mathrl.data.generators.draft import Draft
from mathrl.data.generators.fractions import decimal
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
POWERS = (
    ("square metres", "square centimetres", 10_000), ("square kilometres", "hectares", 100),
    ("hectares", "square metres", 10_000), ("square centimetres", "square millimetres", 100),
    ("cubic metres", "litres", 1000), ("litres", "cubic centimetres", 1000),
    ("cubic centimetres", "cubic millimetres", 1000), ("square decimetres", "square centimetres", 100),
)  # fmt: skip


class UnitConversion(UnitConversionOptions):
    """Level 1: to a smaller unit; 2: to a larger one; 3: mixed units; 4: areas and volumes; 5: rates."""

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
        large, small, factor = rng.choice(POWERS)
        if rng.random() < 0.5:
            value = rng.randint(2, self.largest_number)
            question = f"How many {small} are there in {value} {large}?"
            return Draft(question, str(value * factor), f"{value} * {factor} = {value * factor}", "areas and volumes")
        value = rng.randint(2, 2 * self.largest_number) * factor // 20
        result = decimal(Fraction(value, factor))
        question = f"How many {large} are there in {value} {small}?"
        return Draft(question, result, f"{value} / {factor} = {result}", "areas and volumes")

    def _rate(self, rng: random.Random) -> Draft:
        value = rng.randint(2, self.largest_number)
        return rng.choice((self._to_metres_per_second, self._to_kilometres_per_hour, self._flow, self._density))(
            rng, value
        )

    def _to_metres_per_second(self, rng: random.Random, value: int) -> Draft:
        """`value` is twice the speed in metres per second."""
        speed, result = decimal(Fraction(value * 18, 10)), decimal(Fraction(value, 2))
        question = (
            f"{_mover(rng, value // 2)} travels at {speed} kilometres per hour. How many metres per second is that?"
        )
        return Draft(question, result, f"{speed} * 1000 = {value * 1800}\n{value * 1800} / 3600 = {result}", "speed")

    def _to_kilometres_per_hour(self, rng: random.Random, value: int) -> Draft:
        result = decimal(Fraction(value * 36, 10))
        question = f"{_mover(rng, value)} travels at {value} metres per second. How many kilometres per hour is that?"
        return Draft(question, result, f"{value} * 3600 = {value * 3600}\n{value * 3600} / 1000 = {result}", "speed")

    def _flow(self, rng: random.Random, value: int) -> Draft:
        result = decimal(Fraction(value * 60, 1000))
        what = rng.choice(("pipe", "pump", "spring", "fountain"))
        question = f"A {what} delivers {value} litres of water per minute. How many cubic metres per hour is that?"
        return Draft(question, result, f"{value} * 60 = {value * 60}\n{value * 60} / 1000 = {result}", "flow")

    def _density(self, rng: random.Random, value: int) -> Draft:
        """`value` is 20 times the density in grams per cubic centimetre."""
        density = decimal(Fraction(value, 20))
        light, stone, metal = ("A liquid", "A powder"), ("A rock", "A ceramic"), ("A metal", "An alloy")
        what = rng.choice(light if value < 30 else stone if value < 100 else metal)
        question = (
            f"{what} has a density of {density} grams per cubic centimetre. How many kilograms per cubic metre is that?"
        )
        return Draft(question, str(value * 50), f"{density} * 1000000 / 1000 = {value * 50}", "density")


def _mover(rng: random.Random, metres_per_second: int) -> str:
    """Something that may move at this speed."""
    if metres_per_second < 12:
        return rng.choice(("A cyclist", "A ship", "A horse"))
    if metres_per_second < 60:
        return rng.choice(("A car", "A train", "A falcon"))
    if metres_per_second < 300:
        return rng.choice(("A plane", "A jet", "An airliner"))
    return rng.choice(("A rocket", "A spacecraft", "A satellite"))
