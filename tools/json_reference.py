"""The site's page of the documents that commands print with --json, from their types."""

from typing import Annotated, Any, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from mathrl.cli.documents import DOCUMENTS, ErrorDocument


def json_reference() -> str:
    """The page's markdown."""
    lines = ["# Documents of --json", "", "Written from the types; how to use them: [for programs](programs.md).", ""]
    kinds = [ErrorDocument, *dict.fromkeys(kind for kinds in DOCUMENTS.values() for kind in kinds)]
    for kind in kinds:
        title = (kind.__doc__ or "").strip()
        lines += [f"## {title}", "", "| field | type | |", "|---|---|---|", *_rows(kind, ""), ""]
    return "\n".join(lines)


def _rows(kind: Any, above: str) -> list[str]:
    rows = []
    for name, hint in get_type_hints(kind, include_extras=True).items():
        shape, text = _parts(hint)
        rows.append(f"| `{above}{name}` | {_spoken(shape)} | {text} |")
        inner = next((each for each in (shape, *get_args(shape)) if is_typeddict(each)), None)
        if inner is not None:
            rows += _rows(inner, f"{above}{name}{'[]' if get_origin(shape) is list else ''}.")
    return rows


def _parts(hint: Any) -> tuple[Any, str]:
    """The type and its description."""
    if get_origin(hint) is NotRequired:
        return _parts(get_args(hint)[0])
    return (get_args(hint)[0], get_args(hint)[1]) if get_origin(hint) is Annotated else (hint, "")


def _spoken(kind: Any) -> str:
    """The type in JSON's words.

    >>> _spoken(list[str] | None), _spoken(dict[str, float])
    ('list of strings or null', 'object of numbers')
    """
    words = {str: "string", bool: "true or false", int: "integer", float: "number", type(None): "null", Any: "value"}
    if kind in words:
        return words[kind]
    origin, inner = get_origin(kind), get_args(kind)
    if origin is list:
        return f"list of {_many(_spoken(inner[0]))}"
    if origin is dict:
        return f"object of {_many(_spoken(inner[1]))}"
    if origin is Union or inner:
        return " or ".join(_spoken(each) for each in inner)
    return "object"


def _many(words: str) -> str:
    first, _, rest = words.partition(" ")
    return " ".join([f"{first}s", *([rest] if rest else [])])
