"""Asks a vLLM server how it is: whether it answers, as which process, and with which weights. Without torch."""

from collections.abc import Callable
from dataclasses import dataclass

import httpx

from mathrl.servers.server_states import ServerState
from mathrl.servers.vllm_login import KEY, PATH, login_headers

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
    except (httpx.HTTPError, RuntimeError, ValueError, KeyError, IndexError, TypeError) as error:
        # RuntimeError: the client was closed meanwhile.
        return failed_answer(f"{url} does not answer as a vLLM server ({type(error).__name__})")


def state_of(url: str) -> ServerState:
    """The state of the server at the address."""
    with httpx.Client(trust_env=False, headers=login_headers(), timeout=SECONDS) as client:
        return ask_server(url, lambda path: client.get(url + path)).state
