"""A server for tests of endpoints, and the parameters that they sample with."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mathrl.compose import load_params
from mathrl.params import Params
from tests.rollout.endpoint_server import Server, serving

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serving(tmp_path / "state", monkeypatch) as made:
        yield made


@pytest.fixture(scope="module")
def demo() -> Params:
    return load_params(ROOT / "params", overrides=["prompt.template=boxed"])
