"""`python tools/release_notes.py 0.2.0`: the section Unreleased of CHANGELOG.md becomes that of a release.

CITATION.cff gets the version. A part of tools/release.sh; it refuses a version that is not above the last, a release
without changes, and one that still has old names whose time is over.
"""

import datetime
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEADING = "## [Unreleased]"
RELEASE = re.compile(r"^## \[(\d+)\.(\d+)\.(\d+)\] - \d{4}-\d{2}-\d{2}$", re.MULTILINE)


def released(text: str, version: str, date: str) -> str:
    """The changelog with its unreleased changes under the version.

    Raises:
        ValueError: the version is not above the last one, or nothing has changed.
    """
    last = max((tuple(map(int, found)) for found in RELEASE.findall(text)), default=(0, 0, 0))
    if tuple(map(int, version.split("."))) <= last:
        raise ValueError(f"CHANGELOG.md has {'.'.join(map(str, last))}: {version} is not above it")
    before, heading, rest = text.partition(f"{HEADING}\n")
    changes = rest.partition("\n## [")[0]
    if not heading or not re.search(r"^- ", changes, re.MULTILINE):
        raise ValueError(f"CHANGELOG.md has no changes under {HEADING}")
    return f"{before}{HEADING}\n\n## [{version}] - {date}\n{rest}"


def overdue(renamed: dict[str, tuple[str, str]], version: str) -> list[str]:
    """The old public names that have worked for a minor version after the release that renamed them.

    >>> overdue({"old": ("new", "0.2.0")}, "0.3.1"), overdue({"old": ("new", "0.2.0")}, "0.4.0")
    ([], ['old'])
    """
    minor = [int(part) for part in version.split(".")[:2]]
    return [
        name for name, (_, since) in renamed.items() if minor > [int(since.split(".")[0]), int(since.split(".")[1]) + 1]
    ]


def main(version: str) -> None:
    import mathrl
    from mathrl.cli.main import MOVED

    for file, renamed in (("__init__.py", mathrl._RENAMED), ("cli/main.py", MOVED)):
        if names := overdue(renamed, version):
            sys.exit(f"error: mathrl/{file}: remove the old names {', '.join(names)}, whose minor version is over")
    file, citation = ROOT / "CHANGELOG.md", ROOT / "CITATION.cff"
    try:
        text = released(file.read_text(encoding="utf-8"), version, datetime.date.today().isoformat())
    except ValueError as error:
        sys.exit(f"error: {error}")
    file.write_text(text, encoding="utf-8")
    cited = re.sub(r"^version: .*$", f"version: {version}", citation.read_text(encoding="utf-8"), flags=re.MULTILINE)
    citation.write_text(cited, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
