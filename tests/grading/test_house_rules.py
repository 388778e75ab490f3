"""docs/grading.md, example by example: where graders disagree, this is what mathrl does."""

import re
from pathlib import Path

import pytest

from mathrl.grading import grade

PAGE = Path(__file__).parents[2] / "docs" / "grading.md"
_ROW = re.compile(r"^\| `(?P<response>.+?)` \| `(?P<truth>.+?)` \| (?P<verdict>right|wrong) \|", re.MULTILINE)


def rows() -> list[tuple[str, str, bool]]:
    text = PAGE.read_text(encoding="utf-8").replace("\\|", "|")
    return [(m["response"], m["truth"], m["verdict"] == "right") for m in _ROW.finditer(text)]


@pytest.mark.parametrize(("response", "truth", "right"), rows())
def test_the_page_tells_the_truth(response: str, truth: str, right: bool) -> None:
    verdict = grade(response, truth)
    assert verdict.correct == right, verdict


def test_the_page_has_both_kinds() -> None:
    found = rows()
    assert len(found) >= 40
    assert {right for _, _, right in found} == {True, False}
