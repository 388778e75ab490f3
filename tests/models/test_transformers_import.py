"""How transformers is imported: what it asks of installed distributions, and the garbage collector afterwards."""

import gc
import importlib.metadata
import sys

import pytest

from mathrl.core.environment import without_collections
from mathrl.models.transformers_import import Distributions


def test_a_packages_distribution_is_found_with_and_without_the_search_of_all() -> None:
    every, on_request = importlib.metadata.packages_distributions(), Distributions()
    assert type(every) is dict, "Python's own function is back"
    for package in ("numpy", "huggingface_hub", "safetensors", "PIL", "yaml", "flash_attn"):
        names = on_request.get(package, [])
        assert {name.replace("_", "-").lower() for name in names} == {
            name.replace("_", "-").lower() for name in every.get(package, [])
        }, package
    assert [name.lower() for name in on_request.get("PIL")] == ["pillow"]
    assert on_request.get("none_such", []) == []


def test_an_import_pauses_the_collector_and_keeps_what_it_made_out_of_its_sight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gc.unfreeze()
    with without_collections():
        assert not gc.isenabled()
    assert gc.isenabled() and gc.get_freeze_count() == 0, "nothing was imported"
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with without_collections():
        import colorsys  # noqa: F401
    assert gc.isenabled() and gc.get_freeze_count() > 1000
    gc.unfreeze()
