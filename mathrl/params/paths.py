"""Values at dotted paths of the parameters as they are written, before the schema reads them: which type a union has
there, and the choice of another one."""

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel

from mathrl.params.messages import item_of, section_of
from mathrl.params.optimizer import other_rates
from mathrl.params.schema import Params
from mathrl.params.section import Tags, annotation, tags_of, unions_of, usual_tag

Path = Sequence[str]


class Place(NamedTuple):
    """What the schema has at a path, with the union there and the type that it has as written, if it is one."""

    kind: Any
    tags: Tags | None
    tag: str


def place_at(values: Mapping[str, Any], path: Path) -> Place | None:
    """The place of a path, where unions above it have the types that are written; None where there is none."""
    place: Place | None = Place(Params, None, "")
    here: Any = values
    for name in path:
        if isinstance(here, list) and name.isdigit() and int(name) < len(here):
            here, kind = here[int(name)], item_of(place.kind if place is not None else None)
            place = _place(here, kind, "")
        elif place is not None:
            here, place = here.get(name) if isinstance(here, Mapping) else None, _place_below(place, name, here)
    return place


def _place_below(place: Place, name: str, here: Any) -> Place | None:
    section = section_of(place.kind) if place.tags is None else place.tags.members.get(place.tag)
    fields = {info.alias or field: field for field, info in getattr(section, "model_fields", {}).items()}
    if name not in fields:
        return None
    assert isinstance(section, type) and issubclass(section, BaseModel)
    kind = annotation(section.model_fields[fields[name]])
    usual = usual_tag(section, fields[name]) if tags_of(kind) is not None else ""
    return _place(here.get(name) if isinstance(here, Mapping) else None, kind, usual)


def _place(written: Any, kind: Any, usual: str) -> Place:
    tags = tags_of(kind)
    if tags is None or isinstance(written, str):
        return Place(kind, tags, written if tags is not None else "")
    named = written.get(tags.field) if isinstance(written, Mapping) else None
    return Place(kind, tags, usual if named is None else str(named))


def written_at(values: Mapping[str, Any], path: Path) -> Any:
    """What is written at a path; None where nothing is."""
    here: Any = values
    for name in path:
        here = here.get(name) if isinstance(here, Mapping) else None
    return here


def mapping_at(values: dict[str, Any], path: Path) -> dict[str, Any]:
    """The mapping at a path, made where there is none; a bare name of a type becomes its mapping."""
    here: Any = values
    for depth, name in enumerate(path):
        if isinstance(here, list):
            here = here[int(name)]
            continue
        below = here.get(name)
        if not isinstance(below, dict | list):
            place = place_at(values, path[: depth + 1]) if isinstance(below, str) else None
            here[name] = {place.tags.field: below} if place is not None and place.tags is not None else {}
        here = here[name]
    assert isinstance(here, dict)
    return here


def choose_type(values: dict[str, Any], path: Path, tag: Any, typed: Container[str] = ()) -> None:
    """Give the union at a path another type: what only the old one has is dropped.

    A learning rate becomes the other optimizer's, unless a person `typed` it (keys such as "rl.optimizer.lr").
    """
    place = place_at(values, path)
    assert place is not None and place.tags is not None
    field, members = place.tags
    section = mapping_at(values, path)
    member = members.get(str(tag))
    before = place.tag
    section[field] = tag
    if member is None or before == tag:  # the schema refuses an unknown one
        return
    if f"{'.'.join(path)}.lr" not in typed:
        section.update(other_rates(before, str(tag), section))
    fields = {info.alias or name for name, info in member.model_fields.items()}
    for name in set(section) - fields:
        del section[name]


def leaves(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """The values by dotted key.

    >>> list(leaves({"optimizer": {"lr": 1}, "steps": 2}, "rl."))
    [('rl.optimizer.lr', 1), ('rl.steps', 2)]
    """
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def merge(below: Any, above: Any) -> Any:
    """`above` over `below`: mappings are merged by key; all else, and a mapping with another `type`, is replaced.

    A bare name is the mapping with this type.
    """
    if isinstance(below, Mapping) and isinstance(above, str):
        above = {"type": above}
    elif isinstance(below, str) and isinstance(above, Mapping):
        below = {"type": below}
    if not (isinstance(below, Mapping) and isinstance(above, Mapping)):
        return above
    if "type" in above and "type" in below and above["type"] != below["type"]:
        return dict(above)
    return {**below, **{key: merge(below[key], value) if key in below else value for key, value in above.items()}}


def name_types(values: dict[str, Any], kind: Any = Params) -> None:
    """Write the type of each union that is written without it, so that another type over it is seen to be another."""
    section = section_of(kind)
    if section is None:
        return
    unions = unions_of(section)
    for field, info in section.model_fields.items():
        name = info.alias or field
        part, tags = values.get(name), unions.get(field)
        if tags is not None and isinstance(part, str) and part in tags.members:
            values[name] = part = {tags.field: part}
        if not isinstance(part, dict):
            continue
        if tags is not None:
            values[name] = part = {tags.field: usual_tag(section, field), **part}
        name_types(part, annotation(info) if tags is None else tags.members.get(str(part[tags.field])))
