"""What the doctor makes of nvidia-smi's output on machines that are not here."""

import os
from pathlib import Path

import pytest

from mathrl.cli.doctor import (
    Finding,
    compiler_finding,
    gpu_findings,
    memory_findings,
    nccl_finding,
    parse_gpus,
    parse_processes,
    torch_finding,
    visible_finding,
    vllm_finding,
)

# As nvidia-smi prints them: --query-gpu, --query-compute-apps, -L.
H100 = (
    "0, GPU-0d4c2f3e-9c58-4b4f-8b5c-64f1f4c9a0aa, NVIDIA H100 80GB HBM3, 580.95.05, 81559, 81078, Disabled\n"
    "1, GPU-6b1f7c1d-33c1-4d0e-9d0c-0c8c1d2f3a4b, NVIDIA H100 80GB HBM3, 580.95.05, 81559, 9211, Disabled\n",
    "GPU-6b1f7c1d-33c1-4d0e-9d0c-0c8c1d2f3a4b, 48213, /opt/venv/bin/python3.11, 71842\n",
    "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0d4c2f3e-9c58-4b4f-8b5c-64f1f4c9a0aa)\n"
    "GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-6b1f7c1d-33c1-4d0e-9d0c-0c8c1d2f3a4b)\n",
)
RTX_4090 = (
    "0, GPU-4ab1c7f2-55d7-c4a5-9d9e-2f6f1f9f2b10, NVIDIA GeForce RTX 4090, 580.82.07, 24564, 23028, [N/A]\n",
    "",
    "GPU 0: NVIDIA GeForce RTX 4090 (UUID: GPU-4ab1c7f2-55d7-c4a5-9d9e-2f6f1f9f2b10)\n",
)
WSL2 = (  # the driver is that of Windows, which does not say how much memory a process has
    "0, GPU-9e0c1d22-8b1e-41d9-a0ce-6f5be7f2a611, NVIDIA GeForce RTX 4080, 581.57, 16376, 6210, [N/A]\n",
    "GPU-9e0c1d22-8b1e-41d9-a0ce-6f5be7f2a611, 1874, /python3.11, [N/A]\n",
    "GPU 0: NVIDIA GeForce RTX 4080 (UUID: GPU-9e0c1d22-8b1e-41d9-a0ce-6f5be7f2a611)\n",
)
R550 = (
    "0, GPU-1f2e3d4c-5b6a-4978-8899-aabbccddeeff, NVIDIA A100-SXM4-40GB, 550.54.15, 40960, 40354, Disabled\n",
    "",
    "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1f2e3d4c-5b6a-4978-8899-aabbccddeeff)\n",
)
MIG = (
    "0, GPU-0d4c2f3e-9c58-4b4f-8b5c-64f1f4c9a0aa, NVIDIA H100 80GB HBM3, 580.95.05, 81559, "
    "[Insufficient Permissions], Enabled\n",
    "",
    "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0d4c2f3e-9c58-4b4f-8b5c-64f1f4c9a0aa)\n"
    "  MIG 3g.40gb     Device  0: (UUID: MIG-2c3b1f6e-52a4-5b41-a7a5-8c3a0d8f7a01)\n"
    "  MIG 3g.40gb     Device  1: (UUID: MIG-8d1e4a7b-0f4c-5c0b-9a6d-1b2c3d4e5f60)\n",
)


def memory(machine: tuple[str, str, str]) -> list[Finding]:
    return memory_findings(parse_gpus(machine[0]), parse_processes(machine[1]))


