"""What runs and vLLM servers say to one another: the login, headers and paths, and how a server is. Without torch.

A server that other machines can reach asks for a key with every request: vLLM's own `--api-key` leaves the endpoints
open through which weights are replaced. What a running stage saw of its servers last is servers.json in its record,
written by rank 0, shown by Prefect and doctor.
"""

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx

from mathrl.core.environment import Variable, rank
from mathrl.core.files import write_json
from mathrl.core.request_origin import Application, Message, Receive, Send

KEY = Variable.SERVE_KEY  # set for `mathrl serve` and for the runs that sample from it


def login_headers() -> dict[bytes, bytes]:
    """The headers of each request; empty without a key. A secret that is mounted or piped often ends in a newline."""
    key = KEY.get().strip()
    return {b"authorization": f"Bearer {key}".encode()} if key else {}


class Login:
    """ASGI middleware: answers 401 to a request without the key, /health included."""

    def __init__(self, app: Application) -> None:
        self.app = app
        self.wanted = login_headers()[b"authorization"]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            login = dict(scope["headers"]).get(b"authorization", b"")
            if not secrets.compare_digest(login, self.wanted):
                if scope["type"] == "http":
                    start = {"type": "http.response.start", "status": 401, "headers": []}
                    await send(start)
                    await send({"type": "http.response.body", "body": f"no {KEY}, or another".encode()})
                return
        await self.app(scope, receive, send)


PATH = "/mathrl/weights"  # GET: state; POST: the fields of `SentWeights`, which replaces the weights
# vLLM's own, by which weights come that are no files.
INIT, START, UPDATE = "/init_weight_transfer_engine", "/start_weight_update", "/update_weights"
FINISH = "/finish_weight_update"
GENERATION, WEIGHTS = "x-mathrl-generation", "x-mathrl-weights"  # headers of answers; the second of requests too
HAS_OTHERS, NOT_AS_SENT, FAILED = 412, 409, 500
ADAPTER = "mathrl-adapter"  # the name of the model with an adapter, in requests
FILE = "servers.json"


@dataclass(frozen=True)
class ServerState:
    """Example: ServerState("http://127.0.0.1:8001", alive=True, generation=3181744263, weights="9f86d081", failure="").

    `generation` is the number of the server's process, `weights` the digest of its weights, empty before a sync.
    """

    url: str
    alive: bool
    generation: int
    weights: str
    failure: str


def write_states(servers: Sequence[ServerState]) -> None:
    """Note the servers beside the running stage's record, if this process is rank 0 of a stage."""
    folder = Variable.RECORD.get()
    if not folder or rank() != 0:
        return
    write_json(Path(folder) / FILE, [asdict(server) for server in servers])


def read_states(record: Path) -> list[ServerState]:
    """The servers of the run with this record; none if it samples from no servers."""
    try:
        rows = json.loads((record / FILE).read_text())
    except FileNotFoundError:
        return []
    return [ServerState(**row) for row in rows]


def servers_text(servers: Sequence[ServerState]) -> str:
    """
    >>> servers_text([ServerState("a", True, 5, "9f86", ""), ServerState("b", False, 7, "", "a does not answer")])
    '; 1 of 2 servers live'
    """
    return f"; {sum(server.alive for server in servers)} of {len(servers)} servers live" if servers else ""


def state_text(server: ServerState) -> str:
    """
    >>> state_text(ServerState("http://127.0.0.1:8001", True, 3181744263, "9f86d081", ""))
    'http://127.0.0.1:8001 is live (generation 3181744263, weights 9f86d081)'
    """
    if not server.alive:
        failure = server.failure or "not live"
        return failure if server.url in failure else f"{server.url}: {failure}"
    return f"{server.url} is live (generation {server.generation}, weights {server.weights or 'not sent yet'})"


SECONDS = 5.0
Get = Callable[[str], httpx.Response]  # the answer to GET of a path


@dataclass(frozen=True)
class ServerAnswer:
    """How a server is, the name of its model, and the largest rank of an adapter that it takes (0: none).

    `transfer` is how weights can come besides files ("nccl", "ipc" or empty), `gpus` the UUIDs of its workers' GPUs.
    """

    state: ServerState
    model: str = ""
    adapters: int = 0
    transfer: str = ""
    gpus: tuple[str, ...] = ()


def ask_server(url: str, get: Get) -> ServerAnswer:
    """What the server says itself; its state's `failure` says why it cannot be used."""

    def failed_answer(failure: str) -> ServerAnswer:
        return ServerAnswer(ServerState(url, False, 0, "", failure))

    try:
        for path in ("/health", PATH, "/v1/models"):
            answer = get(path)
            if answer.status_code != 200:
                hints = {401: f": {KEY} must be the same there and here", 404: ": start it with `mathrl serve`"}
                return failed_answer(
                    f"{url} answers {path} with {answer.status_code}{hints.get(answer.status_code, '')}"
                )
            if path == PATH:
                server_state = answer.json()
        state = ServerState(url, True, int(server_state["generation"]), server_state["weights"], "")
        name = answer.json()["data"][0]["id"]
        return ServerAnswer(
            state, name, server_state["adapters"], server_state["transfer"], tuple(server_state["gpus"])
        )
    except (httpx.HTTPError, httpx.InvalidURL, RuntimeError, ValueError, KeyError, IndexError, TypeError) as error:
        # RuntimeError: the client was closed meanwhile.
        return failed_answer(f"{url} does not answer as a vLLM server ({type(error).__name__})")


def state_of(url: str) -> ServerState:
    with httpx.Client(trust_env=False, headers=login_headers(), timeout=SECONDS) as client:
        return ask_server(url, lambda path: client.get(url + path)).state
