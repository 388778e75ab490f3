"""Weights by gloo in NCCL's place, so that vLLM's transfer runs between real processes on CPUs.

Replaced are NCCL's communicator and the CUDA streams around it. Everything else is mathrl's and vLLM's own: endpoints,
workers, packing, layerwise loading, digests. A server takes it by `GlooReader` in place of `WeightReader`.
"""

import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerWeightTransferEngine, NCCLWeightTransferEngine
from vllm.distributed.weight_transfer.packed_tensor import pack_tensors, unpack_tensor

from mathrl.servers.vllm_worker import NcclReceiver, WeightReader
from mathrl.servers.weight_transfer import NcclSender

ID_BYTES = 128  # of NCCL's identifier of a group: here the path of a file
SECONDS = 60.0


class GlooGroup:
    """What engines use of a `PyNcclCommunicator`."""

    def __init__(self, identifier: bytes, rank: int, world: int, seconds: float) -> None:
        store = dist.FileStore(identifier.rstrip(b"\0").decode(), world)
        self.group: Any = dist.ProcessGroupGloo(store, rank, world, timedelta(seconds=seconds))

    def broadcast(self, tensor: Tensor, src: int, stream: Any = None) -> None:
        if self.group is None:
            return
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = src, 0
        try:
            self.group.broadcast([tensor], options).wait()
        except RuntimeError:  # NCCL's broadcast is asynchronous, and one that is aborted ends without an error
            self.group = None

    def destroy(self) -> None:
        self.group = None


class GlooEngine(NCCLWeightTransferEngine):  # type: ignore[misc]
    """vLLM's engine of a worker, without CUDA's streams."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: Any) -> None:
        chunk: list[tuple[str, list[int], torch.dtype, int]] = []
        total = 0
        for number, name in enumerate(update_info.names):
            shape, dtype = update_info.shapes[number], getattr(torch, update_info.dtype_names[number])
            chunk.append((name, shape, dtype, torch.Size(shape).numel() * dtype.itemsize))
            total += chunk[-1][-1]
            if total > self.packed_buffer_size_bytes or number == len(update_info.names) - 1:
                packed = torch.zeros(total, dtype=torch.uint8)
                self.model_update_group.broadcast(packed, src=0)
                names, shapes, dtypes, sizes = (list(column) for column in zip(*chunk, strict=True))
                self.model.load_weights(unpack_tensor(packed, names, shapes, dtypes, sizes))
                chunk, total = [], 0


class GlooReceiver(NcclReceiver, GlooEngine):
    def init_transfer_engine(self, init_info: Any) -> None:
        self.shutdown()
        self.seconds, self.packed_buffer_size_bytes = init_info.seconds, init_info.packed_buffer_size_bytes
        own = init_info.rank_offset + self.parallel_config.rank
        self.model_update_group = GlooGroup(init_info.nccl_unique_id_bytes, own, init_info.world_size, self.seconds)


class GlooReader(WeightReader):
    """The worker extension: importing it registers the engine."""


class GlooTrainerEngine(NCCLTrainerWeightTransferEngine):  # type: ignore[misc]
    """vLLM's engine of the trainer, without CUDA's streams."""

    def _broadcast(self, source: Any, meta: Any) -> None:
        pairs = self._checked_iter(source, meta)
        while chunk := pack_tensors(pairs, lambda item: item[1], self.packed_buffer_size_bytes):
            self.model_update_group.broadcast(chunk.packed_tensor, src=0)


class GlooSender(NcclSender):
    """`folder` holds the files by which groups are joined."""

    engine = GlooTrainerEngine

    def __init__(self, folder: Path, seconds: float = SECONDS, buffer_bytes: int = 30_000) -> None:
        super().__init__(seconds, buffer_bytes)
        self.folder = folder

    def identifier(self) -> bytes:
        return tempfile.mktemp(dir=self.folder).encode().ljust(ID_BYTES, b"\0")

    def open_group(self, identifier: bytes, world: int) -> GlooGroup:
        return GlooGroup(identifier, 0, world, self.seconds)


WeightTransferEngineFactory.register_engine("mathrl_gloo", GlooReceiver)
