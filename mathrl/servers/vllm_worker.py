"""Added to a vLLM server's workers: new weights, from a folder of safetensors files or by vLLM's own transfer."""

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine
from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

import mathrl.servers.vllm_worker  # noqa: F401  # registers its engines with vLLM
from mathrl.core.guard import die_with_parent
from mathrl.models.weights import WeightDigest, folder_weights, with_head
from mathrl.servers.transfer_client import handles_from_json
from mathrl.servers.vllm_arguments import TRANSFER_BACKENDS


class Counted:
    """Mixed into a `WeightTransferEngine`: `total` is the digest of what an update brings.

    `incomplete` is set within an update, and stays so where one breaks off.
    """

    total = WeightDigest()
    incomplete = False

    def start_weight_update(self: Any) -> None:
        self.incomplete, self.total = True, WeightDigest()
        super().start_weight_update()  # type: ignore[misc]

    def finish_weight_update(self: Any) -> None:
        super().finish_weight_update()  # type: ignore[misc]
        self.incomplete = False

    def receive_weights(self: Any, update_info: Any) -> None:
        model = self.model
        self.model = CountingModel(model, self.total)
        try:
            super().receive_weights(update_info)  # type: ignore[misc]
        finally:
            self.model = model


class CountingModel:
    """A model, as far as an engine that receives weights uses it; `total` counts what it loads."""

    def __init__(self, model: Any, total: WeightDigest) -> None:
        self.model, self.total = model, total

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> Any:
        listed = list(weights)
        for name, weight in listed:
            self.total.add(name, weight)
        return self.model.load_weights(listed)


@dataclass(kw_only=True)
class LimitedInitInfo(NCCLWeightTransferInitInfo):  # type: ignore[misc]  # untyped
    """vLLM's, with the seconds that an update may take.

    Example: {"rank_offset": 1, "world_size": 2, "nccl_unique_id_b64": "AgC…", "packed": true, "seconds": 600.0}
    """

    seconds: float

    def __post_init__(self) -> None:
        if self.nccl_unique_id_b64 is None:
            raise ValueError("NCCL's group is joined by nccl_unique_id_b64: what a TCP store holds would be unpickled")
        super().__post_init__()


class NcclReceiver(Counted, NCCLWeightTransferEngine):  # type: ignore[misc]  # untyped
    """Receives by NCCL. A broadcast that the trainer never ends is broken off, so that the server can be used again."""

    init_info_cls = LimitedInitInfo
    seconds = 0.0

    def init_transfer_engine(self, init_info: LimitedInitInfo) -> None:
        self.shutdown()  # the group of a trainer that is gone
        self.seconds = init_info.seconds
        super().init_transfer_engine(init_info)

    def receive_weights(self, update_info: Any) -> None:
        limit = threading.Timer(self.seconds, self.shutdown)
        limit.start()
        try:
            super().receive_weights(update_info)
        finally:
            limit.cancel()


class IpcReceiver(Counted, IPCWeightTransferEngine):  # type: ignore[misc]  # untyped
    """Receives through the memory of a GPU that it shares with the trainer."""

    def parse_update_info(self, update_dict: dict[str, Any]) -> Any:
        if update_dict.get("ipc_handles_pickled") is not None:
            raise ValueError("handles are JSON here (mathrl/servers/transfer_client.py): nothing is unpickled")
        handles = handles_from_json(update_dict["ipc_handles"])
        return super().parse_update_info({**update_dict, "ipc_handles": handles})


for kind, receiver in (("nccl", NcclReceiver), ("ipc", IpcReceiver)):
    WeightTransferEngineFactory.register_engine(TRANSFER_BACKENDS[kind], receiver)


# vLLM's engine is a child of its HTTP server, and would outlive one that is killed.
die_with_parent()


class WeightReader:
    """Mixed into vLLM's worker by `--worker-extension-cls`; called through `served_weights`."""

    def read_weights(self: Any, folder: str) -> str:
        """Take over the weights of the folder's safetensors files; a tied head is sent as a matrix.

        Returns the digest of what was read. Raises:
            FileNotFoundError: the folder, as this server sees it, has no such files.
        """
        path, total = Path(folder), WeightDigest()
        if not any(path.glob("*.safetensors")):
            raise FileNotFoundError(f"{folder}: this server finds no *.safetensors in it")
        self.end_broken_update()
        self.reload_weights(weights_iterator=with_head(_count_weights(folder_weights(path), total)))
        return total.hexdigest()

    def end_broken_update(self: Any) -> None:
        """Before weights come: an update that broke off is ended.

        vLLM buffers the parts of a layer until it has all of them, and would take old parts for new ones.
        """
        if getattr(self.weight_transfer_engine, "incomplete", False):
            self._weight_update_active = True  # vLLM takes it back where an update raises
            self.finish_weight_update()

    def received_digest(self: Any) -> str:
        """The digest of what the last update brought."""
        digest: str = self.weight_transfer_engine.total.hexdigest()
        return digest

    def gpu_name(self: Any) -> str:
        """The UUID of this worker's GPU, empty on a CPU."""
        return str(torch.cuda.get_device_properties(self.device).uuid) if self.device.type == "cuda" else ""


def _count_weights(weights: Iterable[tuple[str, Tensor]], total: WeightDigest) -> Iterator[tuple[str, Tensor]]:
    for name, weight in weights:
        total.add(name, weight)
        yield name, weight
