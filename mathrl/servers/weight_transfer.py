"""The trainer's side of weights by NCCL or CUDA IPC: vLLM's own engines, one pass over the weights for all servers.

Each server has an NCCL group of its own with rank 0: one that dies is dropped alone, and one that is restarted joins
alone.
"""

import base64
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from vllm.distributed.device_communicators.pynccl_wrapper import NCCLLibrary
from vllm.distributed.weight_transfer import ParamMeta, WeightSource, WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
from vllm.distributed.weight_transfer.nccl_common import (
    NCCLWeightTransferInitInfo,
    uid_init_process_group,
    worker_init_payload,
)
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerWeightTransferEngine

from mathrl.models.device import without_expandable_segments
from mathrl.models.weights import WeightDigest, WeightShape
from mathrl.servers.server import Server
from mathrl.servers.transfer_client import TransferClient


class SyncedWeights(WeightSource):  # type: ignore[misc]  # untyped
    """The weights of one sync, each gathered when it is taken and rounded to the sampler's `dtype`; one pass.

    Each is a copy: vLLM packs several before it sends them, and a gathered weight lasts until the next is taken.
    """

    def __init__(
        self, weights: Iterable[tuple[str, Tensor]], shapes: Sequence[WeightShape], dtype: torch.dtype
    ) -> None:
        self.weights, self.shapes, self.dtype, self.total = weights, shapes, dtype, WeightDigest()

    def metadata(self) -> list[ParamMeta]:
        return [ParamMeta(name, self._stored_dtype(dtype), shape) for name, dtype, shape in self.shapes]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, weight in self.weights:
            stored = weight.detach().to(self._stored_dtype(weight.dtype), copy=True).contiguous()
            self.total.add(name, stored)
            yield name, stored

    def largest(self) -> int:
        """Bytes of the largest weight."""
        sizes: list[int] = [meta.dtype.itemsize * torch.Size(meta.shape).numel() for meta in self.metadata()]
        return max(sizes)

    def _stored_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return self.dtype if dtype.is_floating_point else dtype


class Sender(Protocol):
    """How weights leave the trainer."""

    def send(self, servers: Sequence[Server], source: SyncedWeights) -> dict[str, str]:
        """At rank 0: bring the weights to the servers; why one failed, by its address."""
        ...

    def join(self, source: SyncedWeights) -> None:
        """At the other ranks: take part in gathering each weight, in the same order."""
        ...


class NcclGroup(Protocol):
    """What the trainer's engine uses of a `PyNcclCommunicator`."""

    def broadcast(self, tensor: Tensor, src: int, stream: Any = None) -> None: ...

    def destroy(self) -> None: ...


class Groups:
    """The groups of several servers as one: what is broadcast goes to each in turn, on one stream."""

    def __init__(self, client: TransferClient, groups: Mapping[str, NcclGroup]) -> None:
        self.client, self.groups = client, groups

    def broadcast(self, tensor: Tensor, src: int, stream: Any = None) -> None:
        for server in self.client.alive():
            try:
                self.groups[server.url].broadcast(tensor, src=src, stream=stream)
            except RuntimeError as error:  # NCCL's, also in a group that `_drop` ends meanwhile
                self.client.fail(server, f"{server.url}: the broadcast of weights failed ({error})")


