"""The ranks of a stage: what one process alone leaves behind, and a rank that the others wait for in vain."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from mathrl.core.errors import UserError
from mathrl.learners import distributed
from mathrl.learners.distributed import Ranks, check_gpus
from mathrl.params.training import Fsdp, Training
from mathrl.rollout import ranks

HERE = Path(__file__).parent


def test_deepspeed_alone_leaves_no_folder_behind_and_libraries_groups_get_the_time_out_too(tmp_path: Path) -> None:
    code = (
        "import torch, torch.distributed as dist\nfrom mathrl.learners.distributed import Ranks\n"
        "from mathrl.params.training import Training\n"
        "ranks = Ranks(torch.device('cpu'), Training(backend='deepspeed', collective_timeout_minutes=90))\n"
        "value = torch.ones(1)\ndist.all_reduce(value)\ngroup = dist.new_group([0])\nranks.set_timeouts()\n"
        "print(value.item(), group._get_backend(torch.device('cpu')).options._timeout)\nranks.close()"
    )
    environment = os.environ | {"PYTHONPATH": str(HERE.parents[1]), "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "1.0 1:30:00\n", done.stderr
    assert not list(tmp_path.iterdir())


def test_ranks_that_never_come_are_named_with_the_place_where_the_others_wait(
    tmp_path: Path, run_ranks: Callable[..., None]
) -> None:
    folders = {missing: tmp_path / "-".join(map(str, missing)) for missing in ((0,), (2, 3))}
    for missing, folder in folders.items():
        folder.mkdir()
        (folder / "missing").write_text(" ".join(map(str, missing)))
    run_ranks(HERE / "waiting_ranks.py", dict.fromkeys(folders.values(), 4))
    for missing, folder in folders.items():
        for rank in {0, 1, 2, 3} - {*missing}:
            message = (folder / f"said-{rank}").read_text()
            assert re.match(rf"rank {rank} waited \d+ s in `collect` \(waiting_ranks\.py, line ", message), message
            assert "training.collective_timeout_minutes" in message
            if rank == 0:
                assert "but rank 2, 3 did not come" in message


def test_what_fails_in_an_exchange_itself_is_said_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no rank that did not come."""
    ranks = Ranks(torch.device("cpu"))
    monkeypatch.setattr(ranks, "objects", None, raising=False)
    monkeypatch.setattr(ranks, "timeout", None, raising=False)

    def fail() -> None:
        raise RuntimeError("sizes differ")

    monkeypatch.setattr(dist, "monitored_barrier", lambda *given, **named: None)
    with pytest.raises(RuntimeError, match="sizes differ"):
        ranks._together(fail)


def test_two_ranks_on_one_gpu_are_refused_by_name() -> None:
    check_gpus([("node1", "GPU-a"), ("node1", "GPU-b"), ("node2", "GPU-a")])
    with pytest.raises(UserError, match=r"ranks 1 and 3 have the same GPU of node1 \(GPU-b\): node1 has 2 for its 3 "):
        check_gpus([("node1", "GPU-a"), ("node1", "GPU-b"), ("node2", "GPU-a"), ("node1", "GPU-b")])


def test_ranks_that_cannot_share_micro_batches_are_refused_at_once() -> None:
    shared = Training(backend="fsdp", fsdp=Fsdp(context_parallel=2))
    with pytest.raises(UserError, match=r"context_parallel is 2, but there is 1 rank: make run\.processes"):
        Ranks(torch.device("cpu"), shared)


def test_groups_of_ranks_are_made_once_and_forgotten_when_they_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        ranks.join_ranks(False)  # it has joined one
        assert ranks.object_group() is ranks.object_group() and ranks._object_groups == [dist.group.WORLD]
        assert ranks.neighbours(1) is ranks.neighbours(1) and list(ranks._neighbours) == [1]
    finally:
        ranks.leave_ranks()
    assert not dist.is_initialized() and not ranks._neighbours and not ranks._object_groups
    ranks.leave_ranks()
    assert ranks.gather("x") == ["x"] and ranks.from_rank_0(lambda: 7) == 7, "alone it needs no group"
    assert not dist.is_initialized()


def test_a_backend_that_divides_gives_one_rank_a_group_until_it_is_closed() -> None:
    alone = Ranks(torch.device("cpu"), Training(backend="deepspeed"))
    try:
        assert dist.is_initialized() and dist.get_world_size() == 1
    finally:
        alone.close()
    assert not dist.is_initialized()


def test_each_process_of_several_computes_on_one_core_and_joins_the_others_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    groups: list[Any] = []
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    monkeypatch.setattr(distributed, "join_ranks", lambda *given: groups.append(given))
    monkeypatch.setattr(distributed, "object_group", lambda *given: groups.append(given) or "objects")
    ranks_of_two = Ranks(torch.device("cpu"), Training(collective_timeout_minutes=90))
    assert threads == [1] and ranks_of_two.objects == "objects"
    assert groups == [(False, timedelta(minutes=90)), (timedelta(minutes=90),)]


def test_the_time_out_is_that_of_every_group(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(distributed.distributed_c10d, "_world", SimpleNamespace(pg_map={"one": 1, "other": 2}))
    monkeypatch.setattr(dist.distributed_c10d, "_set_pg_timeout", lambda *words: given.append(words))
    ranks_of_one = Ranks(torch.device("cpu"))
    ranks_of_one.set_timeouts()
    assert given == [(ranks_of_one.timeout, "one"), (ranks_of_one.timeout, "other")]


def test_an_exchange_that_fails_fails_a_moment_later(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(ranks.time, "sleep", slept.append)
    with pytest.raises(RuntimeError, match="gone"), ranks.while_exchanging():
        raise RuntimeError("gone")
    with ranks.while_exchanging():
        pass
    assert slept == [2.0]


def test_one_rank_makes_one_pass_per_micro_batch_and_at_least_one() -> None:
    alone = Ranks(torch.device("cpu"))
    assert list(alone.even_out([3, 4], 9)) == [(3, 1.0), (4, 1.0)]
    assert list(alone.even_out([], 9)) == [(9, 0.0)]
