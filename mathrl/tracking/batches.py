"""What MLflow is sent: names in its characters, and batches in which what it refuses costs none of the others.

It takes letters, digits and `_ - . : / space`, a path without empty parts, 250 characters. Sources, reward parts and
keys of a user's reward become parts of metric names, and may be any text. A character that MLflow refuses, and the
colon, is written as its code point in hexadecimal between colons. So different names stay different, and `unescape`
gives the name as written.
"""

import posixpath
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mathrl.core.files import encodable
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
    return next((tags[name] for name in _both(kind, path) if name in tags), None)


def queries(kind: str, path: str, text: str) -> list[str]:
    """What finds the runs whose link to the path is `text`, for MLflow's search; to ask in turn."""
    return [f"tags.`{name}` = '{text}'" for name in _both(kind, path)]


def _both(kind: str, path: str) -> tuple[str, str]:
    """The tag's name, and that of an earlier version, as MLflow has them."""
    return escape(link(kind, path)), escape(f"{kind}.{path}")


def _code(match: re.Match[str]) -> str:
    return "".join(f":{ord(character):x}:" for character in match[0])


METRICS_PER_CALL, PARAMS_PER_CALL = 900, 100  # MLflow takes 1000 and 100
LONGEST_PARAM, LONGEST_TAG = 6000, 8000  # characters
REFUSALS = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST")
T = TypeVar("T")


@dataclass(frozen=True)
class Point:
    """A metric's value at a step, `at` in milliseconds; `bound` names the model and dataset that it is of."""

    name: str
    value: float
    at: int
    step: int = 0
    bound: Mapping[str, str] = field(default_factory=dict)


class MlflowBatches:
    """Sends to the runs of one MLflow client; names go through `escape`, each escaped one with a tag `name.…`."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.reported: set[tuple[str, str]] = set()  # run and name of what was refused
        self.kept: dict[str, set[str]] = defaultdict(set)  # a run's names that are in its tags

    def metrics(self, run_id: str, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        def send(part: Sequence[Point]) -> None:
            metrics = [Metric(escape(p.name), p.value, p.at, p.step, **p.bound) for p in part]
            self.client.log_batch(run_id, metrics=metrics)

        self._send(run_id, points, METRICS_PER_CALL, send, lambda point: point.name)
        self._keep_names(run_id, (point.name for point in points))

    def params(self, run_id: str, params: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        def send(part: Sequence[tuple[str, str]]) -> None:
            texts = [Param(escape(name), encodable(text)[:LONGEST_PARAM]) for name, text in part]
            self.client.log_batch(run_id, params=texts)

        self._send(run_id, list(params.items()), PARAMS_PER_CALL, send, lambda param: param[0])
        self._keep_names(run_id, params)

    def tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        def send(part: Sequence[tuple[str, str]]) -> None:
            self.client.log_batch(run_id, tags=[RunTag(name, text) for name, text in part])

        self._send(run_id, list(mlflow_tags(tags).items()), PARAMS_PER_CALL, send, lambda tag: tag[0])

    def _keep_names(self, run_id: str, names: Iterable[str]) -> None:
        """The names as they were written, of those that MLflow has in another form."""
        for name in {name for name in names if escape(name) != name} - self.kept[run_id]:
            self.client.set_tag(run_id, f"name.{escape(name)}", encodable(name)[:LONGEST_TAG])
            self.kept[run_id].add(name)

    def _send(
        self,
        run_id: str,
        items: Sequence[T],
        size: int,
        send: Callable[[Sequence[T]], None],
        name_of: Callable[[T], str],
    ) -> None:
        for part in _parts(items, size):
            try:
                send(part)
            except Exception as error:
                if not _is_refusal(error):
                    raise
                if len(part) > 1:  # one of them is refused: the others are sent without it
                    self._send(run_id, part, (len(part) + 1) // 2, send, name_of)
                elif (run_id, name_of(part[0])) not in self.reported:
                    self.reported.add((run_id, name_of(part[0])))
                    reason = " ".join(str(error).split())[:200]
                    print(f"tracking: MLflow refuses {name_of(part[0])!r}, all else is sent: {reason}", file=sys.stderr)


def mlflow_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """The tags with names and texts that MLflow takes."""
    return {escape(name): encodable(text)[:LONGEST_TAG] for name, text in tags.items()}


def _parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _is_refusal(error: Exception) -> bool:
    """Whether MLflow does not take what it was sent; else it does not answer, which the mirror tries again."""
    from mlflow.exceptions import MlflowException

    if isinstance(error, MlflowException):
        return error.error_code in REFUSALS
    return isinstance(error, TypeError | OverflowError)  # not a number
