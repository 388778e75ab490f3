"""Several servers as one client of vLLM's weight transfer (`VLLMWeightSyncClient`): a call goes to all at once."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from mathrl.core.errors import UserError
from mathrl.servers.gpu_handles import handles_as_json
from mathrl.servers.server import SentWeights, Server, ServerDied
from mathrl.servers.vllm_login import FINISH, INIT, START, UPDATE


class TransferClient:
    """vLLM's trainer engine drives an update by these methods.

    A server that fails takes no further part, and no call raises for it: the others, and the ranks that gather the
    weights together, come to the end. `failures` has its reason, by address. `digest` gives that of what was sent.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        seconds: float,
        digest: Callable[[], str],
        on_failure: Callable[[Server], None] = lambda server: None,
    ) -> None:
        self.servers, self.seconds, self.digest, self.on_failure = list(servers), seconds, digest, on_failure
        self.failures: dict[str, str] = {}

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._all(lambda server: self._post(server, INIT, {"init_info": init_info}))

    def start_weight_update(self) -> None:
        self._all(lambda server: self._post(server, START, {}))

    def update_weights(self, update_info: dict[str, Any]) -> None:
        body = {"update_info": without_pickle(update_info)}
        self._all(lambda server: self._post(server, UPDATE, body))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """`weight_version` is not used: the digest is the version."""
        self._all(lambda server: self._post(server, FINISH, {}))
        sent = SentWeights("", self.digest())
        self._all(lambda server: server.load(sent, self.seconds))

    def fail(self, server: Server, reason: str) -> None:
        """The server takes no further part."""
        self.failures[server.url] = reason
        self.on_failure(server)

    def alive(self) -> list[Server]:
        return [server for server in self.servers if server.url not in self.failures]

    def _post(self, server: Server, path: str, body: dict[str, Any]) -> None:
        server.post(path, body, self.seconds)

    def _all(self, call: Callable[[Server], None]) -> None:
        servers = self.alive()
        if not servers:
            return
        with ThreadPoolExecutor(len(servers)) as threads:
            list(threads.map(lambda server: self._attempt(server, call), servers))

    def _attempt(self, server: Server, call: Callable[[Server], None]) -> None:
        try:
            call(server)
        except (ServerDied, UserError) as error:
            self.fail(server, str(error))


def without_pickle(update_info: Mapping[str, Any]) -> dict[str, Any]:
    """What vLLM's engine sends per update, with handles of GPU memory as JSON."""
    handles = update_info.get("ipc_handles")
    return {**update_info, "ipc_handles": handles_as_json(handles)} if handles else dict(update_info)
