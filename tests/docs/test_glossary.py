"""docs/reference/glossary.md defines the terms that help texts rely on, and each of its terms is in use."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from mathrl.params.schema import Params
from mathrl.params.section import Section

ROOT = Path(__file__).parents[2]
ENTRY = re.compile(r"^- \*\*([^*]+)\*\*: (.+)$", re.M)
# The field's own words in help texts: whoever writes one of these means what the glossary says.
TERMS = (
    *("advantage", "benchmark", "checkpoint", "critic", "epoch", "greedy", "group", "log-prob", "micro-batch"),
    *(
        "mini-batch",
        "mixture",
        "optimizer step",
        "pass rate",
        "pass@k",
        "policy",
        "prompt",
        "rank",
        "ratio",
        "reference",
    ),
    *("response", "reward", "rollout", "seed", "split", "trial", "weight sync", "zero-variance group"),
)


def entries() -> dict[str, str]:
    return dict(ENTRY.findall((ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")))


def descriptions(section: type[Section], seen: set[type[Section]]) -> Iterator[str]:
    if section in seen:
        return
    seen.add(section)
    for info in section.model_fields.values():
        yield info.description or ""
        for inner in sections(info.annotation):
            yield from descriptions(inner, seen)


def sections(kind: Any) -> list[type[Section]]:
    if isinstance(kind, type) and issubclass(kind, Section):
        return [kind]
    return [section for inner in get_args(kind) for section in sections(inner)]


def test_terms_are_alphabetical_and_short() -> None:
    terms = list(entries())
    assert terms == sorted(terms, key=str.lower) and len(terms) >= 40
    assert all(len(text) <= 200 and text.endswith(".") for text in entries().values())


def test_the_terms_of_help_texts_are_defined() -> None:
    text = " ".join(descriptions(Params, set())).lower()
    for term in TERMS:
        assert term in entries(), term
        assert term in text, f"{term}: no help text says it any more"
