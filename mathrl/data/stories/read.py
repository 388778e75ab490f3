"""The structures of word problems, read from the YAML files of this folder."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from mathrl.data.stories.structure import Structure
from mathrl.params.load import read_yaml, validated

ENGLISH = ("rates", "units", "trade", "comparisons")
TRANSLATIONS = ("de", "fr", "es")


@cache
def structures() -> tuple[Structure, ...]:
    """The English structures in the order of their files, then the translated ones.

    Raises:
        UserError: an entry is no structure, or translates none.
    """
    rows = {name: row for file in ENGLISH for name, row in _read(file).items()}
    english = [_structure(name, row, "en") for name, row in rows.items()]
    translated = []
    for language in TRANSLATIONS:
        texts = _read(language)
        translated += [_structure(name, {**rows[name], **texts[name]}, language) for name in rows if name in texts]
    return (*english, *translated)


def _read(file: str) -> Mapping[str, Mapping[str, Any]]:
    return read_yaml(Path(__file__).with_name(f"{file}.yaml"))


def _structure(name: str, row: Mapping[str, Any], language: str) -> Structure:
    return validated(Structure, {"name": name, "language": language, **row}, f"structure {name} ({language})")


@cache
def by_steps() -> Mapping[int, tuple[Structure, ...]]:
    """The structures of each number of steps."""
    steps = [structure.steps() for structure in structures()]
    return {
        level: tuple(structure for structure, length in zip(structures(), steps, strict=True) if length == level)
        for level in sorted(set(steps))
    }
