"""The local page over kept rollouts, on loopback: `mathrl rollouts`, and beside the servers of `mathrl ui`.

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
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from mathrl.core.records import all_records, records_folder
from mathrl.core.request_origin import refusal
from mathrl.core.rollout_files import rollout_files
from mathrl.reports.lineage_picture import render
from mathrl.reports.rollouts import Rollouts

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
