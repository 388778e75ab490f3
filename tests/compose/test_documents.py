"""Each value of a preset or recipe that reproduces a document is the document's, or differs for a given reason."""

import copy
import re
from typing import Any

import pytest
from typer.testing import CliRunner

from mathrl.cli.main import app
from tests.docs.test_named import exists
from tests.test_house import ROOT, load_tool

tool = load_tool("document_pages")
DOCUMENTS = tool.documents()
CITED = re.compile(r" at (v[\d.]+ \()?[\da-f]{9}\b|https://|arXiv:\d{4}\.\d{5}v\d")
FORMS = ({"document"}, {"document", "as"}, {"document", "here", "why"})


@pytest.mark.parametrize("name", DOCUMENTS)
def test_each_row_says_where_and_why(name: str) -> None:
    entry = DOCUMENTS[name]
    assert all(CITED.search(source) or source.startswith("a note of ") for source in entry["sources"].values()), name
    used = {row.get("from", next(iter(entry["sources"]))) for row in (*entry["values"].values(), *entry["beside"])}
    assert used == {*entry["sources"]}, f"{name}: sources that rows name, and sources of the entry"
    for key, row in entry["values"].items():
        assert set(row) - {"where", "from"} in FORMS, f"{name}: {key}: {sorted(row)}"
        assert str(row["where"]).strip() and exists(key.rpartition("/")[2]), f"{name}: {key}"
        assert not str(row.get("why", "")).endswith("."), f"{name}: {key}: the page adds the full stop"
    for row in entry.get("beside", ()):
        assert {"what", "document", "here", "where"} <= set(row) <= {"what", "document", "here", "where", "from", "why"}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_each_value_is_the_documents_or_differs_as_stated(name: str) -> None:
    entry = DOCUMENTS[name]
    resolved = tool.resolved(entry)
    for key, row in entry["values"].items():
        value = tool.value_at(resolved, key)
        assert tool.agrees(value, row), f"{name}: {key} is {value}, the table says {tool.expected(row)}"
        if "why" in row:
            assert row["here"] != row["document"], f"{name}: {key} is the document's: drop `here` and `why`"
    assert resolved[""]["run"]["processes"] == entry["hardware"]["gpus"]


def test_another_value_is_noticed() -> None:
    entry = DOCUMENTS["rlinf-1.5b"]
    resolved: dict[str, Any] = copy.deepcopy(tool.resolved(entry))
    row = entry["values"]["rl.optimizer.lr"]
    assert tool.agrees(tool.value_at(resolved, "rl.optimizer.lr"), row)
    resolved[""]["rl"]["optimizer"]["lr"] = 2.1e-5
    assert not tool.agrees(tool.value_at(resolved, "rl.optimizer.lr"), row)
    assert not tool.agrees({"type": "rloo"}, entry["values"]["rl.advantage"])
    with pytest.raises(KeyError, match="there is no lrr"):
        tool.value_at(resolved, "rl.optimizer.lrr")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_page_is_up_to_date(name: str) -> None:
    page = (tool.PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert tool.page(name) == page, "run: python tools/document_pages.py"
    overview = (tool.PAGES / "README.md").read_text(encoding="utf-8")
    assert f"({name}.md)" in overview, f"docs/reference/presets/README.md has no link to {name}.md"
    assert f"presets/{name}.md" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_plan_accepts_it_on_its_hardware(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    entry = DOCUMENTS[name]
    words = ["plan", "--preset", entry["preset"], "--gpu-memory", entry["hardware"]["memory"]]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert f"rl fits {entry['hardware']['memory']}" in result.output
    if name == "gsm8k-ppo-24gb":
        assert CliRunner().invoke(app, [*words[:-1], "4GB"]).exit_code != 0, "four gigabytes do not hold it"
