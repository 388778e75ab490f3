"""docs/explanation/grading.md says what mathrl does."""

import re
from pathlib import Path

from mathrl.grading import grade

_ROW = re.compile(r"^\| `(?P<response>.+?)` \| `(?P<truth>.+?)` \| (?P<verdict>right|wrong) \|", re.MULTILINE)


def test_the_page_tells_the_truth() -> None:
    page = (
        (Path(__file__).parents[2] / "docs" / "explanation" / "grading.md")
        .read_text(encoding="utf-8")
        .replace("\\|", "|")
    )
    rows = list(_ROW.finditer(page))
    wrong = [row[0] for row in rows if grade(row["response"], row["truth"]).correct != (row["verdict"] == "right")]
    assert wrong == []
    assert len(rows) >= 40 and {row["verdict"] for row in rows} == {"right", "wrong"}
