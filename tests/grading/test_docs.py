"""The examples in the docstrings run."""

import doctest
import importlib
import pkgutil

import pytest

import mathrl.rewards

MODULES = [module.name for module in pkgutil.iter_modules(mathrl.rewards.__path__)]


@pytest.mark.parametrize("name", ["", *MODULES])
def test_docstring_examples(name: str) -> None:
    module = importlib.import_module(f"mathrl.rewards.{name}" if name else "mathrl.rewards")
    result = doctest.testmod(module)
    assert result.failed == 0
