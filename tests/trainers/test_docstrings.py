"""The examples in the docstrings of trainers, learners and rollout are what the functions return."""

import doctest
import importlib
import pkgutil

import pytest

import mathrl.learners
import mathrl.rollout
import mathrl.trainers

MODULES = [
    f"{package.__name__}.{module.name}"
    for package in (mathrl.learners, mathrl.rollout, mathrl.trainers)
    for module in pkgutil.iter_modules(package.__path__)
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS).failed == 0
