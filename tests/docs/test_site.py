"""The site builds without a broken link, fetches nothing from elsewhere, and its reference is whole."""

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest

from mathrl.params.recipe_steps import Recipe
from mathrl.params.schema import Params
from mathrl.params.section import Section
from mathrl.planning.simulate import Simulation

ROOT = Path(__file__).parents[2]
FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href", "form": "action"}


def build(config: Path, out: Path, folder: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(out)],
        cwd=folder,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)},
        text=True,
        capture_output=True,
        check=False,
        timeout=800,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out, folder = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("clone") / "mathrl"
    folder.mkdir()  # as a clone is called: links were written from the name of the folder of the build
    done = build(ROOT / "mkdocs.yml", out, folder)
    assert done.returncode == 0, done.stderr
    return out


class Fetched(HTMLParser):
    """What a browser loads with a page, and the words outside scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in FETCHED:
            self.addresses.append(dict(attrs).get(FETCHED[tag]) or "")


def test_a_reader_fetches_nothing_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 35
    for page in pages:
        reader = Fetched()
        reader.feed(page.read_text(encoding="utf-8"))
        assert reader.addresses, page
        assert [address for address in reader.addresses if address.startswith(("http:", "https:", "//"))] == [], page
    for style in site.rglob("*.css"):
        assert "url(http" not in style.read_text(encoding="utf-8"), style


def test_links_out_of_docs_lead_to_a_page_with_the_file(site: Path) -> None:
    sweeps = (site / "how_to" / "sweeps.html").read_text(encoding="utf-8")
    assert 'href="../repository/mathrl/compose/presets/demo.yaml.html"' in sweeps
    shown = (site / "repository/mathrl/compose/presets/demo.yaml.html").read_text(encoding="utf-8")
    assert "zero_or_log" in shown
    assert "make demo" in (site / "index.html").read_text(encoding="utf-8")


def test_the_reference_holds_every_section_field_and_command(site: Path) -> None:
    page = (site / "reference" / "parameters.html").read_text(encoding="utf-8").replace("<wbr>", "")
    for name, info in Params.model_fields.items():
        inner: Any = info.annotation
        for field, about in inner.model_fields.items():
            holds = isinstance(about.annotation, type) and issubclass(about.annotation, Section)
            assert f"<code>{info.alias or name}.{field}{'.' if holds else '</code>'}" in page
    commands = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    assert "mathrl sweep promote" in commands and "--prefect-port" in commands


def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    pages = tmp_path / "docs"
    pages.mkdir()
    (pages / "index.md").write_text("# One\n\n[nowhere](missing.md)\n")
    config = tmp_path / "mkdocs.yml"
    config.write_text("site_name: x\ntheme: {name: material, font: false}\n")
    done = build(config, tmp_path / "out")
    assert done.returncode != 0 and "missing.md" in done.stderr


def sections(kind: Any) -> set[type[Section]]:
    """A section and all within it."""
    classes: set[type[Section]] = set()

    def walk(annotation: Any) -> None:
        if isinstance(annotation, type) and issubclass(annotation, Section) and annotation not in classes:
            classes.add(annotation)
            for info in annotation.model_fields.values():
                walk(info.annotation)
        for inner in get_args(annotation):
            walk(inner)

    walk(kind)
    return classes


def test_every_parameter_has_a_description() -> None:
    every = sections(Params) | sections(Recipe) | sections(Simulation)
    assert len(every) > 60
    for section in every:
        assert section.__doc__ and section.__doc__ != Section.__doc__, section
        for name, info in section.model_fields.items():
            described = isinstance(info.annotation, type) and issubclass(info.annotation, Section)
            tag = name in ("generator", "type", "kind", "stage") and get_origin(info.annotation) is not None
            assert info.description or described or tag, f"{section.__name__}.{name} has no description"
