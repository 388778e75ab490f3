"""The vLLM servers of a run: their health and their weights; which server is next and which are dead.

A server that makes no progress with its requests, or has other weights than they are for, counts as dead, and they go
to the others. One that comes back receives the newest weights before it is used again.
"""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict

from mathrl.core.environment import named_servers
from mathrl.core.errors import UserError
from mathrl.params.rollout import Servers
from mathrl.servers.protocol import ServerState, write_states
from mathrl.servers.server import OtherWeights, SentWeights, Server, ServerDied

POLL_SECONDS = 1.0
WATCH_SECONDS = 15.0  # between two looks at the progress of servers with requests, at most


class ServerPool:
    """The servers of a run. Safe for many threads."""

    def __init__(
        self, params: Servers, urls: Sequence[str] = (), check_started: Callable[[], None] = lambda: None
    ) -> None:
        """Without `urls` the servers are those of $MATHRL_SERVERS, or of the parameters.

        `check_started` is called while no server answers, and raises UserError if none can.

        Raises UserError: no server answers within `wait_seconds`.
        """
        self.params, self.lock, self.check_started = params, threading.Condition(), check_started
        self.watch_lock, self.watching = threading.Lock(), False
        self.servers = [Server(url.rstrip("/")) for url in urls or named_servers(params.urls)]
        self.weights: SentWeights | None = None  # what was sent last
        self.replaced: SentWeights | None = None  # while it is sent: the weights before it
        self.sending = False  # within `send_by`
        # The weights of this digest, which a transfer has sent, as files; None where they cannot be written any more.
        self.as_files: Callable[[str], SentWeights | None] = lambda digest: None
        self.writing = threading.Lock()
        self.unwritable: tuple[str, UserError | None] = ("", None)  # the digest of such weights, and why
        self.none_since: float | None = None  # when the last server alive was lost
        self.starting = params.start > 0  # until the first of the stage's own servers answers
        self.revive(wait=True)

    def hang_up(self) -> None:
        """End the requests in flight, which threads wait for; no request can follow."""
        for server in self.servers:
            server.connections.cut(server.client)

    @contextmanager
    def watch(self, server: Server) -> Iterator[None]:
        """Within it a request: the server dies, and its requests break off, after `timeout_seconds` without progress.

        Progress is a piece of a response to this process, or a change of the server's own count of tokens: it may
        work for others first. Meanwhile dead servers are tried again.
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
        pause = min(WATCH_SECONDS, limit / 10)
        seen: dict[str, tuple[int, float | None, float]] = {}  # pieces, tokens, and when either last changed
        look = time.monotonic() + pause
        while True:
            time.sleep(min(POLL_SECONDS, pause))
            with self.watch_lock:
                asked = [server for server in self.servers if server.requests]
                self.watching = bool(asked)
            if not asked:
                return
            for server in self._dead():  # each by a thread of its own: one that hangs delays nobody
                if server.stuck:  # it may answer and hang again: not before the next sync, if there are others
                    continue
                threading.Thread(target=self._return, args=[server], name="server-return", daemon=True).start()
            if time.monotonic() < look:
                continue
            look = time.monotonic() + pause
            seen = {server.url: seen[server.url] for server in asked if server.url in seen}
            for server in asked:
                now = time.monotonic()
                pieces, tokens, since = seen.get(server.url, (-1, None, now))
                counted = server.tokens() if server.pieces == pieces else tokens
                if server.pieces != pieces or counted not in (None, tokens):
                    seen[server.url] = (server.pieces, counted, now)
                elif now - since > limit:
                    server.stuck = True
                    self.died(server, ServerDied(f"{server.url} made no progress for {limit:g} s"))
                    server.connections.cut()

    def alive(self) -> list[Server]:
        return [server for server in self.servers if server.alive]

    def _dead(self) -> list[Server]:
        return [server for server in self.servers if not server.alive and not server.returning]

    def digests(self) -> list[str]:
        """The digests of the weights that a request may be answered from: the newest ones, and those before them
        while the newest are being sent."""
        with self.lock:
            return [weights.digest for weights in (self.weights, self.replaced) if weights]

    @property
    def has_adapter(self) -> bool:
        """Whether the newest weights are an adapter and what it is added to."""
        return self.weights is not None and self.weights.base is not None

    def take(self) -> Server:
        """The server with the fewest requests; waits until one is alive and has fewer than `at_a_time`.

        Raises:
            UserError: no server came back within `wait_seconds` of the loss of the last one.
        """
        while True:
            with self.lock:
                while self.sending:
                    self.lock.wait(POLL_SECONDS)
                free = [server for server in self.alive() if server.busy < self.params.at_a_time]
                if free:
                    server = min(free, key=lambda server: server.busy)
                    server.busy += 1
                    return server
                if self.alive():
                    self.lock.wait(POLL_SECONDS)
                    continue
            self.revive(wait=True)

    def give_back(self, server: Server) -> None:
        with self.lock:
            server.busy -= 1
            self.lock.notify()

    def died(self, server: Server, error: Exception) -> None:
        """The server is used no more until it answers again; a request for weights that were replaced since says
        nothing about it."""
        with self.lock:
            if isinstance(error, OtherWeights):
                while self.sending:
                    self.lock.wait(POLL_SECONDS)
                if self.weights is not None and self.weights.digest not in error.wanted:
                    return
            if server.alive:
                server.alive, server.failure = False, str(error)
                others = len(self.alive())
                print(f"rollout: {error}; {others} other server(s) remain", file=sys.stderr, flush=True)
                self._note_states()

    def revive(self, wait: bool = False) -> None:
        """Check whether dead servers are back; with `wait`, until one is alive.

        Raises:
            UserError: none was within `wait_seconds`, for every waiting thread at once; `check_started` raised it; or
                `hang_up` was called.
        """
        while True:
            if dead := self._dead():
                with ThreadPoolExecutor(len(dead)) as workers:
                    list(workers.map(self._return, dead))
            with self.lock:
                if self.alive():
                    self.none_since, self.starting = None, False
                if self.alive() or not wait:
                    return
                if all(server.client.is_closed for server in self.servers):  # by `hang_up`: nobody waits for this
                    raise self._no_server()
                if self.none_since is None:
                    self.none_since = time.monotonic()
                    why = f"{len(self.servers)} vLLM server(s) start" if self.starting else "no server is left"
                    print(f"rollout: {why}; waiting for one", file=sys.stderr, flush=True)
                if time.monotonic() > self.none_since + self.params.wait_seconds:
                    raise self._no_server()
            self.check_started()
            time.sleep(POLL_SECONDS)

    def _return(self, server: Server) -> None:
        """Use a dead server again if it answers, and takes the newest weights unless it has them."""
        with self.lock:
            if server.alive or server.returning or server.client.is_closed:
                return
            server.returning, last_failure = True, server.failure
        back = False
        try:
            while True:
                wanted = self.weights
                back = server.healthy() and (wanted is None or server.digest == wanted.digest or self._send(server))
                with self.lock:
                    if back and self.weights is not wanted:
                        continue  # others were sent meanwhile
                    server.alive = back
                    if back:
                        server.failure, server.stuck = "", False
                    elif server.failure != last_failure and not self.starting:
                        print(f"rollout: {server.failure}", file=sys.stderr, flush=True)
                    self._note_states()
                    return
        finally:
            with self.lock:
                server.returning = False
                self.lock.notify_all()

    def _no_server(self) -> UserError:
        reasons = "; ".join(server.failure for server in self.servers)
        remedy = (
            "see their logs in the folder servers of the run's record"
            if self.params.start
            else "start one with `mathrl serve MODEL --port PORT`, correct rollout.servers.urls"
        )
        return UserError(
            f"no vLLM server can be used after {self.params.wait_seconds:g} s ({reasons}): {remedy}, or raise "
            "rollout.servers.wait_seconds"
        )

    def sync_message(self) -> str:
        """The message for `follow` in another process: the newest weights and the servers that have them."""
        assert self.weights is not None
        return json.dumps([asdict(self.weights), [server.url for server in self.alive()]])

    def follow(self, sync_message: str) -> None:
        """Use the servers that took the weights of the process that sent them.

        One that the sender counted as dead may have older weights; it is used as soon as it has taken these.
        """
        weights, synced_urls = json.loads(sync_message)
        base = weights.pop("base")
        with self.lock:
            self.weights = SentWeights(**weights, base=SentWeights(**base) if base else None)
            for server in self.servers:
                server.alive = server.alive and server.url in synced_urls
        lost = [server for server in self._dead() if server.url in synced_urls]
        with ThreadPoolExecutor(len(self.servers)) as workers:
            list(workers.map(self._return, lost))

    def send(self, weights: SentWeights) -> None:
        """Have every server alive read the weights and drop its prefix cache.

        Raises:
            UserError: a server refuses, or none is left.
        """
        with self.lock:
            self.weights, self.replaced = weights, self.weights
            outdated = self.alive()
        with ThreadPoolExecutor(len(self.servers)) as workers:
            returned = [workers.submit(self._return, server) for server in self._dead()]
            for server, accepted in zip(outdated, workers.map(self._send, outdated), strict=True):
                if not accepted:
                    with self.lock:
                        server.alive = False
                    print(f"rollout: {server.failure}", file=sys.stderr, flush=True)
            for future in returned:
                future.result()
        with self.lock:
            self.replaced = None
            self._note_states()
        if not self.alive():
            self.revive(wait=True)

    def send_by(self, transfer: Callable[[list[Server]], tuple[str, dict[str, str]]]) -> None:
        """Have `transfer` bring weights to every server that answers; no request of this process begins meanwhile.

        `transfer` gives the digest of what it sent, and why a server failed, by address. That one, or one that is lost
        later, gets them as files (`as_files`), or at the next call.

        Raises:
            UserError: no server took the weights, and none came back in time to read them as files.
        """
        with self.lock:
            self.sending = True
        try:
            with ThreadPoolExecutor(len(self.servers)) as workers:  # each says which process it is now
                answers = list(workers.map(Server.healthy, self.servers))
            servers = [server for server, answered in zip(self.servers, answers, strict=True) if answered]
            digest, failures = transfer(servers)
        finally:
            with self.lock:
                self.sending = False
                self.lock.notify_all()
        with self.lock:
            self.weights = SentWeights("", digest)
            for server in self.servers:
                before, server.failure = server.alive, failures.get(server.url, server.failure)
                server.alive = server in servers and server.url not in failures
                server.stuck = server.stuck and not server.alive
                if before and not server.alive:
                    print(f"rollout: the weights were not accepted: {server.failure}", file=sys.stderr, flush=True)
            self._note_states()
        if self.alive():
            return
        if not self._readable().folder:
            reasons = "; ".join(server.failure for server in self.servers)
            raise UserError(
                f"no vLLM server took the weights ({reasons}): restart the servers and resume the run, or set "
                "rollout.servers.weights to files"
            )
        self.revive(wait=True)

    def _readable(self) -> SentWeights:
        """The newest weights; those of a transfer as files, written where a server needs them, if they can be.

        Raises:
            UserError: the files cannot be written.
        """
        with self.writing:
            weights = self.weights
            assert weights is not None
            if weights.folder:
                return weights
            digest, reason = self.unwritable
            if digest == weights.digest:
                if reason is not None:
                    raise reason
                return weights
            try:
                written = self.as_files(weights.digest)
            except UserError as error:
                self.unwritable = (weights.digest, error)
                raise
            if written is None:
                self.unwritable = (weights.digest, None)
                return weights
            with self.lock:
                if self.weights == weights:
                    self.weights = written
            return written

    def _send(self, server: Server) -> bool:
        try:
            weights = self._readable()
        except UserError as error:
            server.failure = f"{server.url} has no weights since it was lost: {error}"
            return False
        if not weights.folder:
            server.failure = (
                f"{server.url} has no weights since it was lost: they are sent to it at the next sync, "
                f"as rollout.servers.weights is not files"
            )
            return False
        try:
            server.load(weights, self.params.timeout_seconds)
        except ServerDied as error:
            server.failure = (
                f"the weights were not accepted: {error}; if the server cannot see their folder, set "
                "rollout.servers.folder to one that it shares with this machine"
            )
            return False
        return True

    def _note_states(self) -> None:
        write_states(
            [
                ServerState(server.url, server.alive, server.generation, server.digest, server.failure)
                for server in self.servers
            ]
        )
