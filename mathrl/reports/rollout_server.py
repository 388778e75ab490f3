"""The local page over kept rollouts, on loopback: `mathrl runs rollouts`, and beside the servers of `mathrl ui`.

    /               the runs of this machine that kept rollouts
    /NAME/          the page of one; NAME is its record, or the name under which a file is served
    /NAME/summary   counts, and the first responses, of what the query chooses
    /NAME/row?n=17  a response with its tokens
    /NAME/report.html   the report of the run, of a record that has one

What a model wrote is data: the page puts it in as text, and its policy allows no script but its own.
"""

import argparse
import json
import secrets
import threading
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mathrl.core.records import all_records, records_folder
from mathrl.core.request_origin import refusal
from mathrl.reports.pictures import render
from mathrl.rollout.rollout_files import read_responses, read_tokens, rollout_files

BINS = 8  # of numbers with more different values than `VALUES`
VALUES = 12
EXCERPT = 300  # characters of a response in a list
Mask = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int64]
Filters = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Facet:
    """A property by which responses are counted and chosen: `codes` are numbers of `labels`, of the rows `rows`.

    A response may have no label or several.
    """

    labels: list[str]
    codes: Codes
    rows: Codes

    def mask_of_labels(self, labels: Iterable[str], size: int) -> Mask:
        """Which of `size` responses have one of the labels, [R]."""
        numbers = [self.labels.index(label) for label in labels if label in self.labels]
        mask = np.zeros(size, dtype=bool)
        mask[self.rows[np.isin(self.codes, numbers)]] = True
        return mask

    def counts(self, mask: Mask) -> list[int]:
        """How many of the responses in `mask` have each label."""
        return [int(n) for n in np.bincount(self.codes[mask[self.rows]], minlength=len(self.labels))]


