"""One vLLM server over HTTP: is it healthy, how far is it, and responses in pieces."""

import json
import os
import socket
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx

from mathrl.core.errors import UserError
from mathrl.servers.protocol import HAS_OTHERS, NOT_AS_SENT, PATH, SECONDS, WEIGHTS, ask_server, login_headers

CONNECT_SECONDS = 30.0
PIECE_TOKENS = 256  # of a response per message, which bounds a message's size
TOKEN_COUNTERS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")  # of GET /metrics


class ServerDied(Exception):
    """A server did not answer in time or made no progress; the message names the reason."""


class OtherWeights(ServerDied):
    """A server has none of the weights that a request is for, whose digests are `wanted`.

    It was restarted or missed a sync, or new weights came to it before the request did.
    """

    def __init__(self, message: str, wanted: Sequence[str]) -> None:
        super().__init__(message)
        self.wanted = wanted


@dataclass(frozen=True)
class SentWeights:
    """Weights as servers read them: a folder of safetensors files, and the digest of what is in it.

    Without a folder they are those that vLLM's own transfer brought to the server just before.
    With `base` the folder has an adapter in peft's format, the digest is `adapter_digest`, and base the weights that it
    is added to.
    """

    folder: str
    digest: str
    base: "SentWeights | None" = None


