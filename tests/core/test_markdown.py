"""Text of data in Markdown stays text: whatever a row says, no renderer makes an image, a link or a script of it."""

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import markdown
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from mathrl.core.markdown import cell, code, code_block, table
from mathrl.corpus import account as pages_account
from mathrl.curation import curation, curation_account
from mathrl.curation.quality import DESCRIPTIONS
from mathrl.params.data import Curate
from mathrl.reports import html
from mathrl.reports.pictures import examples_markdown, side_by_side
from mathrl.sweeps.report import markdown as trials_markdown
from mathrl.tasks import report as artifacts
from mathrl.tasks.graph import Graph
from mathrl.tracking.lineage import Step

HOSTILE = [
    "<img src=x onerror=alert(1)>", "<script>alert(1)</script>", "<a href=http://x>", "<!--", "-->", "<http://x>",
    "<div>", "</td>", "<?php", "<![CDATA[", "![](http://x/p.png)", "![", "](http://x)", "[a](javascript:alert(1))",
    "[a]", "[a]: http://x", "[", "]", "(", "`", "``", "```", "```text", "~~~", "~~", "|", "\\", "\n", "\n\n", "\r",
    "\t", "    ", "> ", "# ", "- ", "1. ", "*", "**", "_", "$x_1$", "http://x.example/y", "www.x.example", "a@b.c.de",
    "&lt;img&gt;", "&#60;", "&", "<", ">", "{: onclick=x}", "{", "}", "\x00", "\x02wzxhzdk:0\x03", "\u2028", "\u00a0",
    "!", ":", "é", "1 < 2", "plain words",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(HOSTILE), min_size=1, max_size=8).map("".join)
STRUCTURE = {
    "h1", "h2", "h3", "p", "ul", "ol", "li", "table", "thead", "tbody", "tr", "th", "td", "pre", "code", "blockquote",
    "strong", "em", "br", "hr", "img",
}  # fmt: skip
OWN = {("class", "language-text"), ("src", "levels.png"), ("alt", "levels")}  # what the reports themselves bring
COMMONMARK = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
APART = MarkdownIt("commonmark").enable("table").disable("text_join")  # entities stay apart from the text beside them


