"""W&B online, against a server of ours that speaks as much of W&B's protocol as a run without files needs.

The client is W&B's own. What a real server does with the rows is not tested: it merges them by their line numbers.
"""

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mathrl.core.records import TrackerState
from tests.marks import needs_trackers
from tests.tracking.test_mirror import record, say
from tests.tracking.test_trackers import curve, log, mlflow_run

pytestmark = needs_trackers
__all__ = ["record"]
KEY = "0123456789" * 4
Mirror = Callable[..., "subprocess.CompletedProcess[str]"]


class Server(ThreadingHTTPServer):
    """Runs by their ids: the lines of their history by number, and their last configuration and summary."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.runs: dict[str, dict[str, Any]] = {}
        self.rows: list[dict[str, Any]] = []
        self.paths: list[str] = []

    def steps(self) -> list[int]:
        return [row["_step"] for row in self.rows]

    def answer(self, operation: str, values: dict[str, Any]) -> dict[str, Any] | None:
        names = {"id": "p", "name": "mathrl", "entity": {"id": "e", "name": "me"}}
        if operation == "RunResumeStatus":
            run = self.runs.get(values["name"])
            tail = json.dumps([json.dumps(row) for row in self.rows[-1:]])
            begun = json.dumps({"t": {}} if run else {})  # without it the client takes the run for one that never began
            known = {"id": "b", "summaryMetrics": "{}", "displayName": "rl", "logLineCount": 0, "eventsLineCount": 0,
                     "historyLineCount": len(self.rows), "historyTail": tail, "eventsTail": "[]", "config": "{}",
                     "tags": [], "notes": None, "wandbConfig": begun, "name": values["name"]}  # fmt: skip
            return {"model": {**names, "bucket": known if run else None}}
        if operation == "UpsertBucket":
            self.runs.setdefault(values["name"], {}).update({k: v for k, v in values.items() if v is not None})
            bucket = {"id": "b", "name": values["name"], "displayName": "rl", "description": None, "sweepName": None,
                      "config": values.get("config"), "historyLineCount": len(self.rows), "project": names}  # fmt: skip
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        if operation == "CreateRunFiles":
            files = [{"name": name, "uploadUrl": f"{self.address}/put"} for name in values["files"]]
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
        return None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._reply(self.server.steps())

    def do_PUT(self) -> None:
        self._body()
        self._reply({})

    def do_POST(self) -> None:
        text = self._body()
        self.server.paths.append(self.path)
        body = json.loads(text) if self.headers["content-type"] == "application/json" else {}
        if self.path == "/graphql":
            operation = re.search(r"(?:query|mutation)\s+(\w+)", body["query"])
            self._reply({"data": self.server.answer(operation[1] if operation else "", body.get("variables") or {})})
            return
        for name, part in body.get("files", {}).items():
            if name == "wandb-history.jsonl":
                self.server.rows[part["offset"] :] = [json.loads(line) for line in part["content"]]
        self._reply({"exitcode": None, "limits": {}})

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    def _reply(self, answer: Any) -> None:
        text = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    server = Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("MATHRL_TRACKING", "wandb")
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_BASE_URL", server.address)
    monkeypatch.setenv("WANDB_PROJECT", "mathrl")
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_X_FILE_STREAM_TRANSMIT_INTERVAL", "0.5")  # not after 15 s
    yield server
    server.shutdown()


MIRROR = """
import json, os, signal, sys, time, urllib.request
import psutil
from mathrl.tracking import mirror as module, wandb_tensorboard
from tests.tracking.test_mirror import Unwatched
module._system_monitor = lambda run_id: Unwatched()
wandb_tensorboard.ANSWER_SECONDS, wandb_tensorboard.UPLOAD_SECONDS = float(sys.argv[2]), 300.0
mirror = module.Mirror()
if sys.argv[1] == "loses W&B":
    from wandb.sdk.wandb_run import Run
    finish = Run.finish
    def lose(run, exit_code):
        for process in psutil.Process().children(recursive=True):
            process.kill()
        finish(run, exit_code)
    Run.finish = lose
