"""vLLM servers over HTTP: requests, health, weights; which server is next and which are dead.

A server that does not answer in time counts as dead and its requests go to the others. One that comes back receives
the newest weights before it is used again.
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
    """A server did not answer in time; the message names the reason."""


@dataclass
class Server:
    """One server; `busy` counts the requests in flight from here, `newest` is whether it has the last weights.

    `failure` is the reason of its last failure, empty while it is healthy.
    """

    url: str
    client: httpx.Client
    watch: Callable[[str, dict[str, Any]], None]
    alive: bool = False
    busy: int = 0
    newest: bool = False
    model: str = ""
    failure: str = ""

    def post(self, path: str, body: dict[str, Any] | None, seconds: float) -> Any:
        """The answer's JSON.

        Raises:
            ServerDied: no answer in time, or a server error.
            UserError: the server refuses the request.
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
        """Whether the server answers; sets `failure` if it does not."""
        try:
            for path in ("/health", "/v1/models"):
                answer = self.client.get(self.url + path, timeout=HEALTH_SECONDS)
                if answer.status_code != 200:
                    self.failure = f"{self.url} answers {path} with {answer.status_code}"
                    if answer.status_code == 401:
                        self.failure += f": {KEY} must be the same there and here"
                    return False
            self.model = str(answer.json()["data"][0]["id"])
            return True
        except (httpx.HTTPError, ValueError, KeyError, IndexError) as error:
            self.failure = f"{self.url} does not answer as a vLLM server ({type(error).__name__})"
        return False

    def complete(
        self, prompt: Sequence[int], sampling: Sampling, seed: int, ends: list[int], seconds: float
    ) -> list[dict[str, Any]]:
        """The choices of /v1/completions, in the order of the samples: token_ids, logprobs, finish_reason."""
        greedy = sampling.temperature == 0  # all samples are equal
        body = {
            "model": self.model, "prompt": list(prompt), "n": 1 if greedy else sampling.samples,
            "temperature": sampling.temperature, "top_p": 1.0 if greedy else sampling.top_p,
            "max_tokens": sampling.max_tokens, "seed": seed, "stop_token_ids": ends, "logprobs": 0,
            "return_token_ids": True, "skip_special_tokens": True,
            # The served model's generation config may set these.
            "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
        }  # fmt: skip
        choices = sorted(self.post("/v1/completions", body, seconds)["choices"], key=lambda choice: choice["index"])
        for choice in choices:
            if choice["finish_reason"] not in ("stop", "length"):
                raise ServerDied(f"{self.url} ended a response with {choice['finish_reason']!r}")
        return choices * sampling.samples if greedy else choices


