"""A name per run for the shared memory in which ranks that share a vLLM engine on a CPU exchange tensors.

vLLM 0.32 makes the name of the address of the ranks' process group, which is `env://` in every run of torchrun: of two
runs at once, and after a run that was killed, one would fail with errno 17.
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mathrl.rollout.ranks import from_rank_0

FOLDER = Path("/dev/shm")  # where Linux keeps the shared memory of shm_open


@contextmanager
def own_shared_memory() -> Iterator[str]:
    """While an engine is opened, at every rank: the name with which its shared memory begins, another in each run.

    Afterwards the ranks have mapped the memory, and its files are removed, so that a killed run leaves none.
    """
    from vllm.v1.executor.uniproc_executor import ExecutorWithExternalLauncher

    name = from_rank_0(lambda: f"mathrl-{uuid.uuid4().hex}")
    original = ExecutorWithExternalLauncher._distributed_args

    def named(executor: Any) -> tuple[str, int, int]:
        _, rank, local_rank = original(executor)
        return f"file://{name}", rank, local_rank  # the ranks have joined their group: nothing is opened there

    ExecutorWithExternalLauncher._distributed_args = named
    try:
        yield name
    finally:
        ExecutorWithExternalLauncher._distributed_args = original
        for file in FOLDER.glob(f"{name}-*"):
            file.unlink(missing_ok=True)