for _ in range(3):
    complete = mirror.sweep()
if sys.argv[1] == "is killed":
    while json.load(urllib.request.urlopen(os.environ["WANDB_BASE_URL"])) != [1, 2, 3]:
        time.sleep(0.05)
    for process in psutil.Process().children(recursive=True):
        process.kill()
    os.kill(os.getpid(), signal.SIGKILL)
mirror.finish()
print(complete)
"""


@pytest.fixture
def mirror(warm_python: Path) -> Mirror:
    """Runs a mirror in a process of its own: W&B reads the environment once."""

    def run(ends: str, answer_seconds: float = 300.0) -> "subprocess.CompletedProcess[str]":
        command = [warm_python / "python", "-c", MIRROR, ends, str(answer_seconds)]
        env = {**os.environ, "PYTHONPATH": "."}
        return subprocess.run(command, check=False, env=env, capture_output=True, text=True)

    return run


def test_a_run_goes_on_at_the_server_after_a_kill(record: Path, tmp_path: Path, server: Server, mirror: Mirror) -> None:
    log(record, curve(range(1, 4)))
    say(record, "running", 1.0, params={"rl": {"steps": 7}})
    killed = mirror("is killed")
    assert killed.returncode == -signal.SIGKILL and killed.stderr == ""
    log(record, curve(range(4, 8)))
    say(record, "finished", 1.0, params={"rl": {"steps": 7}}, summary={"dev/accuracy": 0.5})
    ended = mirror("ends")
    assert (ended.stdout, ended.stderr) == ("1\n", "")
    ((run, values),) = server.runs.items()
    assert server.steps() == [1, 2, 3, 4, 5, 6, 7]
    config = json.loads(values["config"])
    tags = mlflow_run().data.tags
    assert config["rl"]["value"] == {"steps": 7}
    assert config["links"]["value"]["MLflow run"] == mlflow_run().info.run_id
    assert tags["mathrl.wandb"] == f"{server.address}/me/mathrl/runs/{run}"
    assert f"[Run in W&B]({tags['mathrl.wandb']})" in tags["mlflow.note.content"]
    assert not [path for path in server.paths if path != "/graphql" and not path.endswith("/file_stream")]
    assert_nowhere(tmp_path, killed.stdout, killed.stderr, ended.stdout, ended.stderr)


def test_a_server_that_is_away_and_one_that_is_lost_at_the_end_are_reported_and_get_all_later(
    record: Path, tmp_path: Path, server: Server, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("MATHRL_TRACKING", "wandb,tensorboard")
    log(record, curve(range(1, 4)))
    say(record, "finished", 1.0)
    away = mirror("ends", answer_seconds=1.0)
    assert away.stdout == "0\n" and away.stderr.count("tracking: W&B CommError: ") == away.stderr.count("\n") == 1
    assert "the run goes on, `mathrl runs sync` sends the rest later" in away.stderr
    assert mlflow_run().info.status == "FINISHED" and TrackerState.read(record, "tensorboard").complete == 1.0
    monkeypatch.setenv("WANDB_BASE_URL", server.address)
    lost = mirror("loses W&B")
    assert lost.stdout == "0\n" and TrackerState.read(record, "wandb").complete is None
    assert "tracking: W&B " in lost.stderr and "`mathrl runs sync` sends the rest later" in lost.stderr
    assert "Exception in thread" not in lost.stderr
    assert mirror("ends").stdout == "1\n" and server.steps() == [1, 2, 3]
    assert TrackerState.read(record, "wandb").complete == 1.0
    assert_nowhere(tmp_path, away.stderr, lost.stderr)


def assert_nowhere(folder: Path, *texts: str) -> None:
    """The login key is in no file of the folder, and in none of the texts."""
    files = [file.read_bytes() for file in folder.rglob("*") if file.is_file()]
    assert files and not any(KEY.encode() in text for text in files) and not any(KEY in text for text in texts)
