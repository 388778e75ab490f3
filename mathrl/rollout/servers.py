"""vLLM servers over HTTP: one request, health, weights; which server is next, which are dead.

A server that does not answer, or not in time, counts as dead and its requests go to the others. One that is
back is given the newest weights before it is used again.
"""

import json
import os
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx

from mathrl.core.errors import UserError
from mathrl.params.rollout import Servers
from mathrl.rollout.engine import Sampling
from mathrl.rollout.vllm_login import KEY, login_headers

HEALTH_SECONDS = 5.0
POLL_SECONDS = 1.0


class ServerDied(Exception):
    """A server did not answer, or not in time; str() says how."""


@dataclass
class Server:
    """One server; `busy` requests are in flight from here, `newest` says whether it has the last weights.

    `why` is what it was last found wanting for, empty while it lives.
    """

    url: str
    client: httpx.Client
    watch: Callable[[str, dict[str, Any]], None]
    alive: bool = False
    busy: int = 0
    newest: bool = False
    model: str = ""
    why: str = ""

    def post(self, path: str, body: dict[str, Any] | None, seconds: float) -> Any:
        """The answer's JSON.

        Raises:
            ServerDied: no answer in time, or one that says that the server is broken.
            UserError: it refuses the request.
        """
        try:
            answer = self.client.post(self.url + path, json=body, timeout=seconds, extensions={"trace": self.watch})
        except httpx.TimeoutException:
            raise ServerDied(f"{self.url} did not answer {path} within {seconds:g} s") from None
        except httpx.HTTPError as error:
            raise ServerDied(f"{self.url} broke off {path} ({type(error).__name__})") from None
        if answer.status_code >= 500:
            raise ServerDied(f"{self.url} answered {path} with {answer.status_code}: {answer.text[:300]}")
        if answer.status_code >= 400:
            hint = "; start it with `mathrl serve`" if answer.status_code == 404 else ""
            raise UserError(f"{self.url} refuses {path} with {answer.status_code}: {answer.text[:300]}{hint}")
        return answer.json() if answer.content else None

    def healthy(self) -> bool:
        """Whether it answers; `why` says what is wrong if not."""
        try:
            for path in ("/health", "/v1/models"):
                answer = self.client.get(self.url + path, timeout=HEALTH_SECONDS)
                if answer.status_code != 200:
                    self.why = f"{self.url} answers {path} with {answer.status_code}"
                    if answer.status_code == 401:
                        self.why += f": {KEY} must be the same there and here"
                    return False
            self.model = str(answer.json()["data"][0]["id"])
            return True
        except (httpx.HTTPError, ValueError, KeyError, IndexError) as error:
            self.why = f"{self.url} does not answer as a vLLM server ({type(error).__name__})"
        return False

    def complete(
        self, prompt: Sequence[int], sampling: Sampling, seed: int, ends: list[int], seconds: float
    ) -> list[dict[str, Any]]:
        """The choices of /v1/completions, in the order of the samples: token_ids, logprobs, finish_reason."""
        greedy = sampling.temperature == 0  # all samples are the same one
        body = {
            "model": self.model, "prompt": list(prompt), "n": 1 if greedy else sampling.samples,
            "temperature": sampling.temperature, "top_p": 1.0 if greedy else sampling.top_p,
            "max_tokens": sampling.max_tokens, "seed": seed, "stop_token_ids": ends, "logprobs": 0,
            "return_token_ids": True, "skip_special_tokens": True,
            # What the served model's generation config may have set otherwise.
            "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
        }  # fmt: skip
        choices = sorted(self.post("/v1/completions", body, seconds)["choices"], key=lambda each: each["index"])
        for choice in choices:
            if choice["finish_reason"] not in ("stop", "length"):
                raise ServerDied(f"{self.url} ended a response with {choice['finish_reason']!r}")
        return choices * sampling.samples if greedy else choices


class Connections:
    """The connections of a client, as its "trace" extension tells of them to `watch`."""

    def __init__(self) -> None:
        self.lock, self.streams = threading.Lock(), weakref.WeakSet[Any]()

    def watch(self, event: str, info: dict[str, Any]) -> None:
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            with self.lock:
                self.streams.add(info["return_value"])

    def close(self, client: httpx.Client) -> None:
        """Close the client, and wake threads that wait for an answer: that takes their sockets' shutdown.

        The sockets are copied before and shut down after, so that no thread that wakes can ask again.
        """
        copies = []
        with self.lock:
            for stream in self.streams:
                with suppress(OSError):  # closed already
                    number = os.dup(stream.get_extra_info("socket").fileno())
                    copies.append(socket.socket(fileno=number))
        client.close()
        for copy in copies:
            with suppress(OSError), copy:
                copy.shutdown(socket.SHUT_RDWR)


