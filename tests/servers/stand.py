"""A small HTTP server that speaks as vLLM's does, and fails as a real one only does when it is broken."""

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from mathrl.params.rollout import Servers
from mathrl.servers.protocol import FINISH, INIT, PATH, START, UPDATE, WEIGHTS

HANG_SECONDS = 600.0
FILES = {"transfer": "", "gpus": []}  # weights come as files alone


class Stand(ThreadingHTTPServer):
    """Speaks as a vLLM server does; what it answers can be set. `asked` are the prompts it was given."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.health = self.weights = self.completions = 200
        self.ending, self.text = "stop", ""
        self.hangs_on: int | None = None
        self.hanging = threading.Event()  # a request hangs
        self.slow_on: int | None = None  # a piece of one token every `pause` seconds, `pieces` of them
        self.pause, self.pieces, self.tokens = 0.3, 1, 0
        self.on_look: Callable[[], None] = lambda: None  # called before the metrics are told
        self.held_on: int | None = None  # answered when `release` is set
        self.release = threading.Event()
        self.asked: list[int] = []
        self.taken: list[str] = []
        self.steps, self.refused = list[tuple[str, Any]](), ""  # vLLM's endpoints and bodies; the path that fails
        self.generation, self.digest = 1, ""
        self.answered: list[str] = []  # the digest of the weights behind each response
        self.counting = threading.Lock()
        self.in_flight = self.most_in_flight = 0
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def restart(self) -> None:
        """As a new process of the same server, whose weights are those of its command line."""
        self.generation, self.digest = self.generation + 1, ""

    def work(self) -> None:
        """Generate a token of a response to somebody else, which the metrics count."""
        self.tokens += 1

    def handle_error(self, *connection: Any) -> None:
        """A connection that the engine has cut is not an error."""


class Handler(BaseHTTPRequestHandler):
    server: Stand

    def log_message(self, *said: Any) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self.server.on_look()
            self.send_response(200)
            self.end_headers()
            text = f'# HELP vllm:prompt_tokens x\nvllm:generation_tokens_total{{engine="0"}} {self.server.tokens}.0\n'
            self.wfile.write(text.encode())
            return
        if self.path == PATH:
            self.answer(self.server.health, self.state())
            return
        self.answer(self.server.health, {"data": [{"id": "model"}]})

    def state(self) -> dict[str, Any]:
        return {"generation": self.server.generation, "weights": self.server.digest, "adapters": 0, **FILES}

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or "{}")
        if self.path == PATH:
            if self.server.weights == 200:
                self.server.taken.append(body["folder"])
                self.server.digest = body["digest"]
            self.answer(self.server.weights, self.state())
        elif self.path in (INIT, START, UPDATE, FINISH):
            self.server.steps.append((self.path, body))
            self.answer(500 if self.path == self.server.refused else 200, {})
        elif self.path == "/v1/completions":
            (first, *_) = body["prompt"]
            wanted = self.headers.get(WEIGHTS)
            if wanted is not None and self.server.digest not in wanted.split(","):
                self.answer(412, self.state())
                return
            self.server.asked.append(first)
            self.server.answered.append(self.server.digest)
            with self.server.counting:
                self.server.in_flight += 1
                self.server.most_in_flight = max(self.server.most_in_flight, self.server.in_flight)
            try:
                self.complete(first)
            finally:
                with self.server.counting:
                    self.server.in_flight -= 1
        else:
            self.answer(404, {})

    def complete(self, first: int) -> None:
        if first == self.server.hangs_on:
            self.server.hanging.set()
            time.sleep(HANG_SECONDS)
        if first == self.server.held_on:
            self.server.release.wait(HANG_SECONDS)
        if self.server.completions != 200:
            if self.server.hangs_on is not None:  # it fails only once another request hangs
                self.server.hanging.wait(HANG_SECONDS)
            self.answer(self.server.completions, {})
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        pieces = self.server.pieces if first == self.server.slow_on else 1
        for number in range(1, pieces + 1):
            if pieces > 1:
                time.sleep(self.server.pause)
            choice = {
                "index": 0,
                "text": self.server.text,
                "token_ids": [first],
                "logprobs": {"token_logprobs": [-1.0]},
                "finish_reason": self.server.ending if number == pieces else None,
            }
            self.wfile.write(f"data: {json.dumps({'choices': [choice]}, ensure_ascii=False)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def answer(self, status: int, body: Any) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def params(*stands: Stand, **settings: Any) -> Servers:
    given = {"wait_seconds": 60.0, "timeout_seconds": 2 * HANG_SECONDS} | settings
    return Servers(urls=tuple(each.url for each in stands), **given)
