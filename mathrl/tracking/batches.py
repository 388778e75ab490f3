"""Metrics, parameters and tags sent to MLflow in batches, in which one that it refuses costs none of the others."""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mathrl.core.files import encodable
from mathrl.tracking.names import escape

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
