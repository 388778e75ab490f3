"""A corpus for the flow `pages`: `python benchmarks/pages_corpus.py FOLDER MATH_TRAIN.jsonl.gz`.

The mathematical pages are MATH's worked solutions, the other pages are prose of this machine (licences and
documentation under /usr/share and site-packages). Hosts are invented: one per subject, some with only prose, and
three with both. Most mathematics has paths under /maths. There are few seeds, twenty solutions of two subjects, so
that the first round knows little of the others.
Writes FOLDER/{pages,positives,negatives}.jsonl; none of it is committed.
"""

import argparse
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mathrl.core.files import read_jsonl, write_jsonl

SEEDED = ("Prealgebra", "Counting & Probability")
SEEDS, NEGATIVES, PROSE = 20, 1000, 12_000
PAGE = 900  # characters of a page of prose
MIXED = {"notes.example": 0.5, "forum.example": 0.2, "news.example": 0.02}  # their share of mathematics
PROSE_HOSTS = [f"prose{n}.example" for n in range(20)]


def prose() -> Iterator[str]:
    """Pages of prose in a fixed order, each of about `PAGE` characters."""
    packages = Path(sys.prefix) / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    wanted = re.compile(r"(LICEN[CS]E|NOTICE|README|METADATA|copyright|.*\.(md|rst|txt))", re.IGNORECASE)
    for root in (Path("/usr/share"), packages):
        for file in sorted(root.rglob("*")):
            if wanted.fullmatch(file.name) and file.is_file() and not file.is_symlink():
                try:
                    text = file.read_text(encoding="utf-8")[:60_000]
                except (UnicodeDecodeError, OSError):
                    continue
                paragraphs = re.split(r"\n\s*\n", text)
                page = ""
                for paragraph in paragraphs:
                    page += paragraph.strip() + "\n\n"
                    if len(page) >= PAGE:
                        yield page.strip()[: 3 * PAGE]
                        page = ""


def build(folder: Path, math_train: Path, mathematics: int | None, prose_pages: int, seed: int = 0) -> dict[str, int]:
    """Write the three files and return their numbers of rows; `mathematics` is None: all worked solutions."""
    rng = random.Random(seed)
    texts = sorted(set(prose()))
    rng.shuffle(texts)
    problems = list(read_jsonl(math_train))
    rng.shuffle(problems)
    seeds = [p["solution"] for p in problems if p["subject"] in SEEDED][:SEEDS]
    rows: list[dict[str, Any]] = []
    for problem in [p for p in problems if p["solution"] not in seeds][:mathematics]:
        host = problem["subject"].lower().replace(" & ", "-and-").replace(" ", "-") + ".example"
        if rng.random() < 0.15:
            host = rng.choices(list(MIXED), list(MIXED.values()))[0]
        path = "maths" if rng.random() < 0.9 else "all"
        rows.append({"text": problem["solution"], "host": host, "path": path, "math": True})
    negatives, pages = texts[:NEGATIVES], texts[NEGATIVES : NEGATIVES + prose_pages]
    for text in pages:
        host = rng.choice(list(MIXED)) if rng.random() < 0.15 else rng.choice(PROSE_HOSTS)
        path = "all" if rng.random() < 0.95 else "maths"
        rows.append({"text": text, "host": host, "path": path, "math": False})
    rng.shuffle(rows)
    return {
        "pages": write_jsonl(
            folder / "pages.jsonl",
            (
                {"text": r["text"], "url": f"https://{r['host']}/{r['path']}/{i}", "math": r["math"]}
                for i, r in enumerate(rows)
            ),
        ),
        "positives": write_jsonl(folder / "positives.jsonl", ({"text": text} for text in seeds)),
        "negatives": write_jsonl(folder / "negatives.jsonl", ({"text": text} for text in negatives)),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("math_train", type=Path)
    parser.add_argument("--mathematics", type=int, help="Number of mathematical pages; all by default.")
    parser.add_argument("--prose", type=int, default=PROSE, help="Number of other pages.")
    given = parser.parse_args()
    print(build(given.folder, given.math_train, given.mathematics, given.prose))
