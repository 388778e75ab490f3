"""Names as MLflow takes them: letters, digits and `_ - . : / space`, a path without empty parts, 250 characters.

Sources, reward parts and keys of a user's reward become parts of metric names, and may be any text. A character
that MLflow refuses, and the colon, is written as its code point in hexadecimal between colons. So different
names stay different, and `unescape` gives the name as written.
"""

import posixpath
import re
from collections.abc import Mapping

from mathrl.core.hashing import digest

LONGEST = 230  # MLflow takes 250 characters; a prefix such as `name.` may come before it
HIDDEN = "mlflow.mathrl."
CODE = "code."  # before the parts of a record's code: code.mathrl, code.value, code.own
REFUSED = re.compile(r"[^/\w.\- ]")
ESCAPED = re.compile(r":(10[0-9a-f]{4}|[0-9a-f]{0,5}):")


def escape(name: str) -> str:
    """The name in MLflow's characters. Longer ones than `LONGEST` are cut and end in a digest of the whole name.

    >>> escape("rl/len<100"), escape("AIME (2024)"), escape("pass_at_1"), escape("a//b")
    ('rl/len:3c:100', 'AIME :28:2024:29:', 'pass_at_1', 'a:2f::2f:b')
    """
    text = REFUSED.sub(_code, name)
    if posixpath.normpath(text) != text or text.startswith(("/", "..")) or text == ".":
        text = re.sub(r"/|^\.+", _code, text) or "::"
    if len(text) <= LONGEST:
        return text
    return f"{text[:200]}:{digest(name)}:"


def unescape(text: str) -> str:
    """The name that `escape` was given, unless it was too long.

    >>> unescape("rl/len:3c:100")
    'rl/len<100'
    """
    return ESCAPED.sub(lambda match: chr(int(match[1], 16)) if match[1] else "", text)


def tags_under(tags: Mapping[str, str], prefix: str) -> dict[str, str]:
    """The tags whose names begin with `prefix`, by the rest of their names as written.

    >>> tags_under({"input.data/a:2b:b": "77", "health": "green"}, "input.")
    {'data/a+b': '77'}
    """
    return {unescape(key.removeprefix(prefix)): text for key, text in tags.items() if key.startswith(prefix)}


def link(kind: str, path: str) -> str:
    """The tag of a run that links it to a file: `kind` is input, output or made_by.

    MLflow's pages show no tag of their own name space, so the description comes first and not a block of digests.
    """
    return f"{HIDDEN}{kind}.{path}"


def links(tags: Mapping[str, str], kind: str) -> dict[str, str]:
    """The links of a kind, by path; those of an earlier version have the kind alone before the path.

    >>> links({"input.a": "77", "mlflow.mathrl.input.b": "78"}, "input")
    {'a': '77', 'b': '78'}
    """
    return tags_under(tags, f"{kind}.") | tags_under(tags, f"{HIDDEN}{kind}.")


def link_to(tags: Mapping[str, str], kind: str, path: str) -> str | None:
    """The link of a kind to the path."""
    return next((tags[name] for name in _both(kind, path) if name in tags), None)


def queries(kind: str, path: str, text: str) -> list[str]:
    """What finds the runs whose link to the path is `text`, for MLflow's search; to ask in turn."""
    return [f"tags.`{name}` = '{text}'" for name in _both(kind, path)]


def _both(kind: str, path: str) -> tuple[str, str]:
    """The tag's name, and that of an earlier version, as MLflow has them."""
    return escape(link(kind, path)), escape(f"{kind}.{path}")


def _code(match: re.Match[str]) -> str:
    return "".join(f":{ord(character):x}:" for character in match[0])
