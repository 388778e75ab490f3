"""The size and base units of each spelling of a unit. Sizes: NIST SP 811 (2008), appendix B."""

from __future__ import annotations

from fractions import Fraction

# Spellings -> size and base units. Prefixes are written out below.
_METRIC = {
    "m meter metre": (Fraction(1), "m"),
    "g gram gm": (Fraction(1, 1000), "kg"),
    "s sec second": (Fraction(1), "s"),
    "l L liter litre": (Fraction(1, 1000), "m^3"),
    "N newton": (Fraction(1), "kg m s^-2"),
    "J joule": (Fraction(1), "kg m^2 s^-2"),
    "W watt": (Fraction(1), "kg m^2 s^-3"),
    "Pa pascal": (Fraction(1), "kg m^-1 s^-2"),
    "Hz hertz": (Fraction(1), "s^-1"),
    "A amp ampere": (Fraction(1), "A"),
    "V volt": (Fraction(1), "kg m^2 s^-3 A^-1"),
    "ohm Ω": (Fraction(1), "kg m^2 s^-3 A^-2"),
    "C coulomb": (Fraction(1), "A s"),
    "T tesla": (Fraction(1), "kg s^-2 A^-1"),
    "F farad": (Fraction(1), "kg^-1 m^-2 s^4 A^2"),
    "H henry": (Fraction(1), "kg m^2 s^-2 A^-2"),
    "mol mole": (Fraction(1), "mol"),
    "eV": (Fraction(1602176634, 10**28), "kg m^2 s^-2"),
    "byte": (Fraction(1), "byte"),
    "cal calorie": (Fraction(1), "calorie"),
}
_PREFIXES = {
    "k kilo": Fraction(1000),
    "M mega": Fraction(10**6),
    "G giga": Fraction(10**9),
    "c centi": Fraction(1, 100),
    "m milli": Fraction(1, 1000),
    "d deci": Fraction(1, 10),
    "μ u micro": Fraction(1, 10**6),
    "n nano": Fraction(1, 10**9),
}
_OTHER_UNITS = {
    "in inch inches": (Fraction(254, 10000), "m"),
    "ft foot feet": (Fraction(3048, 10000), "m"),
    "yd yard yards": (Fraction(9144, 10000), "m"),
    "mi mile miles": (Fraction(1609344, 1000), "m"),
    "lb lbs pound pounds": (Fraction(45359237, 10**8), "kg"),
    "oz ounce ounces": (Fraction(45359237, 16 * 10**8), "kg"),
    "ton tons tonne tonnes": (Fraction(1000), "kg"),
    "min mins minute minutes 分钟": (Fraction(60), "s"),
    "h hr hrs hour hours 小时 时": (Fraction(3600), "s"),
    "day days 天": (Fraction(86400), "s"),
    "week weeks": (Fraction(604800), "s"),
    "month months": (Fraction(1), "month"),
    "year years yr yrs": (Fraction(12), "month"),
    "gal gallon gallons": (Fraction(3785411784, 10**12), "m^3"),
    "quart quarts qt": (Fraction(946352946, 10**12), "m^3"),
    "pint pints pt": (Fraction(473176473, 10**12), "m^3"),
    "acre acres": (Fraction(40468564224, 10**7), "m^2"),
    "hectare hectares ha": (Fraction(10000), "m^2"),
    "mph": (Fraction(1609344, 3600000), "m s^-1"),
    "mpg": (Fraction(1609344, 1000) / Fraction(3785411784, 10**12), "m^-2"),
    "kmh kph": (Fraction(5, 18), "m s^-1"),
    "angstrom angstroms": (Fraction(1, 10**10), "m"),
    "mps": (Fraction(1), "m s^-1"),
    "atm": (Fraction(101325), "kg m^-1 s^-2"),
    "erg ergs": (Fraction(1, 10**7), "kg m^2 s^-2"),
    "torr mmhg": (Fraction(101325, 760), "kg m^-1 s^-2"),
    "psi": (Fraction(6894757, 1000), "kg m^-1 s^-2"),
    "rpm": (Fraction(1, 60), "s^-1"),
    "hp horsepower": (Fraction(7457, 10), "kg m^2 s^-3"),
    "btu btus": (Fraction(105506, 100), "kg m^2 s^-2"),
    "bit bits": (Fraction(1, 8), "byte"),
    "amu": (Fraction(166053907, 10**35), "kg"),
    "fm": (Fraction(1, 10**15), "m"),
    "ly": (Fraction(9460730472580800), "m"),
    "decibel decibels db": (Fraction(1), "decibel"),
    "kelvin K": (Fraction(1), "kelvin"),
    "celsius": (Fraction(1), "celsius"),
    "fahrenheit": (Fraction(1), "fahrenheit"),
    "rad radian radians": (Fraction(1), "rad"),
    "cent cents ¢": (Fraction(1, 100), "dollar"),
    "dollar dollars usd $ us$": (Fraction(1), "dollar"),
    "euro euros eur €": (Fraction(1), "euro"),
    "£ gbp quid": (Fraction(1), "pound sterling"),
    "pence": (Fraction(1, 100), "pound sterling"),
    "yuan rmb cny 元": (Fraction(1), "yuan"),
    "yen jpy": (Fraction(1), "yen"),
    "¥": (Fraction(1), "¥"),
    "rupee rupees inr rs ₹": (Fraction(1), "rupee"),
    "peso pesos": (Fraction(1), "peso"),
    "米": (Fraction(1), "m"),
    "厘米": (Fraction(1, 100), "m"),
    "分米": (Fraction(1, 10), "m"),
    "毫米": (Fraction(1, 1000), "m"),
    "千米 公里": (Fraction(1000), "m"),
    "平方米": (Fraction(1), "m^2"),
    "平方厘米": (Fraction(1, 10**4), "m^2"),
    "平方分米": (Fraction(1, 100), "m^2"),
    "平方千米 平方公里": (Fraction(10**6), "m^2"),
    "立方米": (Fraction(1), "m^3"),
    "立方厘米": (Fraction(1, 10**6), "m^3"),
    "立方分米": (Fraction(1, 1000), "m^3"),
    "克": (Fraction(1, 1000), "kg"),
    "千克 公斤": (Fraction(1), "kg"),
    "吨": (Fraction(1000), "kg"),
    "秒": (Fraction(1), "s"),
    "分钟": (Fraction(60), "s"),
    "小时": (Fraction(3600), "s"),
    "升": (Fraction(1, 1000), "m^3"),
    "毫升": (Fraction(1, 10**6), "m^3"),
    "unit units": (Fraction(1), "unit"),
}


