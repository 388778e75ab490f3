"""Torch's global settings and the environment stay the trainer's, whatever a library in the process changes."""

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mathrl.core.errors import UserError
from mathrl.models.device import rank_gpu, state_kept, torch_settings, use_device
from mathrl.trainers.rollout_stream import SamplerThread


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    with state_kept():
        yield


class Products(TorchDispatchMode):
    """Names the matrix products that run within it, which TF32 would round on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(name in func.__name__ for name in ("mm", "dot", "mv", "linear", "einsum")):
            self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_rotary_angles_of_far_tokens_are_exact_to_float32_without_a_matrix_product(network: Any) -> None:
    rotary = network().model.rotary_emb
    positions = torch.tensor([[0, 1, 2047, 2049, 4097, 131_071]])  # TF32 has 11 bits
    with Products() as products:
        cos, sin = rotary(torch.zeros(1), positions)
    angles = (positions[0, :, None].double() * rotary.inv_freq.double()).repeat(1, 2)
    assert not products.names
    assert torch.allclose(cos[0].double(), angles.cos(), atol=131_071 * 2**-24)
    assert torch.allclose(sin[0].double(), angles.sin(), atol=131_071 * 2**-24)


class Worker:
    """Changes what vLLM's do: gpu_worker.py (precision, NCCL's variable), cpu_worker.py (threads), torch_utils.py
    (default dtype)."""

    def __init__(self) -> None:
        torch.set_float32_matmul_precision("highest")
        os.environ.pop("NCCL_ASYNC_ERROR_HANDLING", None)
        os.environ["VLLM_DIST_IDENT"] = "29500"
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        os.environ["LOCAL_RANK"] = "0"
        torch.set_num_threads(3)
        torch.set_num_threads = lambda threads: None
        torch.set_default_dtype(torch.bfloat16)
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = False


@pytest.mark.parametrize("tf32", [False, True])
def test_what_a_worker_changes_is_restored(monkeypatch: pytest.MonkeyPatch, tf32: bool) -> None:
    monkeypatch.setenv("NCCL_ASYNC_ERROR_HANDLING", "1")
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS", raising=False)
    torch.backends.cuda.matmul.allow_tf32 = tf32
    before, set_num_threads = torch_settings(), torch.set_num_threads
    with pytest.raises(ValueError), state_kept():
        Worker()
        assert {name for name, value in torch_settings().items() if value != before[name]} >= {
            "default_dtype",
            "num_threads",
            "deterministic_algorithms",
            "cudnn.benchmark",
            "cudnn.allow_tf32",
        }
        assert not torch.backends.cuda.matmul.allow_tf32
        raise ValueError
    assert torch_settings() == before and torch.backends.cuda.matmul.allow_tf32 is tf32
    assert torch.set_num_threads is set_num_threads
    assert os.environ["NCCL_ASYNC_ERROR_HANDLING"] == "1" and os.environ["LOCAL_RANK"] == "3"
    assert "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ
    assert os.environ.pop("VLLM_DIST_IDENT") == "29500"  # vLLM reads its own while it runs


def test_the_thread_that_samples_takes_the_ranks_gpu_and_leaves_settings_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[tuple[str, torch.device]] = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda gpu: chosen.append((threading.current_thread().name, gpu)))

    kept: list[str] = []
    before = torch_settings()

    @state_kept()  # as a pool of groups samples
    def sample() -> str:
        Worker()
        return "share"

    with SamplerThread(torch.device("cuda", 1), lambda: not kept, sample, kept.append) as sampler, sampler.changed:
        while not kept:
            sampler.wait()
    assert kept == ["share"] and torch_settings() == before
    assert [(name.startswith("rollouts"), gpu) for name, gpu in chosen] == [(True, torch.device("cuda", 1))]
    use_device(torch.device("cpu"))
    assert len(chosen) == 1


def test_the_thread_that_samples_and_the_trainer_wake_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mathrl.trainers.rollout_stream.AWAKE", 600.0)  # who is not woken sleeps so long
    began, kept, allowed = time.monotonic(), list[int](), 3
    with SamplerThread(torch.device("cpu"), lambda: len(kept) < allowed, lambda: 1, kept.append) as sampler:
        with sampler.changed:
            while len(kept) < 3:
                sampler.wait()
        with sampler.pause():
            allowed = 6
            assert not sampler.busy and len(kept) == 3
            with sampler.pause():
                pass
            time.sleep(0.05)
            assert len(kept) == 3, "it is still paused"
        with sampler.changed:
            while len(kept) < 6:
                sampler.wait()
    assert sampler._running is not None
    sampler._running.result(300)
    assert time.monotonic() < began + 300 and kept == [1] * 6 and not sampler.busy


@pytest.mark.parametrize(
    ("local_rank", "gpus", "index"),
    [
        (None, 1, 0),
        (None, 8, 0),
        ("0", 8, 0),
        ("7", 8, 7),
        ("3", 1, 0),  # Slurm with --gpus-per-task=1: CUDA_VISIBLE_DEVICES has one entry per rank
        ("8", 8, None),
        ("2", 2, None),
    ],
)
def test_the_gpu_of_a_rank_is_vllms_too(local_rank: str | None, gpus: int, index: int | None) -> None:
    environment = {} if local_rank is None else {"LOCAL_RANK": local_rank}
    if index is None:
        with pytest.raises(UserError, match=rf"LOCAL_RANK is {local_rank}, .* only {gpus} GPUs: start at most {gpus} "):
            rank_gpu(environment, gpus)
    else:
        placed = rank_gpu(environment, gpus)
        assert placed.index == index and placed.variables == {"LOCAL_RANK": str(index)}