class Rollouts:
    """The responses of parquet files in memory; tokens are read when a response is opened."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = list(files)
        self.table = read_responses(self.files)
        self.size = len(self.table)
        self.steps = _numbers(self.table["step"]).astype(np.int64)
        self.correct = _numbers(self.table["correct"]) > 0
        self.facets = _facets(self.table)
        self._found: tuple[str, Mask] = ("", np.ones(self.size, dtype=bool))

    def summary(self, filters: Filters, query: str = "", problem: str = "") -> dict[str, Any]:
        """Counts of each label among the responses that all *other* filters leave, and the right ones per step."""
        masks = {name: self.facets[name].mask_of_labels(labels, self.size) for name, labels in filters.items()}
        rest = self._search(query) & self._of_problem(problem)
        facets = {}
        for name, facet in self.facets.items():
            others = _all([mask for other, mask in masks.items() if other != name], rest)
            facets[name] = list(zip(facet.labels, facet.counts(others), strict=True))
        others = _all([mask for other, mask in masks.items() if other != "step"], rest)
        right = self.facets["step"].counts(others & self.correct)
        count = int(_all(list(masks.values()), rest).sum())
        return {"total": self.size, "count": count, "facets": facets, "right": right}

    def page(
        self,
        filters: Filters,
        query: str = "",
        problem: str = "",
        *,
        sort: str = "step",
        first: int = 0,
        most: int = 50,
    ) -> list[dict[str, Any]]:
        """Responses in short; `sort` is a column, with a minus in front the largest first; or `disagrees`."""
        masks = [self.facets[name].mask_of_labels(labels, self.size) for name, labels in filters.items()]
        rows = np.flatnonzero(_all(masks, self._search(query) & self._of_problem(problem)))
        column = sort.removeprefix("-")
        if column == "disagrees":
            agrees = ~np.asarray(pc.fill_null(self.table["disagrees"], False), dtype=bool)[rows]
            rows = rows[np.argsort(agrees, kind="stable")]
        if column in ("step", "reward", "length"):
            values = _numbers(self.table[column])[rows]
            rows = rows[np.argsort(-values if sort.startswith("-") else values, kind="stable")]
        return [self._short(int(row)) for row in rows[first : first + most]]

    def row(self, number: int) -> dict[str, Any]:
        """A response with everything that was kept of it; floats of its tokens rounded for display.

        Raises:
            IndexError: there is no such row.
        """
        if not 0 <= number < self.size:
            raise IndexError(number)
        values = dict(self.table.slice(number, 1).to_pylist()[0])
        tokens = read_tokens(self.files, number)
        for name in ("logprobs", "advantages", "ratios"):
            tokens[name] = tokens[name] and [_finite(value) for value in tokens[name]]
        parts = {name: _finite(value) for name, value in values["parts"]}
        return {"row": number, **values, "reward": _finite(values["reward"]), "parts": parts, **tokens}

    def _short(self, number: int) -> dict[str, Any]:
        names = ["step", "problem", "response", "correct", "extracted", "rule", "reward", "length", "odd", "text"]
        short = self.table.slice(number, 1).select(names).to_pylist()[0]
        text = short["text"]
        excerpt = text[:EXCERPT] + ("…" if len(text) > EXCERPT else "")
        return {"row": number, **short, "reward": _finite(short["reward"]), "text": excerpt}

    def _search(self, query: str) -> Mask:
        """Responses whose text, question or extracted answer contains the query, whatever its case."""
        if not query:
            return np.ones(self.size, dtype=bool)
        found, hit_rows = self._found  # read once: a thread with another query may replace it meanwhile
        if found != query:
            hit_rows = np.zeros(self.size, dtype=bool)
            for name in ("text", "question", "extracted"):
                column = self.table[name].cast(pa.string())
                hits = pc.match_substring(column, query, ignore_case=True)
                hit_rows |= np.asarray(pc.fill_null(hits, False), dtype=bool)
            self._found = (query, hit_rows)
        return hit_rows

    def _of_problem(self, problem: str) -> Mask:
        if not problem:
            return np.ones(self.size, dtype=bool)
        return np.asarray(pc.equal(self.table["problem"].cast(pa.string()), problem), dtype=bool)


def _facets(table: pa.Table) -> dict[str, Facet]:
    """Every property by which responses are counted, in the order of the page."""
    facets = {
        "step": _of_numbers(table["step"], whole=True),
        "verdict": _of_texts(pc.if_else(table["correct"], "right", "wrong")),
        "odd": _of_lists(table["odd"]),
        "rule": _of_texts(table["rule"]),
        "graders": _of_texts(pc.if_else(table["disagrees"], "disagree", "agree")),
        "end": _of_texts(pc.if_else(table["truncated"], "truncated", "complete")),
        "source": _of_texts(table["source"]),
        "level": _of_numbers(table["level"], whole=True),
        "length": _of_numbers(table["length"]),
        "calls": _of_numbers(pc.list_value_length(table["calls"]), whole=True),
        "status of a call": _of_lists(_statuses(table["calls"])),
        "reward": _of_numbers(table["reward"]),
    }
    parts = pa.chunked_array(table["parts"]).combine_chunks() if len(table) else None
    if parts is not None:
        keys = np.asarray(parts.keys.to_pylist(), dtype=object)
        values, rows = np.asarray(parts.items, dtype=float), _rows_of(parts)
        for name in sorted(set(keys)):
            facets[f"part {name}"] = _bin_numbers(values[keys == name], rows[keys == name])
    always = {"step": 0, "verdict": 0, "odd": 1}  # what all responses have alike chooses nothing
    return {name: facet for name, facet in facets.items() if len(facet.labels) >= always.get(name, 2)}


def _of_texts(column: Any) -> Facet:
    texts = pa.chunked_array(column).cast(pa.string()).combine_chunks()
    return _text_facet(texts.drop_null(), np.flatnonzero(np.asarray(texts.is_valid())))


def _of_lists(column: Any) -> Facet:
    lists = pa.chunked_array(column).combine_chunks()
    return _text_facet(lists.values, _rows_of(lists))


def _text_facet(texts: Any, rows: Codes) -> Facet:
    """A label for each text, of the rows `rows`; the labels in order of the alphabet."""
    encoded = pc.dictionary_encode(texts)
    labels, places = np.unique(np.asarray(encoded.dictionary, dtype=object), return_inverse=True)
    return Facet(labels.tolist(), places[np.asarray(encoded.indices, dtype=np.int64)], rows)


def _statuses(calls: Any) -> Any:
    """The statuses of each response's calls, as a column of lists."""
    column = pa.chunked_array(calls).combine_chunks()
    return pa.chunked_array([pa.ListArray.from_arrays(column.offsets, column.values.field("status"))])


