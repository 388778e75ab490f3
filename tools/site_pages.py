"""The pages that are generated while the site is built; mkdocs.yml names this file as its hook.

- README.md, CONTRIBUTING.md, CHANGELOG.md, AGENTS.md and llms.txt are pages of the site.
- reference/parameters.md is written from the schema, reference/commands.md from the command line,
  reference/json.md from the types of the documents that commands print with --json.
- A link that leaves docs/ (../params/sweep.yaml) leads to a page of the site that shows that file; a link to
  a folder leads to the README.md in it. So the same link works on the site and beside the files.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from command_reference import command_reference
from json_reference import json_reference
from mkdocs.structure.files import File, Files, InclusionLevel
from parameter_reference import parameter_reference

ROOT = Path(__file__).parents[1]
CELL = re.compile(r"<t([dh])[^>]*>.*?(?=</t\1>)", re.S)
NAME = re.compile(r"(?<=<code>)[^<]+(?=</code>)|(?<=<th>)[^<]+$")
TOP = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "AGENTS.md": "agents.md",
    "llms.txt": "llms.md",
}
LINK = re.compile(r"(\]\()([^)#\s:]+)(#[^)\s]*)?(\))")
SHOWN = "repository"  # the folder of the site with the files of the repository that pages link to


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages and those of the linked files."""
    generated = {
        **{page: as_page((ROOT / name).read_text(encoding="utf-8"), name, page) for name, page in TOP.items()},
        "reference/parameters.md": parameter_reference(),
        "reference/commands.md": command_reference(),
        "reference/json.md": json_reference(),
    }
    pages = dict(generated)
    for file in files.documentation_pages():
        pages[file.src_uri] = Path(file.abs_src_path).read_text(encoding="utf-8")
    outside: set[str] = set()
    while more := {name for page, text in pages.items() for name in linked_outside(page, text)} - outside:
        for name in more:  # a page that is shown may link to further files
            page = f"{SHOWN}/{name}.md"
            generated[page] = shown(ROOT / name, name, page)
            if name.endswith(".md"):
                pages[page] = generated[page]
        outside |= more
    for name, text in generated.items():
        file = File.generated(config, name, content=text)
        file.inclusion = InclusionLevel.NOT_IN_NAV if name.startswith(SHOWN) else InclusionLevel.INCLUDED
        files.append(file)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links that leave docs/, and links to folders, lead to pages of the site."""

    def to_page(match: "re.Match[str]") -> str:
        before, link, anchor, after = match.groups(default="")
        target = resolved(page.file.src_uri, link)
        if target.startswith("../"):
            target = TOP.get(target[3:], f"{SHOWN}/{target[3:]}.md")
        elif (ROOT / "docs" / target).is_dir():
            target += "/README.md"
        else:
            return match.group(0)
        here = posixpath.dirname(page.file.src_uri) or "."
        return before + posixpath.relpath(target, here) + anchor + after

    return LINK.sub(to_page, markdown)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Long names in tables may break after a point, an underscore or a slash, so that they fit on a phone."""

    def name(match: "re.Match[str]") -> str:
        return re.sub(r"([._/=])(?=\w)", r"\1<wbr>", match.group())

    return CELL.sub(lambda cell: NAME.sub(name, cell.group()), output)


def as_page(text: str, name: str, page: str) -> str:
    """A file of the repository as a page: its links start where the file is, a page's where the page is."""

    def moved(match: "re.Match[str]") -> str:
        before, link, anchor, after = match.groups(default="")
        here = posixpath.join("/docs", posixpath.dirname(page))  # "/" is the repository's top, whatever its name
        return before + posixpath.relpath(posixpath.join("/", resolved(name, link)), here) + anchor + after

    return LINK.sub(moved, text)


def linked_outside(page: str, text: str) -> list[str]:
    """The files outside docs/ that a page links to, by their path from the repository's top."""
    targets = [resolved(page, match.group(2)) for match in LINK.finditer(text)]
    return [target[3:] for target in targets if target.startswith("../") and target[3:] not in TOP]


def resolved(page: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def shown(file: Path, name: str, page: str) -> str:
    """A page that shows a file: markdown as itself, anything else as code."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        return as_page(text, name, page)
    return f"# {name}\n\n```{file.suffix[1:]}\n{text}```\n"
