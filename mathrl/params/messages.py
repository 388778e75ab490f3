"""Errors of pydantic as one sentence each: the field's path, what is wrong, and the nearest name."""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import Field, ValidationError
from pydantic.fields import FieldInfo

from mathrl.params.section import SECRET, Section

# Former parameters: what to write instead.
REPLACED = {
    "muon_lr": "lr beside it for the matrices that Muon trains, and optimizer.adamw_scale (AdamW's rate / lr) for the "
    "rest: muon_lr 0.01 with lr 5e-4 is lr 0.01 with adamw_scale 0.05",
    "rollout_ahead": "prefetch: true or false",
}
Location = Sequence[int | str]


def messages(error: ValidationError, kind: Any) -> Iterator[tuple[str, Location, str]]:
    """The type, the location and the message of each error of values that `kind` refused.

    A location is the path as a user writes it: without the tags of unions that pydantic puts in.

    Example: ("extra_forbidden", ("rl", "lrr"), "unknown parameter (did you mean lr?)").
    """
    for item in error.errors():
        path, choices = _resolve(kind, item["loc"])
        text = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            text = f"unknown parameter{unknown_hint(str(path[-1]), choices)}"
        elif item["type"] == "union_tag_invalid":
            tag, field = str(item["ctx"]["tag"]), item["ctx"]["discriminator"].strip("'")
            path = [*path, field]
            text = f"no {field} {tag!r}{did_you_mean(tag, choices)}; known: {', '.join(choices)}"
        elif item["type"] == "union_tag_not_found":
            path = [*path, item["ctx"]["discriminator"].strip("'")]
            text = f"missing; write one of {', '.join(choices)}"
        elif item["type"] != SECRET and item["type"] != "missing":
            text += f", found {item['input']!r}"
        yield item["type"], path, text


def _resolve(kind: Any, location: Location) -> tuple[list[int | str], list[str]]:
    """The location without tags, and the names known where it ends: keys of a section, or tags of a union."""
    path: list[int | str] = []
    for position, part in enumerate(location):
        members = _tagged(kind)
        if part in members:
            kind = members[str(part)]
            continue
        last = position == len(location) - 1
        section = _section(kind)
        path.append(part)
        if section is not None:
            known = {info.alias or name: info for name, info in section.model_fields.items()}
            if last and part not in known:
                return path, list(known)
            kind = _annotation(known[str(part)]) if part in known else None
        else:
            kind = _item(kind)
    return path, list(_tagged(kind))


def _tagged(kind: Any) -> dict[str, Any]:
    """The members of a discriminated union by tag; those of a union within by its own."""
    if get_origin(kind) is Annotated:
        inner, *metadata = get_args(kind)
        tag = next((each.discriminator for each in metadata if getattr(each, "discriminator", None)), None)
        if tag is None or get_origin(inner) not in (Union, UnionType):
            return _tagged(inner)
        return {value: member for member in get_args(inner) for value in _tags(member, tag)}
    if get_origin(kind) in (Union, UnionType):
        members = [member for member in get_args(kind) if member is not type(None)]
        return _tagged(members[0]) if len(members) == 1 else {}
    return {}


def _tags(member: Any, field: str) -> list[str]:
    if get_origin(member) is Annotated:
        return list(dict.fromkeys(tag for each in get_args(get_args(member)[0]) for tag in _tags(each, field)))
    kind = member.model_fields[field].annotation
    return [str(value) for value in get_args(kind)] if get_origin(kind) is Literal else []


def _section(kind: Any) -> type[Section] | None:
    if isinstance(kind, type) and issubclass(kind, Section):
        return kind
    if get_origin(kind) in (Union, UnionType):
        sections = [member for member in get_args(kind) if _section(member)]
        return _section(sections[0]) if len(sections) == 1 else None
    return None


def _annotation(info: FieldInfo) -> Any:
    """The type of a field, with its discriminator, which pydantic keeps beside it."""
    tag = info.discriminator
    return info.annotation if tag is None else Annotated[info.annotation, Field(discriminator=tag)]


def _item(kind: Any) -> Any:
    """The type of what a list or mapping holds."""
    if get_origin(kind) is Annotated:
        return _item(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return next((item for member in get_args(kind) if (item := _item(member)) is not None), None)
    if get_origin(kind) in (tuple, dict):
        return get_args(kind)[get_origin(kind) is dict]
    return None


def unknown_hint(key: str, known: Iterable[str]) -> str:
    """What to write instead of an unknown parameter: its successor, else the nearest name."""
    return f": write {REPLACED[key]}" if key in REPLACED else did_you_mean(key, known)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """ " (did you mean lr?)" for the nearest known name; empty where none is near."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""