def _of_numbers(column: Any, *, whole: bool = False) -> Facet:
    numbers = pa.chunked_array(column).combine_chunks()
    rows = np.flatnonzero(np.asarray(numbers.is_valid()))
    return _bin_numbers(np.asarray(numbers.drop_null()).astype(float), rows, whole)


def _bin_numbers(values: npt.NDArray[np.float64], rows: Codes, whole: bool = False) -> Facet:
    """Numbers as labels: each value where there are few (or `whole`), else bins between quantiles.

    Values that differ by rounding alone, such as 0.1 + 0.2 and 0.3, have one label.
    """
    finite = np.isfinite(values)
    values, rows = values[finite], rows[finite]
    different, places = np.unique(values, return_inverse=True)
    texts = [f"{value:.0f}" if whole else f"{value:g}" for value in different]
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    if whole or len(numbers) <= VALUES:
        return Facet(list(numbers), np.array([numbers[text] for text in texts], dtype=np.int64)[places], rows)
    edges = np.unique(np.quantile(different, np.linspace(0, 1, BINS + 1), method="nearest"))
    codes = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    labels = [f"{low} to {high}" for low, high in pairwise(_short_numbers(edges))]
    return Facet(labels, codes.astype(np.int64), rows)


def _short_numbers(values: npt.NDArray[np.float64]) -> list[str]:
    """Different numbers with as few digits as tell them apart, three at least; whole ones as they are."""
    whole = bool((values == np.rint(values)).all())
    texts = [f"{value:.0f}" for value in values] if whole else []
    digits = 3
    while len(set(texts)) < len(values):
        texts, digits = [f"{value:.{digits}g}" for value in values], digits + 1
    return texts


def _rows_of(lists: Any) -> Codes:
    """The number of the row of each value of a list or map array."""
    return np.repeat(np.arange(len(lists)), np.diff(np.asarray(lists.offsets, dtype=np.int64)))


def _numbers(column: Any) -> npt.NDArray[np.float64]:
    return np.asarray(column.cast(pa.float64()) if not pa.types.is_boolean(column.type) else column, dtype=float)


def _all(masks: Sequence[Mask], mask: Mask) -> Mask:
    for other in masks:
        mask = mask & other
    return mask


def _finite(value: float) -> float | None:
    return round(value, 4) if np.isfinite(value) else None


HOST, MOST, REPORT = "127.0.0.1", 500, "report.html"
PLAIN = ("q", "problem", "sort", "first", "most", "n")  # of a query; the other names are facets


