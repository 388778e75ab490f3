"""docs/reference/what_fits.md is what `mathrl plan --fit` would do, and holds against what is known of the cards."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from mathrl.compose.derived import MODELS
from mathrl.models.shapes import KNOWN, known_shape

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("what_fits_tool", ROOT / "tools" / "what_fits.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_up_to_date(tool: ModuleType) -> None:
    page = (ROOT / "docs" / "reference" / "what_fits.md").read_text(encoding="utf-8")
    assert tool.written(page) == page, "run make generate"
    assert page.count("| 0.5B |") == 4 and len(tool.PUBLISHED) >= 10


def test_a_larger_machine_or_less_to_train_never_fits_worse(tool: ModuleType) -> None:
    """In each table micro-batches grow to the right; a critic or all weights instead of adapters need more."""

    def sizes(method: str, adapters: bool) -> list[list[int]]:
        rows = [line.split("|")[2:-1] for line in tool.table(method, adapters)[2:]]
        return [[int(found[1]) if (found := re.match(r"\s*(\d+)k", cell)) else 0 for cell in row] for row in rows]

    tables = {(method, adapters): sizes(method, adapters) for method in tool.METHODS for adapters in (False, True)}
    for table in tables.values():
        assert all(row == sorted(row) for row in table)
    for method in tool.METHODS:
        for full, adapted in zip(tables[method, False], tables[method, True], strict=True):
            assert all(more >= less for more, less in zip(adapted, full, strict=True))
    for critic, alone in zip(tables["PPO", False], tables["GRPO", False], strict=True):
        assert all(more >= less for more, less in zip(alone, critic, strict=True))


def test_what_the_page_says_of_published_runs_holds(tool: ModuleType) -> None:
    for row in tool.PUBLISHED:
        fit = tool.fit_of(row.method, row.adapters, row.model, row.hardware, *row.settings)
        assert (fit is None) == ("cannot" in row.verdict), row
        assert fit is None or bool(fit.host) == (not row.verdict.startswith("agrees")), row


def test_models_are_listed_by_size() -> None:
    assert set(MODELS.values()) <= set(KNOWN)
    parameters = [known_shape(name).parameters for name in MODELS.values()]
    assert parameters == sorted(parameters)
