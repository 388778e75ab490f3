"""How weights go to servers besides files: the choice, what is said of them beforehand, and servers that fail.

vLLM's own engines between real servers: tests/engines/test_vllm_servers.py.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from mathrl.core.errors import UserError
from mathrl.core.gpus import CPU, Hardware
from mathrl.models.device import without_expandable_segments
from mathrl.models.load import load_model, make_base
from mathrl.models.lora import add_lora
from mathrl.models.weights import full_weights, weight_shapes
from mathrl.params.optimizer import Lora
from mathrl.params.rollout import Rollout, Servers
from mathrl.params.run import FreshModel, Model
from mathrl.rollout.server_engine import transfer_of
from mathrl.servers.protocol import FINISH, INIT, START, UPDATE
from mathrl.servers.server import SentWeights
from mathrl.servers.server_pool import ServerPool
from mathrl.servers.transfer_client import TransferClient, handles_as_json, handles_from_json
from mathrl.servers.vllm_arguments import transfer_arguments
from tests.servers.stand import params
from tests.servers.test_servers import used


@dataclass
class Reached:
    transfer: str
    gpus: tuple[str, ...] = ()
    url: str = "http://a:1"


NCCL, IPC, FILES = Reached("nccl", ("GPU-b",)), Reached("ipc", ("GPU-a",)), Reached("")


@pytest.mark.parametrize(
    ("wanted", "servers", "own", "expected"),
    [
        ("auto", [NCCL], ["GPU-a"], "nccl"),
        ("nccl", [NCCL, Reached("nccl", ("GPU-c", "GPU-d"))], ["GPU-a"], "nccl"),
        ("auto", [IPC], ["GPU-a"], "ipc"),
        ("ipc", [IPC, Reached("ipc", ("GPU-b",))], ["GPU-a", "GPU-b"], "ipc"),
        ("auto", [NCCL], ["GPU-b"], "files"),  # one GPU, and a server that was started for another
        ("auto", [NCCL], [""], "files"),  # the trainer is on a CPU
        ("auto", [NCCL, FILES], ["GPU-a"], "files"),
        ("auto", [NCCL, IPC], ["GPU-a"], "files"),
        ("files", [NCCL], ["GPU-a"], "files"),
    ],
)
def test_how_weights_go(wanted: Any, servers: list[Reached], own: list[str], expected: str) -> None:
    assert transfer_of(wanted, servers, own) == expected


@pytest.mark.parametrize(
    ("wanted", "server", "own", "message"),
    [
        ("nccl", NCCL, "", "nccl, but the trainer is on a CPU: set it to files"),
        ("nccl", FILES, "GPU-a", r"takes weights by files alone: start it with `mathrl serve MODEL --set .*=nccl` on"),
        ("ipc", NCCL, "GPU-b", r"takes weights by NCCL: start it with `mathrl serve MODEL --set .*=ipc` on a GPU"),
        ("nccl", NCCL, "GPU-b", "is on the GPU of rank 0, where NCCL cannot have both: set it to ipc"),
        ("ipc", IPC, "GPU-b", "has a GPU that no rank has: set it to nccl"),
    ],
)
def test_what_cannot_be_is_refused(wanted: Any, server: Reached, own: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        transfer_of(wanted, [server], [own])


def test_a_server_is_started_for_what_its_hardware_can() -> None:
    def arguments(weights: Any, hardware: Hardware) -> Any:
        return transfer_arguments(Rollout(servers=Servers(weights=weights)), hardware)

    gpu = Hardware("cuda")
    assert arguments("auto", gpu) == arguments("nccl", gpu) == {"weight_transfer_config": {"backend": "mathrl_nccl"}}
    assert arguments("ipc", gpu) == {"weight_transfer_config": {"backend": "mathrl_ipc"}}
    assert arguments("files", gpu) == arguments("files", CPU) == arguments("auto", CPU) == {}
    with pytest.raises(UserError, match="is ipc, which needs a GPU, but this machine has none: set it to files"):
        arguments("ipc", CPU)


def test_memory_for_other_processes_is_allocated_without_expandable_segments() -> None:
    """vLLM's buffer for CUDA IPC; torch takes a string of settings on a CPU as well."""
    read, write = torch._C._accelerator_getAllocatorSettings, torch._C._accelerator_setAllocatorSettings
    before = read()
    try:
        for settings in ("max_split_size_mb:64,expandable_segments:True", "max_split_size_mb:64"):
            write(settings)
            with pytest.raises(ValueError, match="a server died"), without_expandable_segments():
                assert "expandable_segments:True" not in read()
                raise ValueError("a server died")
            assert read() == settings
    finally:
        write(before)


# The arguments that torch's reduce_tensor gives for a tensor on a GPU (torch/multiprocessing/reductions.py).
HANDLE = (
    torch.Tensor, torch.Size([3, 4]), (4, 1), 0, torch.storage.TypedStorage, torch.bfloat16, 1, b"\x00\xffhandle", 24,
    512, False, b"counter", 8, b"\x80event", True,
)  # fmt: skip


def test_handles_of_gpu_memory_survive_json_without_pickle() -> None:
    text = json.dumps(handles_as_json({"GPU-a": HANDLE}))
    (restored,) = handles_from_json(json.loads(text)).values()
    assert restored == HANDLE and restored[1] == (3, 4)
    for planted in ({"class": "Popen"}, {"dtype": "object"}, {"call": "os.system"}):
        with pytest.raises(ValueError, match="which torch's handles never have"):
            handles_from_json({"GPU-a": [planted]})