class Pool:
    """The servers of a run. Safe for many threads."""

    def __init__(self, params: Servers) -> None:
        """Raises UserError: none of them is there within `wait_seconds`."""
        self.params, self.lock = params, threading.Condition()
        # No proxy of the environment's: these are one's own machines.
        limits = httpx.Limits(max_connections=None)
        self.client = httpx.Client(trust_env=False, limits=limits, headers=login_headers())
        self.connections = Connections()
        self.servers = [Server(url.rstrip("/"), self.client, self.connections.watch) for url in params.urls]
        self.weights: str | None = None  # the folder that was sent last
        self.none_since: float | None = None  # when it was first seen that no server lives
        self.revive(wait=True)

    def hang_up(self) -> None:
        """End the requests in flight, which threads wait for; there can be no others after."""
        self.connections.close(self.client)

    def alive(self) -> list[Server]:
        return [server for server in self.servers if server.alive]

    def take(self) -> Server:
        """The idlest server that lives; waits for one.

        Raises:
            UserError: none came back within `wait_seconds` of the moment when the last one was lost.
        """
        with self.lock:
            if not self.alive():
                self._revive(wait=True)
            chosen = min(self.alive(), key=lambda server: server.busy)
            chosen.busy += 1
            return chosen

    def give_back(self, server: Server) -> None:
        with self.lock:
            server.busy -= 1

    def died(self, server: Server, why: Exception) -> None:
        with self.lock:
            if server.alive:
                server.alive, server.newest, server.why = False, False, str(why)
                others = len(self.alive())
                print(f"rollout: {why}; {others} other server(s) go on", file=sys.stderr, flush=True)

    def revive(self, wait: bool = False) -> None:
        """Look whether dead servers are back; with `wait`, until one lives."""
        with self.lock:
            self._revive(wait)

    def _revive(self, wait: bool) -> None:
        told = False
        while True:
            if self.none_since is not None and time.monotonic() > self.none_since + self.params.wait_seconds:
                raise self._nobody()  # at once for each of many that wait: their waits must not add up
            for server in self.servers:
                if not server.alive:
                    self._try(server)
            if self.alive():
                self.none_since = None
            if self.alive() or not wait:
                return
            self.none_since = self.none_since or time.monotonic()
            if not told:
                print("rollout: no server is left; waiting", file=sys.stderr, flush=True)
                told = True
            time.sleep(POLL_SECONDS)

    def _try(self, server: Server) -> None:
        before = server.why
        server.alive = server.healthy() and (self.weights is None or self._send(server))
        if server.alive:
            server.why = ""
        elif server.why != before:
            print(f"rollout: {server.why}", file=sys.stderr, flush=True)

    def _nobody(self) -> UserError:
        reasons = "; ".join(server.why for server in self.servers)
        return UserError(
            f"no vLLM server can be used after {self.params.wait_seconds:g} s ({reasons}): start one with "
            "`mathrl serve MODEL --port PORT`, correct rollout.servers.urls, or raise "
            "rollout.servers.wait_seconds"
        )

    def told(self) -> str:
        """What `follow` takes in another process: the newest weights, and who has them."""
        return json.dumps([self.weights, [server.url for server in self.alive()]])

    def follow(self, told: str) -> None:
        """Use the servers that took the weights at the process that sent them, and no others.

        Where that process counted one as dead, it may have older weights and seem well to this one.
        """
        with self.lock:
            self.weights, taken = json.loads(told)
            for server in self.servers:
                server.newest = server.url in taken
                server.alive = server.newest and (server.alive or server.healthy())

    def send(self, folder: str) -> None:
        """Have every server take over the folder's weights and forget what it cached; the dead are left out.

        Raises:
            UserError: a server refuses, or none is left.
        """
        with self.lock:
            self.weights = folder
            for server in self.servers:
                server.newest = False
            self._revive(wait=False)
            behind = [server for server in self.alive() if not server.newest]
            with ThreadPoolExecutor(max(1, len(behind))) as workers:
                for server, taken in zip(behind, workers.map(self._send, behind), strict=True):
                    server.alive = taken
                    if not taken:
                        print(f"rollout: {server.why}", file=sys.stderr, flush=True)
            if not self.alive():
                self._revive(wait=True)

    def _send(self, server: Server) -> bool:
        seconds = self.params.timeout_seconds
        try:
            server.post("/collective_rpc", {"method": "read_weights", "args": [self.weights]}, seconds)
            if not server.post("/reset_prefix_cache?reset_running_requests=true", None, seconds)["success"]:
                raise ServerDied(f"{server.url} could not forget its prefix cache")
        except ServerDied as error:
            server.why = (
                f"weights were not taken: {error}; where a server cannot see their folder, name one in "
                "rollout.servers.folder that it shares with this machine"
            )
            return False
        server.newest = True
        return True
