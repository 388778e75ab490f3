"""vLLM's own weight-transfer engines in a server's workers, which also take the digest of what they receive.

Registered in vLLM's factory under the names of `TRANSFER_BACKENDS`. Nothing that comes over HTTP or TCP is unpickled:
NCCL's group is joined by its identifier, and handles of CUDA IPC come as JSON.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine
from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

from mathrl.models.weights import WeightDigest
from mathrl.rollout.gpu_handles import handles_from_json
from mathrl.rollout.vllm_arguments import TRANSFER_BACKENDS


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
            raise ValueError("handles are JSON here (mathrl/rollout/gpu_handles.py): nothing is unpickled")
        handles = handles_from_json(update_dict["ipc_handles"])
        return super().parse_update_info({**update_dict, "ipc_handles": handles})


for kind, receiver in (("nccl", NcclReceiver), ("ipc", IpcReceiver)):
    WeightTransferEngineFactory.register_engine(TRANSFER_BACKENDS[kind], receiver)
