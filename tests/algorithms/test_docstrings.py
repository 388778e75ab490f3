"""The examples in the docstrings of mathrl.algorithms are what the functions return."""

import doctest
import importlib
import pkgutil

import pytest

import mathrl.algorithms

MODULES = sorted(module.name for module in pkgutil.iter_modules(mathrl.algorithms.__path__))


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    module = importlib.import_module(f"mathrl.algorithms.{name}")
    failed, tried = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert tried > 0 and failed == 0
