"""Whether Prefect generated a flow run's name, and not a person.

Its server makes one of two words of the package coolname, such as spotted-hare; the form in the browser one of a
Greek letter, a place and perhaps a word, such as kappa2-ledos-void, whose places are listed in the page's script.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

import prefect
from coolname.data import config

GREEK = (
    "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|omicron|pi|rho|sigma|tau|upsilon|phi|"
    "chi|psi|omega"
)
PLACES = re.compile(r"`(andromedae\.[a-z.-]+)`")


def was_generated(name: str) -> bool:
    """
    >>> was_generated("spotted-hare"), was_generated("lower-lr"), was_generated("baseline-rerun")
    (True, False, False)
    """
    first, _, rest = name.partition("-")
    if first in _words("adj_any") and rest in _words("subj"):
        return True
    star = re.fullmatch(rf"(?:{GREEK})\d*-(.+)", name)
    return star is not None and bool(_places() & {star[1], star[1].rpartition("-")[0]})


@cache
def _words(kind: str) -> frozenset[str]:
    """The words of one of coolname's lists, which may consist of others."""
    rule: Any = config[kind]
    return frozenset(rule.get("words", ())).union(*map(_words, rule.get("lists", ())))


@cache
def _places() -> frozenset[str]:
    """What Prefect's form names runs after; empty if its pages are not installed."""
    scripts = (file.read_text(encoding="utf-8") for file in Path(prefect.__ui_static_path__).glob("assets/index-*.js"))
    lists = (match[1].split(".") for text in scripts if (match := PLACES.search(text)))
    return frozenset(place for places in lists for place in places if place)
