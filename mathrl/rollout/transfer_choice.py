"""How weights reach servers: `rollout.servers.weights`, by what trainer and servers are."""

from collections.abc import Sequence
from typing import Literal, Protocol

from mathrl.core.errors import UserError

Transfer = Literal["files", "nccl", "ipc"]


class ReachableServer(Protocol):
    """A server: `transfer` is how weights can come besides files, `gpus` the UUIDs of its workers' GPUs."""

    url: str
    transfer: str
    gpus: tuple[str, ...]


def transfer_of(
    wanted: Literal["auto", "files", "nccl", "ipc"], servers: Sequence[ReachableServer], own_gpus: Sequence[str]
) -> Transfer:
    """How weights go from a trainer, whose ranks have the GPUs `own_gpus` (empty names: CPUs), to the servers.

    Raises:
        UserError: what the parameters ask for cannot be; `auto` takes files then.
    """
    if wanted == "files":
        return "files"
    kinds: tuple[Literal["nccl", "ipc"], ...] = ("nccl", "ipc") if wanted == "auto" else (wanted,)
    problems = [_problem(kind, servers, own_gpus) for kind in kinds]
    for kind, problem in zip(kinds, problems, strict=True):
        if not problem:
            return kind
    if wanted == "auto":
        return "files"
    raise UserError(f"rollout.servers.weights is {wanted}, but {problems[0]}")


def _problem(kind: Literal["nccl", "ipc"], servers: Sequence[ReachableServer], own_gpus: Sequence[str]) -> str:
    """Why weights cannot go that way, empty if they can."""
    if not all(own_gpus):
        return "the trainer is on a CPU: set it to files"
    for server in servers:
        if server.transfer != kind:
            has = "NCCL" if server.transfer == "nccl" else "CUDA IPC" if server.transfer == "ipc" else "files alone"
            command = f"mathrl serve MODEL --set rollout.servers.weights={kind}"
            return f"{server.url} takes weights by {has}: start it with `{command}` on a GPU"
        if kind == "nccl" and own_gpus[0] in server.gpus:
            return f"{server.url} is on the GPU of rank 0, where NCCL cannot have both: set it to ipc"
        if kind == "ipc" and not set(server.gpus) <= set(own_gpus):
            return f"{server.url} has a GPU that no rank has: set it to nccl"
    return ""
