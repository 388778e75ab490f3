"""The examples in the docstrings of the library are what its functions return."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Beside those that mutants are tried on (tests/algorithms, tests/trainers), and mathrl's own functions (tests/api).
ELSEWHERE = ("algorithms", "api", "learners", "rollout", "trainers")
MODULES = [
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for file in sorted((ROOT / "mathrl").rglob("*.py"))
    if file.relative_to(ROOT / "mathrl").parts[0] not in ELSEWHERE and ">>> " in file.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert tried > 0 and failed == 0