def _sizes() -> dict[str, tuple[Fraction, str]]:
    sizes: dict[str, tuple[Fraction, str]] = {}
    for spellings, (size, base) in _METRIC.items():
        for prefix, factor in {"": Fraction(1), **_PREFIXES}.items():
            short, long = prefix.split()[:-1] or [""], prefix.split()[-1] if prefix else ""
            for spelling in spellings.split():
                if len(spelling) > 2 and spelling not in ("mol", "cal"):
                    for plural in ("", "s"):
                        sizes[long + spelling + plural] = (size * factor, base)
                if len(spelling) <= 3:
                    for mark in short:
                        sizes.setdefault(mark + spelling, (size * factor, base))
    sizes |= {"sec": (Fraction(1), "s"), "secs": (Fraction(1), "s"), "kgs": (Fraction(1), "kg"), "ohms": sizes["ohm"]}
    sizes |= {"kWh": (Fraction(3600000), "kg m^2 s^-2"), "cc": (Fraction(1, 10**6), "m^3")}
    for spellings, entry in _OTHER_UNITS.items():
        sizes |= dict.fromkeys(spellings.split(), entry)
    return sizes


_SIZES = _sizes()
# Without capitals too, but for farad and henry: gh and mf are products.
SPELLINGS = {word.lower(): entry for word, entry in reversed(_SIZES.items()) if word.isascii() and word[-1] not in "FH"}
SPELLINGS |= {spelling: entry for spelling, entry in _SIZES.items() if spelling.islower()}


def unit_entry(word: str) -> tuple[Fraction, str] | None:
    """The size and base units of a unit's spelling, with its capitals (mW, MW) or without them (KG)."""
    return _SIZES.get(word) or SPELLINGS.get(word.lower())
