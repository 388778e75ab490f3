"""The site's page of parameters, from the pydantic schema (mathrl/params)."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from mathrl.compose.experiment import Composition
from mathrl.compose.load import read_layers
from mathrl.params.recipe_steps import Recipe
from mathrl.params.schema import READS, Params
from mathrl.params.section import Section
from mathrl.planning.simulate import Simulation

NONE = Path("no/params")
DATA = Composition({"data": "gsm8k"})  # problems and mixture have no defaults
HEAD = ["| parameter | |", "|---|---|"]
INTRODUCTION = """# Parameters

Every parameter, written from the schema while this site is built. Defaults are the schema's, for pretrained models of
0.5 to 7 billion parameters; what data decide (`curate`, `mix`, lengths) is shown as `data=gsm8k` has it. A project's
`params/<section>.yaml` has what it changes, and may be missing. `mathrl run STAGE --set section.field=value` goes over
all; [experiments](../how_to/experiments.md) says who wins. The value is YAML: `null` is empty, `[a, b]` a list,
`{a: 1}` a mapping; `--set 'section.field+=[a]'` appends to a list. What does not fit is refused before anything runs.
"""
TAGS = ("generator", "type", "kind", "stage")
WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    Any: "any value",
    NoneType: "empty",
}


def parameter_reference() -> str:
    """The page's markdown."""
    params = read_layers(NONE, None, None, DATA).stated_params()
    used: dict[type[Section], list[str]] = {}
    lines = [INTRODUCTION]
    for name, info in Params.model_fields.items():
        section = info.alias or name
        value = getattr(params, name)
        stages = [f"`{stage}`" for stage, reads in READS.items() if section in reads]
        readers = f"Read by {', '.join(stages)}." if stages else "Read by `mathrl sweep`."
        file = f"`params/{section}.yaml`"
        about = " ".join(f"{type(value).__doc__}".split())
        lines += [f"## {section}", "", f"{about} {readers} File: {file}.", "", *HEAD]
        lines += [*_rows(section, type(value), value, used), ""]
    lines += ["## Parts of sections", "", "What lists, choices and fields that are empty by default take.", ""]
    lines += _parts(used)
    for title, top, where in (
        ("Recipes", Recipe, "`params/recipes/NAME.yaml`, run by `mathrl recipe NAME`."),
        ("Simulations", Simulation, "`mathrl/planning/simulations/NAME.yaml`, run by `mathrl plan --simulate NAME`."),
    ):
        used = {}
        lines += [f"## {title}", "", where, "", *HEAD, *_rows("", top, None, used), "", *_parts(used)]
    return "\n".join(lines)


def _parts(used: dict[type[Section], list[str]]) -> list[str]:
    """A table for each section that has no values of its own to show; such sections may hold others."""
    lines: list[str] = []
    done: set[type[Section]] = set()
    while rest := [part for part in used if part not in done]:
        part = rest[0]
        done.add(part)
        table = [*_rows("", part, None, used)]
        tag = next((f"`{name}: {value}`" for name, value in _tags(part)), "")
        title = f"### {part.__name__}" + (f" ({tag}) {{#{part.__name__.lower()}}}" if tag else "")
        places = list(dict.fromkeys(used[part]))
        where = f"Of {', '.join(f'`{place}`' for place in places)}."
        about = (part.__doc__ or "").split("\n\n")[0]
        lines += [title, "", f"{about} {where}".replace("\n", " "), "", *(HEAD if table else ()), *table, ""]
    return lines


def _rows(path: str, section: type[Section], value: Any, used: dict[type[Section], list[str]]) -> Iterator[str]:
    """A row a field; of a section that has a value the fields too; others are noted in `used`."""
    for name, info in section.model_fields.items():
        key = f"{path}.{name}" if path else name
        inner = _sections(info.annotation)
        if name in TAGS and get_origin(info.annotation) is Literal and len(get_args(info.annotation)) == 1:
            continue
        default = getattr(value, name) if value is not None else info.get_default(call_default_factory=True)
        plain = len(inner) == 1 and info.annotation is inner[0]
        if plain and isinstance(default, Section):
            yield from _rows(key, inner[0], default, used)
            continue
        for each in inner:
            used.setdefault(each, []).append(key if path else f"{section.__name__}.{name}")
        about = (info.description or (inner[0].__doc__ if inner else "") or "").replace("|", "\\|").replace("<", "&lt;")
        yield f"| `{key}` | {about}<br><small>{_takes(info)}; {_default(default)}</small> |"
        if isinstance(default, Section):
            yield from _rows(key, type(default), default, used)


def _tags(section: type[Section]) -> Iterator[tuple[str, str]]:
    for name in TAGS:
        info = section.model_fields.get(name)
        if info is not None and get_origin(info.annotation) is Literal and len(get_args(info.annotation)) == 1:
            yield name, get_args(info.annotation)[0]


def _sections(kind: Any) -> list[type[Section]]:
    if isinstance(kind, type) and issubclass(kind, Section):
        return [kind]
    return [each for inner in get_args(kind) for each in _sections(inner)]


def _takes(info: FieldInfo) -> str:
    bounds = [text for bound in info.metadata if (text := _bound(bound))]
    return ", ".join([_kind(info.annotation), *bounds])


def _bound(bound: Any) -> str:
    for name, text in (
        ("ge", "at least {}"),
        ("gt", "above {}"),
        ("le", "at most {}"),
        ("lt", "below {}"),
        ("pattern", "as `{}`"),
    ):
        given = getattr(bound, name, None)
        if given is not None:
            return text.format(given)
    least = getattr(bound, "min_length", None)
    return f"{least} or more" if least and least > 1 else "not empty" if least else ""


def _kind(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _kind(inner[0])
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_kind(each) for each in inner))
    if origin is tuple:
        if inner[-1] is Ellipsis:
            return f"list of {_kind(inner[0])}"
        return f"[{', '.join(_kind(each) for each in inner)}]"
    if origin is dict:
        return f"mapping of {_kind(inner[0])} to {_kind(inner[1])}"
    if isinstance(kind, type) and issubclass(kind, Section):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    return WORDS[kind]


def _default(value: Any) -> str:
    if repr(value) == "PydanticUndefined":
        return "required"
    if value is None or value in ((), {}, ""):
        return "default: null" if value is None else "default: empty"
    if isinstance(value, Section):
        return f"default: {type(value).__name__}, as follows"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    if len(text) > 60 or (isinstance(value, tuple | dict) and _sections_in(value)):
        return "default: as in the file"
    return f"default: `{text}`"


def _sections_in(value: Any) -> bool:
    items = value.values() if isinstance(value, dict) else value
    return any(isinstance(each, Section) for each in items)