class Connections:
    """The connections of a client, reported to `watch` by its "trace" extension."""

    def __init__(self) -> None:
        self.lock, self.streams = threading.Lock(), weakref.WeakSet[Any]()

    def watch(self, event: str, info: dict[str, Any]) -> None:
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            with self.lock:
                self.streams.add(info["return_value"])

    def close(self, client: httpx.Client) -> None:
        """Close the client and wake the threads that wait for an answer, by shutting down their sockets.

        A timeout cannot do it: an answer may rightly take minutes, and closing the client leaves a thread in its read.
        The sockets are duplicated before the client is closed and shut down after it, so that no thread that wakes can
        send another request.
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
        """Raises UserError: no server answers within `wait_seconds`."""
        self.params, self.lock = params, threading.Condition()
        # Without the environment's proxy: these are one's own machines.
        limits = httpx.Limits(max_connections=None)
        self.client = httpx.Client(trust_env=False, limits=limits, headers=login_headers())
        self.connections = Connections()
        self.servers = [Server(url.rstrip("/"), self.client, self.connections.watch) for url in params.urls]
        self.weights: str | None = None  # the folder that was sent last
        self.none_since: float | None = None  # when the last server alive was lost
        self.revive(wait=True)

    def hang_up(self) -> None:
        """End the requests in flight, which threads wait for; no request can follow."""
        self.connections.close(self.client)

    def alive(self) -> list[Server]:
        return [server for server in self.servers if server.alive]

    def take(self) -> Server:
        """The server with the fewest requests; waits until one is alive.

        Raises:
            UserError: no server came back within `wait_seconds` of the loss of the last one.
        """
        with self.lock:
            if not self.alive():
                self._revive(wait=True)
            server = min(self.alive(), key=lambda server: server.busy)
            server.busy += 1
            return server

    def give_back(self, server: Server) -> None:
        with self.lock:
            server.busy -= 1

    def died(self, server: Server, error: Exception) -> None:
        with self.lock:
            if server.alive:
                server.alive, server.newest, server.failure = False, False, str(error)
                others = len(self.alive())
                print(f"rollout: {error}; {others} other server(s) remain", file=sys.stderr, flush=True)

    def revive(self, wait: bool = False) -> None:
        """Check whether dead servers are back; with `wait`, until one is alive."""
        with self.lock:
            self._revive(wait)

    def _revive(self, wait: bool) -> None:
        announced = False
        while True:
            if self.none_since is not None and time.monotonic() > self.none_since + self.params.wait_seconds:
                raise self._no_server()  # at once for every waiting thread: their waits must not add up
            for server in self.servers:
                if not server.alive:
                    self._try(server)
            if self.alive():
                self.none_since = None
            if self.alive() or not wait:
                return
            self.none_since = self.none_since or time.monotonic()
            if not announced:
                print("rollout: no server is left; waiting for one", file=sys.stderr, flush=True)
                announced = True
            time.sleep(POLL_SECONDS)

    def _try(self, server: Server) -> None:
        last_failure = server.failure
        server.alive = server.healthy() and (self.weights is None or self._send(server))
        if server.alive:
            server.failure = ""
        elif server.failure != last_failure:
            print(f"rollout: {server.failure}", file=sys.stderr, flush=True)

    def _no_server(self) -> UserError:
        reasons = "; ".join(server.failure for server in self.servers)
        return UserError(
            f"no vLLM server can be used after {self.params.wait_seconds:g} s ({reasons}): start one with "
            "`mathrl serve MODEL --port PORT`, correct rollout.servers.urls, or raise "
            "rollout.servers.wait_seconds"
        )

    def sync_message(self) -> str:
        """The message for `follow` in another process: the newest weights and the servers that have them."""
        return json.dumps([self.weights, [server.url for server in self.alive()]])

    def follow(self, sync_message: str) -> None:
        """Use only the servers that took the weights of the process that sent them.

        One that the sender counted as dead may have older weights and seem healthy to this process.
        """
        with self.lock:
            self.weights, synced_urls = json.loads(sync_message)
            for server in self.servers:
                server.newest = server.url in synced_urls
                server.alive = server.newest and (server.alive or server.healthy())

    def send(self, folder: str) -> None:
        """Have every server alive read the folder's weights and drop its prefix cache.

        Raises:
            UserError: a server refuses, or none is left.
        """
        with self.lock:
            self.weights = folder
            for server in self.servers:
                server.newest = False
            self._revive(wait=False)
            outdated = [server for server in self.alive() if not server.newest]
            with ThreadPoolExecutor(max(1, len(outdated))) as workers:
                for server, accepted in zip(outdated, workers.map(self._send, outdated), strict=True):
                    server.alive = accepted
                    if not accepted:
                        print(f"rollout: {server.failure}", file=sys.stderr, flush=True)
            if not self.alive():
                self._revive(wait=True)

    def _send(self, server: Server) -> bool:
        seconds = self.params.timeout_seconds
        try:
            server.post("/collective_rpc", {"method": "read_weights", "args": [self.weights]}, seconds)
            if not server.post("/reset_prefix_cache?reset_running_requests=true", None, seconds)["success"]:
                raise ServerDied(f"{server.url} could not drop its prefix cache")
        except ServerDied as error:
            server.failure = (
                f"the weights were not accepted: {error}; if the server cannot see their folder, set "
                "rollout.servers.folder to one that it shares with this machine"
            )
            return False
        server.newest = True
        return True