@pytest.mark.parametrize("tied", [True, False])
def test_shapes_are_those_of_the_weights_in_their_order(tied: bool, tmp_path: Path) -> None:
    model = Model(base=FreshModel(hidden_size=32, intermediate_size=48, layers=2, heads=2, kv_heads=1))
    make_base(model, tmp_path / "base", seed=0)
    network = load_model(tmp_path / "base", model, "cpu")
    if not tied:
        network.lm_head.weight = torch.nn.Parameter(network.lm_head.weight.clone())
    add_lora(network, Lora(r=2), seed=0)
    shapes = weight_shapes(network)
    assert shapes == [(name, weight.dtype, tuple(weight.shape)) for name, weight in full_weights(network)]
    assert shapes[-1][0] == "lm_head.weight" and [name for name, *_ in shapes].count("lm_head.weight") == 1
    # As under ZeRO 3, where a rank has a flat shard or nothing, and the mark of the whole shape.
    for weight in network.parameters():
        weight.ds_shape, weight.data = weight.shape, torch.empty(0)
    assert weight_shapes(network) == shapes


def test_a_server_that_fails_takes_no_further_part_and_the_others_come_to_the_end(stand: Any) -> None:
    good, bad, gone = stand(), stand(), stand()
    pool = ServerPool(params(good, bad, gone))
    gone.shutdown()
    gone.server_close()
    bad.refused = UPDATE
    dropped: list[str] = []
    client = TransferClient(pool.servers, 30.0, lambda: "abc", lambda server: dropped.append(server.url))
    client.init_weight_transfer_engine({"packed": True})
    assert list(client.failures) == dropped == [gone.url] and "broke off" in client.failures[gone.url]
    client.start_weight_update()
    client.update_weights({"names": ["w"], "ipc_handles": {"GPU-a": HANDLE}})
    assert dropped == [gone.url, bad.url] and f"answered {UPDATE} with 500" in client.failures[bad.url]
    client.finish_weight_update()
    assert [server.url for server in client.alive()] == [good.url] and good.digest == "abc"
    paths = [path for path, _ in good.steps]
    assert paths == [INIT, START, UPDATE, FINISH] and [path for path, _ in bad.steps] == paths[:3]
    assert good.steps[0][1] == {"init_info": {"packed": True}}
    assert handles_from_json(good.steps[2][1]["update_info"]["ipc_handles"]) == {"GPU-a": HANDLE}


def bring(digest: str, stands: Sequence[Any], *failing: Any) -> Any:
    """A transfer of weights with this digest that does not reach those in `failing`."""

    def transfer(servers: Any) -> tuple[str, dict[str, str]]:
        for each in stands:
            each.digest = "" if each in failing else digest
        return digest, {each.url: f"{each.url} broke off" for each in failing}

    return transfer


def test_servers_that_fail_wait_for_the_next_sync_and_none_left_is_an_error(stand: Any) -> None:
    good, bad = both = stand(), stand()
    pool, second = ServerPool(params(good, bad)), ServerPool(params(good, bad))
    pool.send_by(bring("one", both, bad))
    second.follow(pool.sync_message())
    assert used(pool) == used(second) == {good.url} and pool.digests() == ["one"]
    pool.revive()  # it answers, but weights are not there to be read
    assert used(pool) == {good.url} and "they are sent to it at the next sync" in pool.servers[1].failure
    pool.send_by(bring("two", both))
    second.follow(pool.sync_message())
    assert used(pool) == used(second) == {good.url, bad.url}
    with pytest.raises(UserError, match=r"no vLLM server took the weights \(.* broke off; .* broke off\): restart"):
        pool.send_by(bring("three", both, good, bad))


def test_a_server_that_is_lost_reads_transferred_weights_as_files_while_they_can_be_written(stand: Any) -> None:
    good, bad = both = stand(), stand()
    pool, second = ServerPool(params(good, bad)), ServerPool(params(good, bad))
    asked: list[str] = []
    changed = False

    def as_files(digest: str) -> SentWeights | None:
        asked.append(digest)
        return None if changed else SentWeights(f"/weights/{digest}", digest)

    pool.as_files = as_files
    pool.send_by(bring("one", both, bad))
    assert asked == [] and used(pool) == {good.url}
    second.follow(pool.sync_message())
    pool.revive()
    second.revive()  # another rank finds that the server has them
    assert bad.taken == ["/weights/one"] and used(pool) == used(second) == {good.url, bad.url}
    bad.restart()
    pool.died(pool.servers[1], RuntimeError("it broke off"))
    pool.revive()
    assert bad.taken == 2 * ["/weights/one"] and asked == ["one"] and pool.servers[1].failure == ""
    # No server took them: the first that answers reads them.
    pool.send_by(bring("two", both, good, bad))
    assert used(pool) == {good.url, bad.url} and good.taken == ["/weights/two"]
    # The network has changed since: they are at no place any more, and are asked for once.
    changed = True
    pool.send_by(bring("three", both, bad))
    pool.revive()
    pool.revive()
    assert asked == ["one", "two", "three"] and used(pool) == {good.url}
    assert "they are sent to it at the next sync" in pool.servers[1].failure


def test_a_folder_that_cannot_be_written_to_is_the_reason_of_a_server_without_weights(stand: Any) -> None:
    good, bad = both = stand(), stand()
    pool = ServerPool(params(good, bad))

    def full(digest: str) -> SentWeights | None:
        raise UserError("rollout.servers.folder: /full cannot be written to")

    pool.as_files = full
    pool.send_by(bring("one", both, bad))
    pool.revive()
    pool.revive()
    assert used(pool) == {good.url}
    assert pool.servers[1].failure == (
        f"{bad.url} has no weights since it was lost: rollout.servers.folder: /full cannot be written to"
    )
    with pytest.raises(UserError, match="/full cannot be written to"):
        pool.send_by(bring("two", both, good, bad))