class NcclSender:
    """From rank 0's GPU to those of the servers; an update that takes longer than `seconds` is broken off."""

    engine: Any = NCCLTrainerWeightTransferEngine

    def __init__(self, seconds: float, buffer_bytes: int) -> None:
        self.seconds, self.buffer_bytes = seconds, buffer_bytes
        self.device = torch.cuda.current_device() if torch.cuda.is_available() else -1  # of this thread
        self.groups: dict[str, tuple[int, NcclGroup]] = {}  # by address: the server's generation, and its group

    def send(self, servers: Sequence[Server], source: SyncedWeights) -> dict[str, str]:
        client = TransferClient(servers, self.seconds, source.total.hexdigest, self._drop)
        for server in servers:
            self._join(server, client)
        engine = self.engine(client=client, source=source, packed=True, packed_buffer_size_bytes=self.buffer_bytes)
        groups = {server.url: self.groups[server.url][1] for server in client.alive()}
        engine.model_update_group = Groups(client, groups)
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # vLLM packs on streams of its own
        engine.send_weights()
        return client.failures

    def join(self, source: SyncedWeights) -> None:
        for _ in source:
            pass

    def _join(self, server: Server, client: TransferClient) -> None:
        """Make a group with the server, unless this process of it has one already."""
        generation, group = self.groups.get(server.url, (0, None))
        if group is not None and generation == server.generation:
            return
        if group is not None:
            self._drop(server)
        identifier, world = self.identifier(), 1 + len(server.gpus)
        info = NCCLWeightTransferInitInfo(
            rank_offset=1,
            world_size=world,
            nccl_unique_id_b64=base64.b64encode(identifier).decode(),
            packed=True,
            packed_buffer_size_bytes=self.buffer_bytes,
        )
        # The server answers once both have joined. If it dies before, this side would wait for ever: in a thread.
        joined: queue.SimpleQueue[NcclGroup | Exception] = queue.SimpleQueue()
        threading.Thread(target=_put, args=[joined, lambda: self.open_group(identifier, world)], daemon=True).start()
        alone = TransferClient([server], self.seconds, client.digest)
        alone.init_weight_transfer_engine(worker_init_payload(info) | {"seconds": self.seconds})
        if alone.failures:
            client.fail(server, alone.failures[server.url])
            return
        try:
            made = joined.get(timeout=self.seconds)
        except queue.Empty:
            made = TimeoutError(f"not within {self.seconds:g} s")
        if isinstance(made, Exception):
            client.fail(server, f"{server.url}: rank 0 could not join its NCCL group ({made})")
        else:
            self.groups[server.url] = (server.generation, made)

    def identifier(self) -> bytes:
        """NCCL's name of a new group."""
        return bytes(NCCLLibrary().ncclGetUniqueId().internal)

    def open_group(self, identifier: bytes, world: int) -> NcclGroup:
        """Rank 0's side of the group; returns when the others have joined."""
        made: NcclGroup = uid_init_process_group(identifier, 0, world, self.device)
        return made

    def _drop(self, server: Server) -> None:
        """End the server's group, also within a broadcast that it does not take part in."""
        if held := self.groups.pop(server.url, None):
            held[1].destroy()


class IpcSender:
    """Through the memory of GPUs that servers share with the ranks; each rank fills a buffer on its own GPU."""

    def __init__(self, rank: int, seconds: float, buffer_bytes: int) -> None:
        self.rank, self.seconds, self.buffer_bytes = rank, seconds, buffer_bytes

    def send(self, servers: Sequence[Server], source: SyncedWeights) -> dict[str, str]:
        client = TransferClient(servers, self.seconds, source.total.hexdigest)
        buffer_bytes = max(self.buffer_bytes, source.largest())
        info = IPCTrainerInitInfo(rank=self.rank, packed=True, packed_buffer_size_bytes=buffer_bytes)
        with without_expandable_segments():  # for vLLM's buffer, which servers open
            WeightTransferTrainerFactory.trainer_init(info, client=client, source=source).send_weights()
        return client.failures

    def join(self, source: SyncedWeights) -> None:
        self.send([], source)


def sender_of(kind: str, rank: int, seconds: float, buffer_bytes: int) -> Sender:
    """`kind` is nccl or ipc."""
    return NcclSender(seconds, buffer_bytes) if kind == "nccl" else IpcSender(rank, seconds, buffer_bytes)


def _put(results: "queue.SimpleQueue[NcclGroup | Exception]", make: Callable[[], NcclGroup]) -> None:
    try:
        results.put(make())
    except Exception as error:  # whatever NCCL raises is the server's failure
        results.put(error)