@dataclass
class Choice:
    """A response as its pieces come."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def add(self, piece: dict[str, Any]) -> None:
        self.token_ids += piece["token_ids"]
        self.logprobs += piece["logprobs"]["token_logprobs"]
        self.finish_reason = piece["finish_reason"] or self.finish_reason
        self.stop_reason = self.stop_reason if piece.get("stop_reason") is None else piece["stop_reason"]


class Server:
    """One server; `busy` counts the prompts that it was taken for.

    `failure` is the reason of its last failure, empty while it is healthy; `stuck` is set where that was a lack of
    progress, and `returning` while it is tried again. `generation` is the number of its process
    and `digest` that of its weights, as it last said; `adapters`, `transfer` and `gpus` are as in `ServerAnswer`.
    `requests` are in flight from here, and `pieces` counts the messages of responses that came.
    """

    def __init__(self, url: str) -> None:
        self.url, self.model, self.failure = url, "", ""
        self.generation, self.adapters, self.digest = 0, 0, ""
        self.transfer, self.gpus = "", tuple[str, ...]()
        self.alive = self.stuck = self.returning = False
        self.busy = self.requests = self.pieces = 0
        # Without the environment's proxy: these are one's own machines.
        limits = httpx.Limits(max_connections=None)
        self.client = httpx.Client(trust_env=False, limits=limits, headers=login_headers())
        self.connections = Connections()

    def load(self, weights: SentWeights, seconds: float) -> None:
        """Have the server read the weights, and drop what it has cached of others.

        Raises:
            ServerDied: no answer in time, a server error, or it has read something else than was sent.
            UserError: the server refuses the request.
        """
        self._note(self.post(PATH, asdict(weights), seconds).json())

    def post(self, path: str, body: dict[str, Any], seconds: float) -> httpx.Response:
        """The answer to a request that changes the server; raises as `load` does."""
        extensions, generation = self.connections.trace, self.generation
        try:
            answer = self.client.post(self.url + path, json=body, timeout=seconds, extensions=extensions)
        except httpx.TimeoutException:
            raise ServerDied(f"{self.url} did not answer {path} within {seconds:g} s") from None
        except httpx.HTTPError as error:
            raise ServerDied(f"{self.url} broke off {path} ({type(error).__name__})") from None
        self._check(path, answer, generation)
        return answer

    def _check(self, path: str, answer: httpx.Response, generation: int, wanted: Sequence[str] = ()) -> None:
        """Raise if the answer is an error; the server had this `generation` when it was asked."""
        if answer.status_code == HAS_OTHERS:
            self._note(answer.json())
            if generation != self.generation:
                reason = f"was restarted (generation {generation}, now {self.generation})"
            else:
                reason = f"has other weights ({self.digest or 'none since its start'})"
            raise OtherWeights(f"{self.url} {reason}", wanted)
        if answer.status_code >= 500 or answer.status_code == NOT_AS_SENT:
            raise ServerDied(f"{self.url} answered {path} with {answer.status_code}: {answer.text[:300]}")
        if answer.status_code >= 400:
            hint = "; start it with `mathrl serve`" if answer.status_code == 404 else ""
            raise UserError(f"{self.url} refuses {path} with {answer.status_code}: {answer.text[:300]}{hint}")

    def _note(self, state: dict[str, Any]) -> None:
        self.generation, self.digest = int(state["generation"]), str(state["weights"])

    def healthy(self) -> bool:
        """Whether the server answers, as which process and with which weights; sets `failure` if it does not."""
        answer = ask_server(self.url, self._get)
        state, self.model, self.adapters = answer.state, answer.model, answer.adapters
        self.transfer, self.gpus = answer.transfer, answer.gpus
        self.failure = state.failure
        if state.alive:
            self.generation, self.digest = state.generation, state.weights
        return state.alive

    def _get(self, path: str) -> httpx.Response:
        return self.client.get(self.url + path, timeout=SECONDS, extensions=self.connections.trace)

    def tokens(self) -> float | None:
        """How many tokens the server has read and generated since its start; None where it does not say."""
        try:
            answer = self._get("/metrics")
        except httpx.HTTPError:
            return None
        lines = answer.text.splitlines() if answer.status_code == 200 else []
        counts = [float(line.split()[-1]) for line in lines if line.startswith(TOKEN_COUNTERS)]
        return sum(counts) if counts else None

    def complete(self, request: dict[str, Any], choices: int, weights: Sequence[str] = ()) -> list[Choice]:
        """The responses of /v1/completions, in the order of the samples, from weights with one of these digests.

        Without `weights` any will do. The responses come in pieces of `PIECE_TOKENS`. No time limits a request, which
        may wait in the server's queue: within `ServerPool.watch` one whose server makes no progress is broken off.

        Raises:
            OtherWeights: the server has none of the weights.
            ServerDied: the server broke the request off.
            UserError: the server refuses the request.
        """
        body = request | {"stream": True, "stream_interval": PIECE_TOKENS}
        answers = [Choice() for _ in range(choices)]
        for piece in self._pieces("/v1/completions", body, weights):
            if "choices" not in piece:
                raise ServerDied(f"{self.url} ended a response with {str(piece)[:300]}")
            for part in piece["choices"]:
                answers[part["index"]].add(part)
        for answer in answers:
            if answer.finish_reason not in ("stop", "length"):
                raise ServerDied(f"{self.url} ended a response with {answer.finish_reason!r}")
        return answers

    def _pieces(self, path: str, body: dict[str, Any], weights: Sequence[str]) -> Iterator[dict[str, Any]]:
        """The messages of a streamed answer (server-sent events)."""
        headers, timeout = {WEIGHTS: ",".join(weights)} if weights else {}, httpx.Timeout(None, connect=CONNECT_SECONDS)
        generation = self.generation
        options: Any = {"headers": headers, "timeout": timeout, "extensions": self.connections.trace}
        try:
            with self.client.stream("POST", self.url + path, json=body, **options) as answer:
                if answer.status_code >= 400:
                    answer.read()
                    self._check(path, answer, generation, weights)
                rest = b""
                for received in answer.iter_bytes():
                    # Not iter_lines, which also ends a line at U+2028 and the like: vLLM writes them as they are.
                    *lines, rest = (rest + received).split(b"\n")
                    for line in lines:
                        if line.startswith(b"data: {"):
                            self.pieces += 1
                            yield json.loads(line.removeprefix(b"data: "))
        except httpx.HTTPError as error:
            raise ServerDied(f"{self.url} broke off {path} ({type(error).__name__})") from None


class Connections:
    """The connections of a client, reported by the "trace" extension of its requests."""

    def __init__(self) -> None:
        self.lock, self.streams = threading.Lock(), weakref.WeakSet[Any]()
        self.trace = {"trace": self._watch}

    def _watch(self, event: str, info: dict[str, Any]) -> None:
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            with self.lock:
                self.streams.add(info["return_value"])

    def cut(self, client: httpx.Client | None = None) -> None:
        """Wake the threads that wait for an answer, by shutting down their sockets; with `client` close it too.

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
        if client is not None:
            client.close()
        for copy in copies:
            with suppress(OSError), copy:
                copy.shutdown(socket.SHUT_RDWR)