class Library:
    """The kept rollouts of this machine's runs and of `files`, read when they are asked for.

    A run that trains has new files after each step; what was read before is then read again.
    """

    def __init__(self, files: Mapping[str, Path]) -> None:
        self.folders = dict(files)
        self._lock = threading.Lock()
        self._read: dict[str, tuple[Any, Rollouts]] = {}

    def names(self) -> list[dict[str, Any]]:
        """The runs that kept rollouts, newest first."""
        runs: list[dict[str, Any]] = [{"name": name, "text": str(path)} for name, path in self.folders.items()]
        for record in all_records(newest_first=True):
            if rollout_files(record.rollouts):
                runs.append({"name": record.folder.name, "text": f"{record.name}, {record.status}, {record.workspace}"})
        return runs

    def open(self, name: str) -> Rollouts | None:
        """The rollouts of this name; None if there are none."""
        files = self._files(name)
        if not files:
            return None
        state = [(str(file), file.stat().st_mtime_ns) for file in files]
        with self._lock:
            if name not in self._read or self._read[name][0] != state:
                self._read = {name: (state, Rollouts(files))}  # one at a time: they may be large
            return self._read[name][1]

    def _files(self, name: str) -> list[Path]:
        if name in self.folders:
            path = self.folders[name]
            return [path] if path.is_file() else rollout_files(path)
        if name != Path(name).name or name.startswith("."):
            return []
        return rollout_files(records_folder() / name / "rollouts")


class Handler(BaseHTTPRequestHandler):
    """Answers GET requests that a browser of this machine sends to a loopback name."""

    server_version, sys_version = "mathrl-rollouts", ""
    library: Library

    def do_GET(self) -> None:
        if reason := refusal(self.headers.items()):
            self._send(HTTPStatus.FORBIDDEN, "text/plain", reason)
            return
        address = urllib.parse.urlsplit(self.path)
        name, _, what = urllib.parse.unquote(address.path).strip("/").partition("/")
        query = urllib.parse.parse_qs(address.query)
        if name in ("", "health"):
            self._page("rollout_runs.html", runs=self.library.names() if not name else [])
            return
        report = records_folder() / Path(name).name / "artifacts" / REPORT
        if what == REPORT and report.is_file():
            policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
            self._send(HTTPStatus.OK, "text/html", report.read_text(encoding="utf-8"), policy)
            return
        rollouts = self.library.open(name)
        if rollouts is None:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", f"{name}: no kept rollouts of this name")
        elif not what:
            self._page("rollouts.html", name=name)
        else:
            self._answer(rollouts, what, query)

    def _answer(self, rollouts: Rollouts, what: str, query: Mapping[str, list[str]]) -> None:
        one = {name: values[0] for name, values in query.items() if name in PLAIN}
        filters = {name: values for name, values in query.items() if name in rollouts.facets}
        text, problem = one.get("q", ""), one.get("problem", "")
        try:
            if what == "row":
                self._json(rollouts.row(int(one.get("n", -1))))
            elif what == "summary":
                first, most = int(one.get("first", 0)), min(MOST, int(one.get("most", 50)))
                rows = rollouts.page(
                    filters, text, problem, sort=one.get("sort", "step"), first=max(0, first), most=max(0, most)
                )
                self._json({**rollouts.summary(filters, text, problem), "rows": rows})
            else:
                self._send(HTTPStatus.NOT_FOUND, "text/plain", f"{what}: summary and row are there")
        except (ValueError, IndexError) as error:
            self._send(HTTPStatus.BAD_REQUEST, "text/plain", f"{self.path}: {error}")

    def _page(self, template: str, **values: Any) -> None:
        nonce = secrets.token_urlsafe(16)
        policy = f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; connect-src 'self'"
        self._send(HTTPStatus.OK, "text/html", render(template, nonce=nonce, **values), policy)

    def _json(self, value: Any) -> None:
        self._send(HTTPStatus.OK, "application/json", json.dumps(value, allow_nan=False, ensure_ascii=False))

    def _send(self, status: HTTPStatus, kind: str, text: str, policy: str = "default-src 'none'") -> None:
        body = text.encode("utf-8", errors="backslashreplace")
        self.send_response(status)
        headers = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Requests are not logged."""


def make_server(library: Library, port: int = 0) -> ThreadingHTTPServer:
    """A server of the library on loopback; port 0 takes a free one."""
    handler = type("LibraryHandler", (Handler,), {"library": library})
    server = ThreadingHTTPServer((HOST, port), handler)
    server.daemon_threads = True
    return server


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    make_server(Library({}), parser.parse_args().port).serve_forever()
