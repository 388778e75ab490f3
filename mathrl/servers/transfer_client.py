"""Several servers as one client of vLLM's weight transfer (`VLLMWeightSyncClient`), and handles of GPU memory as JSON.

A call goes to all servers at once. vLLM would pickle the handles that another process may open (CUDA IPC) for HTTP: a
handle is the arguments of torch's `rebuild_cuda_tensor` (torch/multiprocessing/reductions.py), by the physical GPU's
UUID: classes and a dtype, which are named, and numbers and bytes.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from mathrl.core.errors import UserError
from mathrl.servers.protocol import FINISH, INIT, START, UPDATE
from mathrl.servers.server import SentWeights, Server, ServerDied

CLASSES: dict[str, Any] = {
    kind.__name__: kind for kind in (torch.Tensor, torch.nn.Parameter, torch.UntypedStorage, torch.storage.TypedStorage)
}
DTYPES: dict[str, Any] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
        torch.float64,
    )
}  # fmt: skip


def handles_as_json(handles: Mapping[str, tuple[Any, ...]]) -> dict[str, list[Any]]:
    """Handles by GPU, such as {"GPU-5f…": (torch.Tensor, (64,), …, b"…")}, as values that JSON has."""
    return {gpu: [_as_json(value) for value in arguments] for gpu, arguments in handles.items()}


def handles_from_json(handles: Mapping[str, list[Any]]) -> dict[str, tuple[Any, ...]]:
    """The handles again; raises ValueError: a class or a dtype is none of those that torch's handles have."""
    return {gpu: tuple(_from_json(value) for value in arguments) for gpu, arguments in handles.items()}


def _as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, type):
        return {"class": value.__name__}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, (tuple, torch.Size)):
        return {"tuple": [int(item) for item in value]}
    if isinstance(value, torch.device):
        return value.index
    return value


def _from_json(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "bytes":
        return base64.b64decode(content, validate=True)
    if kind == "tuple":
        return tuple(int(item) for item in content)
    tables: dict[str, dict[str, Any]] = {"class": CLASSES, "dtype": DTYPES}
    table = tables.get(kind, {})
    if content not in table:
        raise ValueError(f"a handle of GPU memory has the {kind} {content!r}, which torch's handles never have")
    return table[content]


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
        self._all(lambda server: server.post(INIT, {"init_info": init_info}, self.seconds))

    def start_weight_update(self) -> None:
        self._all(lambda server: server.post(START, {}, self.seconds))

    def update_weights(self, update_info: dict[str, Any]) -> None:
        handles = update_info.get("ipc_handles")
        body = {"update_info": {**update_info, "ipc_handles": handles_as_json(handles)} if handles else update_info}
        self._all(lambda server: server.post(UPDATE, body, self.seconds))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """`weight_version` is not used: the digest is the version."""
        self._all(lambda server: server.post(FINISH, {}, self.seconds))
        sent = SentWeights("", self.digest())
        self._all(lambda server: server.load(sent, self.seconds))

    def fail(self, server: Server, reason: str) -> None:
        """The server takes no further part."""
        self.failures[server.url] = reason
        self.on_failure(server)

    def alive(self) -> list[Server]:
        return [server for server in self.servers if server.url not in self.failures]

    def _all(self, call: Callable[[Server], object]) -> None:
        servers = self.alive()
        if not servers:
            return
        with ThreadPoolExecutor(len(servers)) as threads:
            list(threads.map(lambda server: self._attempt(server, call), servers))

    def _attempt(self, server: Server, call: Callable[[Server], object]) -> None:
        try:
            call(server)
        except (ServerDied, UserError) as error:
            self.fail(server, str(error))
