"""The examples in the docstrings of grading and rewards run."""

import doctest
import importlib
import pkgutil

import pytest

import mathrl.grading
import mathrl.rewards

MODULES = [
    f"{room.__name__}{name}"
    for room in (mathrl.grading, mathrl.rewards)
    for name in ["", *(f".{module.name}" for module in pkgutil.iter_modules(room.__path__))]
]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
