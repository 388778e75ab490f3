"""The examples in the docstrings of grading and rewards run; docs/explanation/grading.md says what mathrl does."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import mathrl.grading
import mathrl.rewards
from mathrl.grading import grade

MODULES = [
    f"{room.__name__}{name}"
    for room in (mathrl.grading, mathrl.rewards)
    for name in ["", *(f".{module.name}" for module in pkgutil.iter_modules(room.__path__))]
]
_ROW = re.compile(r"^\| `(?P<response>.+?)` \| `(?P<truth>.+?)` \| (?P<verdict>right|wrong) \|", re.MULTILINE)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_the_page_tells_the_truth() -> None:
    page = (
        (Path(__file__).parents[2] / "docs" / "explanation" / "grading.md")
        .read_text(encoding="utf-8")
        .replace("\\|", "|")
    )
    rows = list(_ROW.finditer(page))
    wrong = [row[0] for row in rows if grade(row["response"], row["truth"]).correct != (row["verdict"] == "right")]
    assert wrong == []
    assert len(rows) >= 40 and {row["verdict"] for row in rows} == {"right", "wrong"}
