"""The vLLM servers of a run: their health and their weights; which server is next and which are dead.

A server that makes no progress with its requests counts as dead and they go to the others. One that comes back
receives the newest weights before it is used again.
"""

import json
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from mathrl.core.environment import Variable
from mathrl.core.errors import UserError
from mathrl.params.rollout import Servers
from mathrl.rollout.server import Server, ServerDied

POLL_SECONDS = 1.0
WATCH_SECONDS = 15.0  # between two looks at the progress of servers with requests, at most


class Pool:
    """The servers of a run. Safe for many threads."""

    def __init__(self, params: Servers) -> None:
        """Raises UserError: no server answers within `wait_seconds`."""
        self.params, self.lock = params, threading.Condition()
        self.watch_lock, self.watching = threading.Lock(), False
        urls = Variable.SERVERS.get().split(",") if Variable.SERVERS.get() else params.urls
        self.servers = [Server(url.rstrip("/")) for url in urls]
        self.weights: str | None = None  # the folder that was sent last
        self.none_since: float | None = None  # when the last server alive was lost
        self.revive(wait=True)

    def hang_up(self) -> None:
        """End the requests in flight, which threads wait for; no request can follow."""
        for server in self.servers:
            server.connections.cut(server.client)

    @contextmanager
    def watched(self, server: Server) -> Iterator[None]:
        """Within it a request: the server dies, and its requests break off, after `timeout_seconds` without progress.

        Progress is a piece of a response to this process, or a change of the server's own count of tokens: it may
        work for others first.
        """
        with self.watch_lock:
            server.requests += 1
            if not self.watching:
                self.watching = True
                threading.Thread(target=self._watch, name="server-watch", daemon=True).start()
        try:
            yield
        finally:
            with self.watch_lock:
                server.requests -= 1

    def _watch(self) -> None:
        """Look at the servers until none has a request."""
        limit = self.params.timeout_seconds
        seen: dict[str, tuple[int, float | None, float]] = {}  # pieces, tokens, and when either last changed
        while True:
            time.sleep(min(WATCH_SECONDS, limit / 10))
            with self.watch_lock:
                asked = [server for server in self.servers if server.requests]
                self.watching = bool(asked)
            if not asked:
                return
            seen = {server.url: seen[server.url] for server in asked if server.url in seen}
            for server in asked:
                now = time.monotonic()
                pieces, tokens, since = seen.get(server.url, (-1, None, now))
                counted = server.tokens() if server.pieces == pieces else tokens
                if server.pieces != pieces or counted not in (None, tokens):
                    seen[server.url] = (server.pieces, counted, now)
                elif now - since > limit:
                    self.died(server, ServerDied(f"{server.url} made no progress for {limit:g} s"))
                    server.connections.cut()

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
