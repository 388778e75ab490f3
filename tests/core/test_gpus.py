"""How many GPUs a machine has, from what nvidia-smi prints."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mathrl.core import gpus

TWO = (
    "GPU 0: NVIDIA GeForce RTX 4090 (UUID: GPU-4ab1c7f2-55d7-c4a5-9d9e-2f6f1f9f2b10)\n"
    "GPU 1: NVIDIA GeForce RTX 4090 (UUID: GPU-9e0c1d22-8b1e-41d9-a0ce-6f5be7f2a611)\n"
)
MIG = (
    "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0d4c2f3e-9c58-4b4f-8b5c-64f1f4c9a0aa)\n"
    "  MIG 3g.40gb     Device  0: (UUID: MIG-2c3b1f6e-52a4-5b41-a7a5-8c3a0d8f7a01)\n"
    "  MIG 3g.40gb     Device  1: (UUID: MIG-8d1e4a7b-0f4c-5c0b-9a6d-1b2c3d4e5f60)\n"
)


@pytest.mark.parametrize(
    ("listing", "visible", "count"),
    [
        (TWO, None, 2),
        (TWO, "", 0),
        (TWO, "1", 1),
        (TWO, "1,0", 2),
        (TWO, "0,5,1", 1),  # CUDA stops at the first that does not exist
        (TWO, "-1", 0),
        (TWO, "NoDevFiles", 0),
        (TWO, "GPU-9e0c1d22-8b1e-41d9-a0ce-6f5be7f2a611", 1),
        (TWO, "GPU-4ab1,GPU-9e0c", 2),
        (TWO, "GPU-ffff", 0),
        (MIG, None, 1),
        (MIG, "MIG-2c3b1f6e-52a4-5b41-a7a5-8c3a0d8f7a01,MIG-8d1e4a7b-0f4c-5c0b-9a6d-1b2c3d4e5f60", 2),
        ("", None, 0),
    ],
)
def test_visible_gpus_are_counted_as_cuda_counts_them(listing: str, visible: str | None, count: int) -> None:
    assert gpus.visible_gpus(listing, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}) == count


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for counted in (gpus.installed_gpus, gpus._torch_count):
        counted.cache_clear()
    yield
    for counted in (gpus.installed_gpus, gpus._torch_count):
        counted.cache_clear()


def test_the_command_is_asked_and_a_driver_that_fails_has_no_gpu(
    fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text(f"#!/bin/sh\nprintf '%s' '{TWO}'\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert gpus.gpu_count() == 2
    gpus.installed_gpus.cache_clear()
    command.write_text(
        "#!/bin/sh\necho 'NVIDIA-SMI has failed because it could not communicate with the driver.'\nexit 9\n"
    )
    assert gpus.gpu_count() == 0


def test_without_the_command_torch_is_asked_where_there_may_be_a_gpu(
    fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "nvidia_smi", lambda: None)
    monkeypatch.setattr(gpus, "DEVICE_FILES", (str(tmp_path / "kfd"),))
    monkeypatch.setattr(gpus, "ASK_TORCH", "print(3)")
    assert gpus.gpu_count() == 0
    (tmp_path / "kfd").touch()
    assert gpus.gpu_count() == 3


def test_a_choice_for_the_allocator_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in gpus.ALLOCATOR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:512")
    gpus.use_expandable_segments()
    assert "PYTORCH_CUDA_ALLOC_CONF" not in os.environ
    monkeypatch.delenv("PYTORCH_ALLOC_CONF")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "")
    gpus.use_expandable_segments()
    assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
