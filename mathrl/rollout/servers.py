"""vLLM servers over HTTP: one request, health, weights; which server is next, which are dead.

A server that does not answer, or not in time, counts as dead and its requests go to the others. One that is
back is given the newest weights before it is used again.
"""

import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx

from mathrl.core.errors import UserError
from mathrl.params.rollout import Servers
from mathrl.rollout.engine import Sampling
from mathrl.rollout.vllm_login import login_headers

HEALTH_SECONDS = 5.0
POLL_SECONDS = 1.0


class ServerDied(Exception):
    """A server did not answer, or not in time; str() says how."""


@dataclass
class Server:
    """One server; `busy` requests are in flight from here, `newest` says whether it has the last weights."""

    url: str
    client: httpx.Client
    alive: bool = False
    busy: int = 0
    newest: bool = False
    model: str = ""

    def post(self, path: str, body: dict[str, Any] | None, seconds: float) -> Any:
        """The answer's JSON.

        Raises:
            ServerDied: no answer in time, or one that says that the server is broken.
            UserError: it refuses the request.
        """
        try:
            answer = self.client.post(self.url + path, json=body, timeout=seconds)
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
        try:
            if self.client.get(self.url + "/health", timeout=HEALTH_SECONDS).status_code != 200:
                return False
            listed = self.client.get(self.url + "/v1/models", timeout=HEALTH_SECONDS).json()
            self.model = str(listed["data"][0]["id"])
        except (httpx.HTTPError, ValueError, KeyError, IndexError):
            return False
        return True

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
        choices = sorted(
            self.post("/v1/completions", body, seconds)["choices"], key=lambda each: each["index"]
        )
        return choices * sampling.samples if greedy else choices


class Pool:
    """The servers of a run. Safe for many threads."""

    def __init__(self, params: Servers) -> None:
        """Raises UserError: none of them is there within `wait_seconds`."""
        self.params, self.lock = params, threading.Condition()
        # No proxy of the environment's: these are one's own machines.
        limits = httpx.Limits(max_connections=None)
        self.client = httpx.Client(trust_env=False, limits=limits, headers=login_headers())
        self.servers = [Server(url.rstrip("/"), self.client) for url in params.urls]
        self.weights: str | None = None  # the folder that was sent last
        self.revive(wait=True)

    def alive(self) -> list[Server]:
        return [server for server in self.servers if server.alive]

    def take(self) -> Server:
        """The idlest server that lives; waits for one.

        Raises:
            UserError: none came back within `wait_seconds`.
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
                server.alive = server.newest = False
                others = len(self.alive())
                print(f"rollout: {why}; {others} other server(s) go on", file=sys.stderr, flush=True)

    def revive(self, wait: bool = False) -> None:
        """Look whether dead servers are back; with `wait`, until one lives."""
        with self.lock:
            self._revive(wait)

    def _revive(self, wait: bool) -> None:
        deadline, told = time.monotonic() + self.params.wait_seconds, False
        while True:
            for server in self.servers:
                if not server.alive and server.healthy():
                    server.alive = self.weights is None or self._send(server)
            if not wait or self.alive():
                return
            names = ", ".join(server.url for server in self.servers)
            if time.monotonic() > deadline:
                raise UserError(
                    f"no vLLM server answers ({names}) after {self.params.wait_seconds:g} s: start one with "
                    "`mathrl serve MODEL --port PORT`, correct rollout.servers.urls, or raise "
                    "rollout.servers.wait_seconds"
                )
            if not told:
                print(f"rollout: no server answers ({names}); waiting", file=sys.stderr, flush=True)
                told = True
            time.sleep(POLL_SECONDS)

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
            if not self.alive():
                self._revive(wait=True)

    def _send(self, server: Server) -> bool:
        seconds = self.params.timeout_seconds
        try:
            server.post("/collective_rpc", {"method": "read_weights", "args": [self.weights]}, seconds)
            if not server.post("/reset_prefix_cache?reset_running_requests=true", None, seconds)["success"]:
                raise ServerDied(f"{server.url} could not forget its prefix cache")
        except ServerDied as error:
            print(f"rollout: weights were not taken: {error}", file=sys.stderr, flush=True)
            return False
        server.newest = True
        return True
