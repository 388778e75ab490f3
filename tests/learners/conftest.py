"""The tiny policy of tests/trainers."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def small() -> Any:
    """The module tests/trainers/small.py: a tiny policy, a reward, and runs with them."""
    file = Path(__file__).parents[1] / "trainers" / "small.py"
    spec = importlib.util.spec_from_file_location("small", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["small"] = module
    spec.loader.exec_module(module)
    return module
