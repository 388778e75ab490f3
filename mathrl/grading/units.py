"""Units of measure: stripped from answers, and converted where both sides name one.

House rule: a unit missing on one side is forgiven; two units of one dimension are converted (5 m = 500 cm);
two units that cannot be converted into one another are unequal (5 cm against 5 kg).
"""

from __future__ import annotations

import re
from fractions import Fraction

# dimension -> {spelling: size in the dimension's base unit}
_TABLE: dict[str, dict[str, Fraction]] = {
    "length": {
        "mm millimeter millimeters millimetre millimetres": Fraction(1, 1000),
        "cm centimeter centimeters centimetre centimetres 厘米": Fraction(1, 100),
        "m meter meters metre metres 米": Fraction(1),
        "km kilometer kilometers kilometre kilometres 千米 公里": Fraction(1000),
        "in inch inches": Fraction(254, 10000),
        "ft foot feet": Fraction(3048, 10000),
        "yd yard yards": Fraction(9144, 10000),
        "mi mile miles": Fraction(1609344, 1000),
    },
    "mass": {
        "mg milligram milligrams": Fraction(1, 1000),
        "g gram grams 克": Fraction(1),
        "kg kilogram kilograms kgs 千克": Fraction(1000),
        "lb lbs pound pounds": Fraction(45359237, 100000),
        "oz ounce ounces": Fraction(45359237, 1600000),
    },
    "time": {
        "s sec secs second seconds 秒": Fraction(1),
        "min mins minute minutes 分钟": Fraction(60),
        "h hr hrs hour hours 小时": Fraction(3600),
        "day days 天": Fraction(86400),
        "week weeks": Fraction(604800),
    },
    "volume": {
        "ml milliliter milliliters millilitre millilitres 毫升": Fraction(1, 1000),
        "l liter liters litre litres 升": Fraction(1),
        "gal gallon gallons": Fraction(3785411784, 10**9),
    },
    "money": {"cent cents ¢": Fraction(1, 100), "dollar dollars usd": Fraction(1)},
}
_SIZES: dict[str, tuple[str, Fraction]] = {
    spelling: (dimension, size)
    for dimension, rows in _TABLE.items()
    for spellings, size in rows.items()
    for spelling in spellings.split()
}
_OTHERS = (
    "unit units square cubic sq percent percentage pct degree degrees deg radian radians rad year years yr "
    "yrs month months mph kmh kph km/h m/s hz khz mhz pa kpa atm mol mole moles joule joules kj ev newton "
    "newtons watt watts kw kwh volt volts amp amps ohm ohms euro euros eur yuan rmb rupee rupees peso pesos "
    "yen pound people person students student apples apple oranges books book ways way cups cup bu acre acres "
    "hectare hectares calories points point times pages page pieces items cars balls marbles coins games boys "
    "girls men women children kids total each per sides cards eggs cookies tickets trees dozen o'clock pm am "
    "kelvin celsius fahrenheit integers numbers solutions erg ergs million billion thousand trillion"
).split()
UNIT_WORDS = frozenset(_SIZES) | frozenset(_OTHERS)
SINGLE_LETTER_UNITS = frozenset("msghLl")
_POWER = re.compile(r"(\^\s*\{?\s*([23])\s*\}?)$")
PERCENT_WORDS = frozenset(["percent", "percentage", "pct", "per cent", "%"])
NUMBER_WORDS = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12}
DEGREE_WORDS = frozenset(["degree", "degrees", "deg"])


_RATES = {"mph": "mi/h", "kmh": "km/h", "kph": "km/h", "mps": "m/s"}
_PER = re.compile(r"\s*/\s*|\s+per\s+")
_TIMES = re.compile(r"\s*(?:\\cdot|cdot|\*)\s*")


def scale(unit: str) -> tuple[str, Fraction] | None:
    """The dimension and size of a unit's text, or None when it is not one that converts.

    >>> scale("cm^2"), scale("km/h")
    (('length^2', Fraction(1, 10000)), ('length / time', Fraction(5, 18)))
    """
    text = unit.strip().lower().rstrip(".").removeprefix("per ")
    text = _RATES.get(text, text)
    above, *below = [_product(part) for part in _PER.split(text)]
    if above is None or None in below:
        return None
    dimension, size = above
    for part in below:
        if part is not None:
            dimension, size = f"{dimension} / {part[0]}", size / part[1]
    return dimension, size


def _product(text: str) -> tuple[str, Fraction] | None:
    factors = [_single(part) for part in _TIMES.split(text)]
    size, dimensions = Fraction(1), []
    for factor in factors:
        if factor is None:
            return None
        dimensions.append(factor[0])
        size *= factor[1]
    return " ".join(sorted(dimensions)), size


def _single(text: str) -> tuple[str, Fraction] | None:
    power = 1
    match = _POWER.search(text)
    if match:
        power, text = int(match[2]), text[: match.start()].strip()
    for word, exponent in (("square ", 2), ("sq ", 2), ("sq. ", 2), ("cubic ", 3)):
        if text.startswith(word):
            power, text = exponent, text[len(word) :].strip()
    entry = _SIZES.get(text)
    if entry is None:
        return None
    dimension, size = entry
    return (dimension if power == 1 else f"{dimension}^{power}", size**power)