class Elements(HTMLParser):
    """Every element of a page with its attributes, and the text of each cell and code span."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, set[tuple[str, str | None]]]] = []
        self.texts: dict[str, list[str]] = {"td": [], "code": [], "h2": []}
        self.within: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, set(attributes)))
        if tag in self.texts:
            self.texts[tag].append("")
            self.within.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.within:
            self.within.remove(tag)

    def handle_data(self, text: str) -> None:
        for tag in self.within:
            self.texts[tag][-1] += text

    def handle_comment(self, data: str) -> None:
        self.elements.append(("comment", set()))

    def handle_decl(self, decl: str) -> None:
        self.elements.append(("declaration", set()))

    def handle_pi(self, data: str) -> None:
        self.elements.append(("instruction", set()))


def rendered(text: str, cut: bool = False) -> Iterator[Elements]:
    """The text by two renderers; the second knows no block of code without an end, as where the text was cut."""
    yield Elements(COMMONMARK.render(text))
    if not cut:
        yield Elements(markdown.markdown(text, extensions=["tables", "fenced_code", "attr_list"]))


def check(text: str, cut: bool = False) -> None:
    """No element and no address of `text` comes from data."""
    for page in rendered(text, cut):
        for tag, attributes in page.elements:
            assert tag in STRUCTURE and attributes <= OWN, f"{tag} {attributes} in\n{text}"
            assert tag != "img" or ("src", "levels.png") in attributes
    for token in APART.parse(text):  # GFM makes links of bare addresses outside code
        for child in token.children or ():
            bare = child.type == "text" and re.search(r"https?://|www\.|\w@\w+\.\w", child.content)
            assert not bare, f"{bare} in\n{text}"


def words(text: str) -> str:
    return " ".join(re.sub(r"[\x00-\x08\x0e-\x1b\x7f]", "\ufffd", text).split())


@example("x", "<\x02wzxhzdk:0\x03<img src=x onerror=alert(1)>")
@given(TEXTS, TEXTS)
def test_a_cell_a_span_and_a_block_show_the_text_and_nothing_else(one: str, other: str) -> None:
    rows = table([one, "b"], [[one, other], [other, "end"]])
    lines = [f"## {cell(one)}", "", *rows, "", f"- {code(one)} and {code(other)} ({cell(one)})", ""]
    lines += [f"  > {code(other, 300)}", "", code_block(one), "", f"**{cell(other)}** end", "", "last"]
    text = "\n".join(lines)
    check(text)
    page = next(rendered(text))
    assert [words(shown) for shown in page.texts["td"]] == [words(one), words(other), words(other), "end"]
    spans = [shown for shown in (words(one), words(other), words(other[:300])) if shown]
    assert [words(shown) for shown in page.texts["code"]] == [*spans, words(one)]
    assert ("p", set()) == page.elements[-1], "what follows is a paragraph"


def test_a_deliberately_open_text_is_noticed() -> None:
    for text in HOSTILE[:3] + HOSTILE[10:11] + ["[a](javascript:alert(1))", "{: onclick=x}"]:
        with pytest.raises(AssertionError):
            check(f"- {text}\n\n# a {text}\n\n{text}\n")
    with pytest.raises(AssertionError):
        check("see http://x.example/y")


def planted(number: int) -> str:
    """Hostile texts that begin with another one each time, so that every row differs."""
    return "\n".join(HOSTILE[number % len(HOSTILE) :] + HOSTILE[: number % len(HOSTILE)]).replace("\x00", "")


def test_the_curation_report(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"id": f"{n} {planted(n)[:200]}", "question": f"What is {n}+{n}? {planted(n)}", "answer": f"{planted(n)}",
         "solution": planted(n), "level": n % 3, "by": planted(n)}
        for n in range(len(HOSTILE))
    ]  # fmt: skip
    rows += [{**row, "id": f"copy of {row['id']}"} for row in rows[:5]]
    rows += [{**row, "id": f"other answer {row['id']}", "answer": "7"} for row in rows[5:8]]
    rows += [{"id": "wrong |<img src=x>", "question": planted(3), "answer": None}, {"id": "none", "answer": planted(1)}]
    rows += [{"id": f"proof {n}", "question": f"Prove that {n} < {n + 1}. {planted(n)}", "answer": "1"} for n in (1, 2)]
    rows += [{"id": "kept", "question": "How far is it?", "answer": "3"}]
    file = tmp_path / "a <img src=x onerror=alert(1)>|`.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    test = tmp_path / "test.jsonl"
    test.write_text("".join(json.dumps({**row, "id": f"t{row['id']}"}) + "\n" for row in rows[10:14]))
    fields = {"type": "file", "id_key": "id"}
    sources = [
        {**fields, "name": "rl", "path": str(file), "split": "rl", "licence": planted(2)},
        {**fields, "name": "test", "path": str(test), "split": "test"},
    ]
    params = Curate.model_validate(
        {"sources": sources, "quality": {"drop": list(DESCRIPTIONS)[:1]}, "decontaminate": {}, "on_bad_row": "reject",
         "deduplicate": {"near": {}}}
    )  # fmt: skip
    planned = curation.plan(params)
    found = curation.run(params, 0, planned)
    curation_account.write_report(tmp_path / "report", found, params, 0)
    text = (tmp_path / "report" / "report.md").read_text()
    check(text)
    for part in ("## Dropped: duplicate", "## Dropped: conflicting answers", "### ", "## Bad rows", "onerror"):
        assert part in text, f"{part} is missing: the property was not asked of it\n{text}"


def test_the_examples_of_an_evaluation() -> None:
    responses = [
        {"problem_id": f"{n} {planted(n)}", "model": model, "question": planted(n), "answers": [planted(n + 1)],
         "correct": True, "response": planted(n + 2)}
        for n in range(len(HOSTILE)) for model in ("sft", "<img src=x>")
    ]  # fmt: skip
    rows = side_by_side(responses, ["sft", "<img src=x>"], len(HOSTILE), seed=0)
    text = examples_markdown(rows, ["sft", "<img src=x>"], planted(0))
    check(text)
    assert text.count("onerror") > len(HOSTILE)


def test_an_artifact_that_is_cut_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a code span would be HTML: the text is cut between lines."""
    lines = [f"- {code(planted(0))} and {code(planted(1))}", "", code_block(planted(2)), "", f"> {code(planted(3))}"]
    text = "\n".join(lines).replace("\r", "")
    (tmp_path / "reports" / "curate").mkdir(parents=True)
    (tmp_path / "reports" / "curate" / "report.md").write_text(text, newline="")
    (tmp_path / "dvc.yaml").write_text("stages: {curate: {cmd: python -m mathrl.stages.curate}}", newline="")
    shown: list[str] = []
    monkeypatch.setattr(artifacts, "create_markdown_artifact", lambda text, **_: shown.append(text))
    for most in range(1, len(text) + 10, 7):
        monkeypatch.setattr(artifacts, "LONGEST_TEXT", most)
        artifacts.report_step(Graph(tmp_path), "curate")
        check(shown[-1], cut=True)
        assert len(shown[-1]) <= most
    assert shown[-1] == text


def test_cards_trials_health_and_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = planted(0)
    finding = {"colour": "red", "rule": bad, "first": 1, "last": 2, "evidence": bad, "cause": bad, "remedy": bad}
    check(artifacts.health_markdown({"colour": "red", "steps": 3, "findings": [finding, finding]}))
    trial = {"trial": 1, "state": "failed", "dev": None, f"rl.{bad}": bad, "seconds": 1.0, "error": bad}
    check(trials_markdown({"study": bad, "trials": [trial]}))
    step = Step("run", bad, "abc", False, {"prompt.template": bad}, {}, {bad: "1"}, {bad: "2"})
    monkeypatch.setattr(html, "lineage", lambda _: ([step], [], bad))
    model = {"name": bad, "pass": "0.5 [0.4, 0.6]", bad: bad}
    monkeypatch.setattr(html, "results_table", lambda _: [model])
    summary = SimpleNamespace(verdict=bad, benchmark=bad, models={})
    material: Any = SimpleNamespace(summary=summary, trained=[])
    check(html.model_card(f"{bad} version 3", "mathrl-chain:3", "0123", material))
    page = SimpleNamespace(host=f"{bad}.example", path=bad, text=bad)
    out: Any = SimpleNamespace(scores=np.zeros(1), rounds=[SimpleNamespace(collected=[0])], best=0)
    check("\n".join(pages_account._boundary(out, [page])))  # type: ignore[arg-type]