def test_free_memory_and_what_occupies_the_rest() -> None:
    free, occupied = memory(H100)
    assert free == ("ok", "GPU 0 NVIDIA H100 80GB HBM3: 79.2 of 79.6 GiB free", "")
    assert occupied[:2] == (
        "other",
        "GPU 1 NVIDIA H100 80GB HBM3: 9.0 of 79.6 GiB free; used by python3.11 (pid 48213) 70.2 GiB",
    )
    assert memory(RTX_4090)[0][0] == "ok"  # a desktop's share is not another program's
    assert memory(WSL2)[0][1].endswith("6.1 of 16.0 GiB free; used by python3.11 (pid 1874)")
    (hidden,) = memory_findings(parse_gpus(WSL2[0]), [])
    assert hidden[1].endswith("used by processes that nvidia-smi does not list")
    assert memory(MIG) == [("ok", "GPU 0 NVIDIA H100 80GB HBM3, divided by MIG", "")]


@pytest.mark.parametrize(
    ("machine", "cuda", "state", "words"),
    [
        (H100, "13.0", "ok", "driver 580.95.05 runs torch 2.13.0 (CUDA 13.0)"),
        (WSL2, "13.0", "ok", "driver 581.57 runs"),
        (R550, "13.0", "missing", "driver 550.54.15 is older than R580, which torch 2.13.0 (CUDA 13.0) needs"),
        (R550, "12.8", "ok", "driver 550.54.15 runs"),
        (H100, None, "missing", "torch 2.13.0 is built for CPUs"),
    ],
)
def test_torchs_build_against_the_driver(machine: tuple[str, ...], cuda: str | None, state: str, words: str) -> None:
    found, subject, remedy = torch_finding(parse_gpus(machine[0])[0].driver, "2.13.0", cuda)
    assert found == state and words in subject and bool(remedy) == (state == "missing")


@pytest.mark.parametrize(
    ("builds", "state"),
    [
        (("0.32.0", None), "ok"),
        ((None, None), "absent"),
        ((None, "0.32.0"), "missing"),
        (("0.32.0+cpu", None), "missing"),
    ],
)
def test_a_vllm_for_cpus_beside_a_gpu_is_missing(builds: tuple[str | None, str | None], state: str) -> None:
    found, _, remedy = vllm_finding(*builds)
    assert found == state and (remedy == "") == (state == "ok")


def test_the_compiler_is_the_one_that_triton_takes(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path)}
    assert compiler_finding(environment, headers=True)[0] == "missing"
    for name in ("clang", "gcc", "mycc"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    assert compiler_finding(environment, headers=True)[1] == f"C compiler {tmp_path}/gcc"
    assert compiler_finding(environment | {"CC": "mycc"}, headers=True)[1].endswith("/mycc")
    assert "Python.h" in compiler_finding(environment, headers=False)[1]


def test_nccl_is_needed_where_there_are_several_gpus() -> None:
    assert nccl_finding((2, 29, 7), 8) == ("ok", "NCCL 2.29.7", "")
    assert nccl_finding(None, 8)[0] == "missing" and nccl_finding(None, 1)[0] == "absent"


def nvidia_smi(folder: Path, machine: tuple[str, str, str], status: int = 0) -> str:
    """A command that prints what the machine's does."""
    for name, text in zip(("query-gpu", "query-compute-apps", "L"), machine, strict=True):
        (folder / name).write_text(text)
    command = folder / "nvidia-smi"
    command.write_text(
        f'#!/bin/sh\nname=${{1#--}}; cat "{folder}/$(echo "${{name#-}}" | cut -d= -f1)"; exit {status}\n'
    )
    command.chmod(0o755)
    return str(command)


def test_all_findings_of_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    findings = gpu_findings(nvidia_smi(tmp_path, H100))
    assert findings[-3:-1] == [visible_finding(H100[2], os.environ), memory(H100)[0]]
    assert any(subject.startswith("GPU 1 NVIDIA H100") for _, subject, _ in findings)
    failing = ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", "", "")
    ((state, subject, _),) = gpu_findings(nvidia_smi(tmp_path, failing, status=9))
    assert state == "missing" and "couldn't communicate" in subject
    assert gpu_findings(nvidia_smi(tmp_path, ("No devices were found\n", "", "")))[0][0] == "ok"
