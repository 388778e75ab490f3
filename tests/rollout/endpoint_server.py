"""A server at an OpenAI-compatible address for tests: slow, of limited rate, dropping connections, answering badly."""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mathrl.core.environment import Variable
from mathrl.core.types import Problem
from mathrl.params import Params
from mathrl.params.run import RemoteModel
from mathrl.rewards.compose import build_reward
from mathrl.rollout.endpoint import EndpointSampler
from mathrl.rollout.engine import Sampling

PROBLEMS = [
    Problem(id=f"p{n}", question=f"{n}+{n}=", answers=(str(2 * n),), source="s", split="test") for n in range(12)
]


class Server(ThreadingHTTPServer):
    """Doubles the first number of a question; `faults` are taken one by one, each by the next request."""

    daemon_threads, request_queue_size = True, 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.faults: list[str] = []
        self.seconds, self.name, self.models, self.key = 0.0, "tiny", ["tiny"], ""
        self.finish, self.text, self.together = "stop", "", threading.Barrier(1)
        self.holds_after, self.release = 10**9, threading.Event()  # so many requests the next wait for it
        self.asked: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []
        self.at_once = self.most = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that waits no longer."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *words: Any) -> None:
        pass

    def reply(self, status: int, content: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"content-length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self) -> None:
        listed = {"data": [{"id": name} for name in self.server.models]}
        self.reply(200, json.dumps(listed).encode()) if self.server.models else self.reply(404, b"none")

    def do_POST(self) -> None:
        server = self.server
        content = self.rfile.read(int(self.headers["content-length"])).decode()
        body = json.loads(content)
        with server.lock:
            server.asked[content] += 1
            server.bodies.append(body)
            fault = server.faults.pop(0) if server.faults else ""
            held = len(server.bodies) > server.holds_after
            server.at_once += 1
            server.most = max(server.most, server.at_once)
        time.sleep(server.seconds)
        if held:
            server.release.wait(600.0)
        with suppress(threading.BrokenBarrierError):
            server.together.wait(600.0)
        with server.lock:
            server.at_once -= 1
        if self.path != f"/v1/{'chat/completions' if 'messages' in body else 'completions'}":
            return self.reply(404, b"no such page")
        if server.key and self.headers.get("authorization") != f"Bearer {server.key}":
            return self.reply(401, b"no")
        if fault == "drop":
            return self.connection.close()
        if fault == "half":
            return self.reply(200, b'{"choices": [{"mess')
        if fault == "empty":
            return self.reply(200, b'{"choices": []}')
        if fault in ("limit", "long limit"):
            return self.reply(429, b"slow down", retry_after="0.3" if fault == "limit" else "60")
        if fault:
            return self.reply(int(fault), b"it is broken")
        asked = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
        text = f"\\boxed{{{2 * int(asked.split('+')[0].rsplit(None, 1)[-1])}}}"
        text += server.text
        message = {"text": text} if "prompt" in body else {"message": {"content": text}}
        usage = {"prompt_tokens": 10, "completion_tokens": 4}
        row = {"model": server.name, "choices": [{**message, "finish_reason": server.finish}], "usage": usage}
        self.reply(200, json.dumps(row).encode())
        with server.lock:
            server.answered[content] += 1


@contextmanager
def serving(state: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server while waits are short, no key is set and answers are kept in the folder."""
    monkeypatch.setenv(Variable.STATE, str(state))
    monkeypatch.delenv(Variable.ENDPOINT_KEY, raising=False)
    monkeypatch.setattr("mathrl.rollout.endpoint.random.random", lambda: -0.4)  # a tenth of the waits
    made = Server()
    thread = threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()


def remote(server: Server, **more: Any) -> RemoteModel:
    return RemoteModel(endpoint=server.url, model="tiny", **more)


def sample(server: Server, params: Params, problems: list[Problem] = PROBLEMS, samples: int = 1, **more: Any) -> Any:
    sampler = EndpointSampler(remote(server, **more), params, "evaluate")
    groups = sampler.sample(problems, Sampling(samples, 0.7, 20, 0.9), build_reward(), 0)
    return sampler, groups
